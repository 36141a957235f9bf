//! The worker's side.

mod block;
mod burst;
mod cached;
mod ebizzy;
mod entries;
mod large;
mod load;
mod marked;
mod neighbour;
mod objects;
mod pass;
mod phases;
mod rate;
mod served;

use std::io::{BufRead as _, StdinLock, StdoutLock, Write as _, stdin, stdout};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::de::DeserializeOwned;

use super::job::{Done, Job, Said};
use super::process::RECORD_SEPARATOR;
use crate::machine::clock::{Clock as _, MonotonicClock};
use crate::machine::kernel;

/// Does the job that the parent tells on standard input. Fails when the parent is gone.
pub fn work() -> Result<()> {
    let mut parent = Parent {
        input: stdin().lock(),
        output: stdout().lock(),
    };
    let job = parent.hear().context("the job")?;
    let said = run(job, &mut parent);
    parent.say(&said.unwrap_or_else(|error| Said::Failed(format!("{error:#}"))))
}

fn run(job: Job, parent: &mut Parent) -> Result<Said> {
    let done = match job {
        Job::Tell => return served::tell().map(Said::Served),
        Job::Search(search) => ebizzy::run(search, parent)?,
        Job::Burst(burst) => burst::run(burst, parent)?,
        Job::Waves(waves) => burst::waves(waves, parent)?,
        Job::Neighbour(neighbour) => neighbour::run(neighbour, parent)?,
        Job::Sum(len) => large::sum(len, parent)?,
        Job::Sparse(len) => large::timed(parent, || large::sparse(len))?,
        Job::Grow(len) => large::timed(parent, || large::grow(len))?,
        Job::Free(len) => large::free(len, parent)?,
        Job::Keep(keep, trace) => large::keep(keep, &trace, parent)?,
        Job::Phases(phases) => phases::run(phases, parent)?,
        Job::Entries(entries) => entries::run(entries, parent)?,
        Job::Objects(objects) => objects::run(objects, parent)?,
        Job::Load(load) => load::run(load, parent)?,
        Job::Cached(cached) => cached::run(cached, parent)?,
        Job::TakeAndRead(len) => cached::take_and_read(len, parent)?,
    };
    let peak_bytes = kernel::status_bytes("VmHWM:")?;
    Ok(Said::Done(Done { peak_bytes, ..done }))
}

/// The process that told the job.
pub struct Parent {
    input: StdinLock<'static>,
    output: StdoutLock<'static>,
}

impl Parent {
    /// Waits to be told to go on. Returns when the job began, by the clock that processes
    /// share: now, or when the parent said.
    fn wait(&mut self) -> Result<Duration> {
        self.say(&Said::Ready)?;
        let begun: Option<Duration> = self.hear()?;
        Ok(begun.unwrap_or_else(|| MonotonicClock::SHARED.now()))
    }

    fn say(&mut self, said: &Said) -> Result<()> {
        self.output.write_all(&[RECORD_SEPARATOR])?;
        serde_json::to_writer(&mut self.output, said)?;
        self.output.write_all(b"\n")?;
        Ok(self.output.flush()?)
    }

    fn hear<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.input.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the parent is gone");
        Ok(serde_json::from_str(&line)?)
    }
}

#[cfg(test)]
#[path = "../../../tests/unit/worker/inside.rs"]
mod tests;

#[cfg(test)]
#[path = "../../../tests/unit/worker/loads.rs"]
mod load_tests;
