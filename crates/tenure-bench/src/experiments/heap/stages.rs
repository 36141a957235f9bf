//! Programs that do their work in stages, free nearly all, and are idle: how long does each
//! stage take, and how much memory do they keep?

use std::thread;
use std::time::{Duration, Instant};

use tenure::Residency;

use super::allocators::Allocator;
use super::burst::part;
use super::cases::TIME;
use super::load_scale::LoadScale;
use super::rounds::{Figures, Part, Rounds, Turn};
use crate::measure::prelude::*;
use crate::worker::{Worker, job::Job, job::PHASES};

const RSS: &str = "RSS";

/// A program.
struct Program {
    job: Job,
    /// The names of the stages. The worker waits before the first and after each.
    stages: Vec<&'static str>,
    /// How much memory is touched and freed before it starts.
    touched_len: usize,
    moments: Vec<Duration>,
}

/// Makes a case for each stage of each program, and for each moment after the last.
pub fn cases(scale: &LoadScale, allocators: &[Allocator]) -> Vec<Case> {
    let program = |job, stages: &[&'static str], touched_len| Program {
        job,
        stages: stages.to_vec(),
        touched_len,
        moments: scale.moments.clone(),
    };
    let phases = PHASES.map(|phase| phase.name);
    let phases = |touched_len| program(Job::Phases(scale.phases), &phases, touched_len);
    let in_phases = format!(
        "Phases of {} in {}, 1 % of which stays",
        bytes_text(scale.phases.bytes as f64),
        threads_text(scale.phases.threads)
    );
    let touched = bytes_text(scale.touched_len as f64);
    let entries = format!(
        "A table of {} keys and values, half of them deleted at the end",
        count_text(scale.entries.count as f64)
    );
    let objects = format!(
        "{} objects, of which {} live, beside growing lists and arenas",
        count_text(scale.objects.count as f64),
        count_text(scale.objects.live as f64)
    );
    let work = &["the work"];
    let programs = [
        (in_phases.clone(), phases(0)),
        (
            format!("{in_phases}, with {touched} touched first"),
            phases(scale.touched_len),
        ),
        (entries, program(Job::Entries(scale.entries), work, 0)),
        (objects, program(Job::Objects(scale.objects), work, 0)),
    ];
    let cases = |(table, program): (String, Program)| program.cases(&table, allocators);
    programs.into_iter().flat_map(cases).collect()
}

impl Program {
    fn cases(self, table: &str, allocators: &[Allocator]) -> Vec<Case> {
        let stages = self.stages.iter().map(|&name| (name.to_owned(), TIME));
        let moments = self.moments.iter().map(|&after| part(after, RSS));
        let parts: Vec<Part> = stages.chain(moments).collect();
        let rounds = Rounds::new(allocators, move |allocator, turn| {
            self.watch(allocator, turn)
        });
        rounds.cases(table, parts)
    }

    /// Lets a worker do all stages in its turn, and looks at it after each, and at each
    /// moment while it is idle.
    fn watch(&self, allocator: &Allocator, turn: Turn) -> Result<Vec<Figures>> {
        if self.touched_len > 0 {
            touch::memory_once(self.touched_len)?;
        }
        let mut worker = Worker::start(&allocator.environment, &self.job, None)?;
        worker.wait_until_ready()?;
        let mut figures = Vec::new();
        for _ in &self.stages {
            figures.push(stage(&mut worker)?);
        }
        let freed = Instant::now();
        drop(turn);
        for moment in &self.moments {
            thread::sleep(moment.saturating_sub(freed.elapsed()));
            figures.push(kept(&worker)?);
        }
        worker.go_on()?;
        let wrong = worker.done()?.wrong;
        ensure!(wrong == 0, "{wrong} marks in blocks were wrong");
        Ok(figures)
    }
}

/// Lets a worker do a stage, and tells the memory right after, and the most there was.
fn stage(worker: &mut Worker) -> Result<Figures> {
    let begin = Instant::now();
    worker.go_on()?;
    worker.wait_until_ready()?;
    let seconds = begin.elapsed().as_secs_f64();
    let resident = kernel::resident_bytes_of(worker.pid())?;
    let peak = kernel::peak_bytes_of(worker.pid())?;
    Ok(vec![
        (TIME, Unit::Seconds, seconds),
        (RSS, Unit::Bytes, resident as f64),
        ("peak RSS", Unit::Bytes, peak as f64),
    ])
}

/// Tells the memory of an idle worker.
fn kept(worker: &Worker) -> Result<Figures> {
    let residency = Residency::of_process(worker.pid())?;
    let mut figures = vec![(RSS, Unit::Bytes, residency.resident_bytes as f64)];
    let lazily_free = residency.lazily_free_bytes;
    figures.extend(lazily_free.map(|bytes| ("lazily free", Unit::Bytes, bytes as f64)));
    Ok(figures)
}
