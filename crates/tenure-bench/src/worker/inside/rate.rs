//! How many blocks a thread makes and frees in a second.

use std::time::Duration;

use anyhow::Result;

use super::super::job::{Done, Load};
use crate::machine::clock::Clock;

/// Takes steps until the time that began at `begin` is over. A step adds its blocks to
/// `all_records` and its wrong answers to `wrong`; it counts when it begins while blocks
/// count. One does at least, however long it takes.
pub fn count(
    load: &Load,
    begin: Duration,
    clock: &dyn Clock,
    mut step: impl FnMut(&mut Done) -> Result<()>,
) -> Result<Done> {
    let counts_from = begin + load.before;
    let end = counts_from + load.counted;
    let mut done = Done::default();
    let mut first = None;
    loop {
        step(&mut done)?;
        let now = clock.now();
        match first {
            None if now >= counts_from => first = Some((now, done.all_records)),
            Some((from, uncounted)) if now >= end => {
                let counted = done.all_records - uncounted;
                let rate = counted as f64 / (now - from).as_secs_f64();
                return Ok(Done { rate, ..done });
            }
            _ => {}
        }
    }
}

/// Adds up what the threads have done.
pub fn sum(threads: &[Done]) -> Done {
    Done {
        rate: threads.iter().map(|done| done.rate).sum(),
        all_records: threads.iter().map(|done| done.all_records).sum(),
        wrong: threads.iter().map(|done| done.wrong).sum(),
        ..Done::default()
    }
}
