//! A burst, and what is still held when the program has been idle for a while.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tenure::Residency;

use super::{allocators::Allocator, cases::marked, scale::Scale};
use crate::machine::{group::Group, threads::in_threads};
use crate::measure::prelude::*;
use crate::worker::{Worker, job::Burst, job::Job};

const HELD: &str = "held / live";

/// Makes a case for each moment after the burst.
pub fn cases(scale: &Scale, allocators: &[Allocator]) -> Vec<Case> {
    let burst = scale.burst;
    let live = bytes_text(burst.live_bytes as f64);
    let freed = bytes_text(burst.burst_bytes as f64);
    let table = format!("Burst and idle: {live} stay, {freed} are freed");
    let rounds = Rc::new(RefCell::new(Rounds {
        burst,
        allocators: allocators.to_vec(),
        moments: scale.moments.clone(),
        left: Vec::new(),
    }));
    let case = |(moment, after): (usize, &Duration)| {
        let way = |(index, allocator): (usize, &Allocator)| {
            let rounds = rounds.clone();
            let take = move |(), recorder: &mut Recorder<'_>| {
                let figures = rounds.borrow_mut().take(index, moment)?;
                let record = |(name, unit, value)| recorder.record(name, unit, value);
                figures.into_iter().for_each(record);
                Ok(())
            };
            let way = Way::new(allocator.name, || Ok(()), take, |(), _| Ok(()));
            marked(way, allocator)
        };
        let name = format!("{} after", seconds_text(after.as_secs_f64()));
        let ways = allocators.iter().enumerate().map(way);
        let case = Case::new(name, ways.collect()).in_table(&table);
        case.comparing(HELD).long()
    };
    scale.moments.iter().enumerate().map(case).collect()
}

type Figures = Vec<(&'static str, Unit, f64)>;

/// Rounds of all allocators at once, since an idle process takes no CPU.
struct Rounds {
    burst: Burst,
    allocators: Vec<Allocator>,
    moments: Vec<Duration>,
    /// The rounds of allocators at moments that no case has recorded yet.
    left: Vec<Vec<Vec<Option<Figures>>>>,
}

impl Rounds {
    fn take(&mut self, allocator: usize, moment: usize) -> Result<Figures> {
        let mut left = self.left.iter_mut();
        if let Some(figures) = left.find_map(|round| round[allocator][moment].take()) {
            return Ok(figures);
        }
        let nobody_else = Mutex::new(());
        let mut round = in_threads(self.allocators.iter(), |allocator: &Allocator| {
            let held = self.idle(allocator, &nobody_else);
            held.with_context(|| allocator.name)
        })?;
        let figures = round[allocator][moment].take();
        self.left.push(round);
        figures.context("a round without this allocator")
    }

    /// Lets a worker have its burst while no other has one, and looks at it at each moment.
    fn idle(&self, allocator: &Allocator, nobody_else: &Mutex<()>) -> Result<Vec<Option<Figures>>> {
        let turn = nobody_else.lock().unwrap_or_else(PoisonError::into_inner);
        // Dropped after the worker: a cgroup goes when it is empty.
        let group = Group::without_limit().ok();
        let job = Job::Burst(self.burst);
        let mut worker = Worker::start(&allocator.environment, &job, group.as_ref())?;
        worker.wait_until_ready()?;
        worker.go_on()?;
        // The second time it waits it has freed the burst.
        worker.wait_until_ready()?;
        let freed = Instant::now();
        drop(turn);
        let at = |&moment: &Duration| {
            thread::sleep(moment.saturating_sub(freed.elapsed()));
            held(&worker, group.as_ref(), self.burst.live_bytes).map(Some)
        };
        let held = self.moments.iter().map(at).collect::<Result<_>>()?;
        worker.go_on()?;
        let wrong = worker.done()?.wrong;
        ensure!(wrong == 0, "{wrong} pages of what stays were wrong");
        Ok(held)
    }
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
