//! Freeing with several threads while the caller waits.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result};
use rustix::mm::{self, Advice};

use super::{super::raw::RawMapping, ways::CHUNK};

/// Threads that are there before the clock starts.
pub struct Workers {
    /// One end for each thread, which waits at the other.
    jobs: Vec<Sender<Arc<Job>>>,
    done: Receiver<Result<()>>,
    threads: Vec<JoinHandle<()>>,
}

/// Memory that all threads free together, each taking the next chunk.
struct Job {
    start: usize,
    len: usize,
    next: AtomicUsize,
}

impl Workers {
    /// Starts `count` threads.
    pub fn start(count: usize) -> Result<Self> {
        let (tell_done, done) = mpsc::channel();
        let mut workers = Self {
            jobs: Vec::new(),
            done,
            threads: Vec::new(),
        };
        for _ in 0..count {
            let (job, jobs) = mpsc::channel::<Arc<Job>>();
            let tell_done = tell_done.clone();
            let work = move || {
                for job in jobs {
                    if tell_done.send(job.free_chunks()).is_err() {
                        return;
                    }
                }
            };
            let thread = thread::Builder::new().spawn(work);
            workers.threads.push(thread.context("starting a thread")?);
            workers.jobs.push(job);
        }
        Ok(workers)
    }

    /// Has the pages of the mapping freed, and returns when all are.
    pub fn free(&self, mapping: &mut RawMapping) -> Result<()> {
        let job = Arc::new(Job {
            start: mapping.start(),
            len: mapping.len(),
            next: AtomicUsize::new(0),
        });
        for worker in &self.jobs {
            worker.send(job.clone()).context("a thread has ended")?;
        }
        let mut answers = Ok(());
        for _ in &self.jobs {
            answers = answers.and(self.done.recv().context("the threads have ended")?);
        }
        answers
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // Without the other end of its channel a thread ends.
        self.jobs.clear();
        for thread in mem::take(&mut self.threads) {
            thread.join().expect("freeing does not panic");
        }
    }
}

impl Job {
    fn free_chunks(&self) -> Result<()> {
        loop {
            let offset = self.next.fetch_add(CHUNK, Ordering::Relaxed);
            if offset >= self.len {
                return Ok(());
            }
            let len = CHUNK.min(self.len - offset);
            let start = (self.start + offset) as *mut _;
            // SAFETY: a part of a mapping that `free` borrows mutably until all
            // threads have answered.
            unsafe { mm::madvise(start, len, Advice::LinuxDontNeed) }
                .with_context(|| format!("MADV_DONTNEED of {len} bytes"))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_is_freed_whatever_the_number_of_threads() {
        for count in [1, 3] {
            let workers = Workers::start(count).unwrap();
            let page = tenure::page_size();
            let mut mapping = RawMapping::base_pages(2 * CHUNK + page).unwrap();
            // SAFETY: `base_pages` maps writable memory.
            let bytes = unsafe { mapping.bytes_mut() };
            let written = [0, CHUNK - page, CHUNK, 2 * CHUNK];
            written.iter().for_each(|&offset| bytes[offset] = 1);
            workers.free(&mut mapping).unwrap();
            let bytes = mapping.bytes();
            assert!(written.iter().all(|&offset| bytes[offset] == 0));
        }
    }

    #[test]
    fn workers_without_work_end() {
        drop(Workers::start(2).unwrap());
    }
}
