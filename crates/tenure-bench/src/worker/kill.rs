//! A process with much memory is killed: how long does its parent wait, and when is the
//! memory free?

use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus};

use rustix::process::Signal;

use super::job::{Job, Keep};
use super::process::{Environment, Worker};
use crate::machine::trace::Trace;
use crate::measure::prelude::*;

/// Makes a way that kills a worker which keeps memory. The figure `waits` is how long
/// the caller waits for its end.
pub fn killed_way(
    name: &'static str,
    environment: Environment,
    keep: Keep,
    waits: &'static str,
) -> Way {
    Way::new(
        name,
        move || {
            let trace = Trace::new()?;
            let path = trace.path();
            let mut worker = Worker::start(&environment, &Job::Keep(keep, path), None)?;
            worker.wait_until_ready()?;
            // The figure is a sum of what each CPU counts for itself, so nearly all must do.
            let resident = kernel::resident_bytes_of(worker.pid())?;
            let (is, should) = (bytes_text(resident as f64), bytes_text(keep.len as f64));
            let is_filled = resident >= keep.len as u64 / 20 * 19;
            ensure!(is_filled, "only {is} of {should} are in memory");
            Ok((worker, trace))
        },
        move |(mut worker, trace): (Worker, Trace), recorder: &mut Recorder<'_>| {
            recorder.freed(waits, || worker.kill_and_wait(), || trace.wait_until_gone())
        },
        |status: ExitStatus, _: &mut Recorder<'_>| {
            let is_killed = status.signal() == Some(Signal::KILL.as_raw());
            ensure!(is_killed, "the worker ended by itself: {status}");
            Ok(())
        },
    )
}
