//! Work divided among threads.

use std::thread;

use anyhow::{Context as _, Result};

/// Does something with each, in a thread of its own.
pub fn in_threads<T: Send, R: Send>(
    all: Vec<T>,
    work: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    thread::scope(|scope| {
        let spawn = |one| {
            let work = &work;
            let thread = thread::Builder::new().spawn_scoped(scope, move || work(one));
            thread.context("starting a thread")
        };
        let threads: Vec<_> = all.into_iter().map(spawn).collect::<Result<_>>()?;
        let joined = threads.into_iter().map(|thread| {
            let joined = thread.join();
            joined.expect("the loop does not panic")
        });
        joined.collect()
    })
}
