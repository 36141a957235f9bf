//! A burst, and what is still held when the program has been idle for a while.

use std::thread;
use std::time::{Duration, Instant};

use tenure::Residency;

use super::rounds::{Figures, Part, Rounds, Turn};
use super::{allocators::Allocator, scale::Scale};
use crate::machine::group::Group;
use crate::measure::prelude::*;
use crate::worker::{Worker, job::Burst, job::Job};

const HELD: &str = "held / live";

/// Makes a case for each moment after the burst.
pub fn cases(scale: &Scale, allocators: &[Allocator]) -> Vec<Case> {
    let (burst, moments) = (scale.burst, scale.moments.clone());
    let live = bytes_text(burst.live_bytes as f64);
    let freed = bytes_text(burst.burst_bytes as f64);
    let table = format!("Burst and idle: {live} stay, {freed} are freed");
    let parts = moments.iter().map(|&after| part(after, HELD)).collect();
    let rounds = Rounds::new(allocators, move |allocator, turn| {
        idle(burst, &moments, allocator, turn)
    });
    rounds.cases(&table, parts)
}

/// Names the case of a moment.
pub fn part(after: Duration, compared: &'static str) -> Part {
    let name = format!("{} after", seconds_text(after.as_secs_f64()));
    (name, compared)
}

/// Lets a worker have its burst in its turn, and looks at it at each moment.
fn idle(
    burst: Burst,
    moments: &[Duration],
    allocator: &Allocator,
    turn: Turn,
) -> Result<Vec<Figures>> {
    // Dropped after the worker: a cgroup goes when it is empty.
    let group = Group::without_limit().ok();
    let mut worker = Worker::start(&allocator.environment, &Job::Burst(burst), group.as_ref())?;
    worker.wait_until_ready()?;
    worker.go_on()?;
    // The second time it waits it has freed the burst.
    worker.wait_until_ready()?;
    let freed = Instant::now();
    drop(turn);
    let at = |&moment: &Duration| {
        thread::sleep(moment.saturating_sub(freed.elapsed()));
        held(&worker, group.as_ref(), burst.live_bytes)
    };
    let held = moments.iter().map(at).collect::<Result<_>>()?;
    worker.go_on()?;
    let wrong = worker.done()?.wrong;
    ensure!(wrong == 0, "{wrong} pages of what stays were wrong");
    Ok(held)
}

/// Returns what a worker holds now: charged to its cgroup, or resident where it has none.
fn held(worker: &Worker, group: Option<&Group>, live_bytes: usize) -> Result<Figures> {
    let residency = Residency::of_process(worker.pid())?;
    let lazily_free = residency.lazily_free_bytes;
    let lazily_free = lazily_free.context("this kernel does not tell what is lazily free")?;
    let charged = group.map(Group::charged_bytes).transpose()?;
    let counted = charged.unwrap_or(residency.resident_bytes as u64);
    let held = counted.saturating_sub(lazily_free as u64) as f64 / live_bytes as f64;
    let mut figures = vec![(HELD, Unit::Ratio, held)];
    figures.extend(charged.map(|charged| ("charged", Unit::Bytes, charged as f64)));
    figures.push(("in memory", Unit::Bytes, residency.resident_bytes as f64));
    figures.push(("lazily free", Unit::Bytes, lazily_free as f64));
    Ok(figures)
}
