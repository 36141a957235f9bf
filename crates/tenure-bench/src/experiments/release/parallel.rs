//! Freeing with several threads while the caller waits.

use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};

use rustix::mm::{self, Advice};

use crate::measure::prelude::*;

/// The length of a chunk, where a way frees chunk by chunk.
pub const CHUNK: usize = 64 << 20;

/// Threads that are there before the clock starts. They end without their sender.
pub struct Workers {
    /// The start and the length of each chunk.
    chunks: mpsc::Sender<(usize, usize)>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Workers {
    pub fn start(count: usize) -> Result<Self> {
        let (chunks, rest) = mpsc::channel();
        let rest = Arc::new(Mutex::new(rest));
        let start = |_| {
            let rest = rest.clone();
            let next = move || rest.lock().expect("freeing does not panic").recv();
            let work = move || {
                while let Ok((start, len)) = next() {
                    // SAFETY: a part of memory that `free` borrows mutably until all
                    // threads have ended.
                    unsafe { mm::madvise(start as *mut _, len, Advice::LinuxDontNeed) }
                        .with_context(|| format!("MADV_DONTNEED of {len} bytes"))?;
                }
                Ok(())
            };
            let thread = thread::Builder::new().spawn(work);
            thread.context("starting a thread")
        };
        let threads = (0..count).map(start).collect::<Result<_>>()?;
        Ok(Self { chunks, threads })
    }

    /// Has all pages of the memory freed, each thread taking the next chunk, and
    /// returns when they are.
    pub fn free(self, memory: &mut Memory) -> Result<()> {
        for chunk in memory.bytes_mut()?.chunks_mut(CHUNK) {
            self.chunks.send((chunk.as_ptr() as usize, chunk.len()))?;
        }
        drop(self.chunks);
        let ended = self.threads.into_iter().map(JoinHandle::join);
        let answers = ended.map(|answer| answer.expect("freeing does not panic"));
        answers.fold(Ok(()), Result::and)
    }
}

#[cfg(test)]
#[path = "../../../tests/unit/release/parallel.rs"]
mod tests;
