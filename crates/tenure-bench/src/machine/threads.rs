//! Work divided among threads.

use std::thread;

use anyhow::{Context as _, Result};

/// Does `work` with each of `all`, in a thread of its own.
pub fn in_threads<T: Send, R: Send>(
    all: impl IntoIterator<Item = T>,
    work: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    thread::scope(|scope| {
        let spawn = |one| {
            let work = &work;
            let thread = thread::Builder::new().spawn_scoped(scope, move || work(one));
            thread.context("starting a thread")
        };
        let threads: Vec<_> = all.into_iter().map(spawn).collect::<Result<_>>()?;
        let threads = threads.into_iter();
        threads
            .map(|thread| thread.join().expect("the work does not panic"))
            .collect()
    })
}
