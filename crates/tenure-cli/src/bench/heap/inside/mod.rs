//! The worker's side: this program run again, with another malloc.

mod arrays;
mod block;
mod burst;
mod one;
mod search;
mod served;

use std::io::{BufRead as _, StdinLock, StdoutLock, Write as _};

use anyhow::{Context as _, Result, ensure};
use tenure::Residency;

use super::{
    super::kernel,
    job::{Done, Job, Said},
};

/// Does the job that the parent tells on standard input.
///
/// # Errors
///
/// Fails when the parent has gone.
pub fn work() -> Result<()> {
    let mut parent = Parent {
        input: std::io::stdin().lock(),
        output: std::io::stdout().lock(),
    };
    let job = serde_json::from_str(&parent.line()?).context("the job")?;
    let said = match run(&job, &mut parent) {
        Ok(said) => said,
        Err(error) => Said::Failed(format!("{error:#}")),
    };
    parent.say(&said)
}

fn run(job: &Job, parent: &mut Parent) -> Result<Said> {
    let done = match job {
        Job::Tell { library } => return served::tell(library.as_deref()).map(Said::Served),
        Job::Search(search) => search::run(search, parent)?,
        Job::Burst(burst) => burst::run(burst, parent)?,
        Job::Waves(waves) => burst::waves(waves, parent)?,
        Job::Arrays(arrays) => arrays::run(*arrays, parent)?,
        Job::Free(len) => one::free(*len, parent)?,
        Job::Keep { len, trace } => one::keep(*len, trace, parent)?,
    };
    Ok(Said::Done(Done {
        peak_bytes: kernel::peak_bytes()?,
        ..done
    }))
}

/// Who asked for the work.
pub struct Parent {
    input: StdinLock<'static>,
    output: StdoutLock<'static>,
}

impl Parent {
    /// Says that it waits, and waits to be told to go on.
    fn wait(&mut self) -> Result<()> {
        self.say(&Said::Waits)?;
        self.line().map(drop)
    }

    fn say(&mut self, said: &Said) -> Result<()> {
        serde_json::to_writer(&mut self.output, said)?;
        writeln!(self.output)?;
        Ok(self.output.flush()?)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.input.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the parent has gone");
        Ok(line)
    }
}

/// What is in memory and not lazily free.
fn held_bytes() -> Result<u64> {
    let residency = Residency::of_process(std::process::id())?;
    let held = residency.resident_without_lazily_free_bytes();
    Ok(held.unwrap_or(residency.resident_bytes) as u64)
}
