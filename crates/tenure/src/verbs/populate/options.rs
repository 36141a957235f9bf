//! What populating can be told, and what it tells.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::ground::range::PageRange;
use crate::ground::sys::pmd_bytes;

/// What populated pages are made ready for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading: maps what is there. On private anonymous memory that is the
    /// page of zeros, and no memory is taken.
    Read,
    /// Writing, without changing contents.
    Write,
}

/// By which way pages are brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strategy {
    /// The fastest way for each part of the range. For files the first chunks
    /// try [`Populate`](Strategy::Populate) and
    /// [`ReadAheadThenPopulate`](Strategy::ReadAheadThenPopulate), and the rest
    /// goes the faster way. An empty memfd is allocated first where one or two
    /// threads write to it. Without `MADV_POPULATE` (before Linux 5.14) it is
    /// [`Touch`](Strategy::Touch).
    Auto,
    /// `MADV_POPULATE_READ` or `MADV_POPULATE_WRITE`.
    Populate,
    /// An access to each page, made by the kernel on our behalf, so that a bad
    /// page is an error and no signal: `pwritev` from it to read, an atomic
    /// addition of zero (`FUTEX_WAKE_OP`) to write. Contents do not change, also
    /// while other threads write to them.
    Touch,
    /// `MADV_POPULATE_READ` and then `MADV_POPULATE_WRITE`.
    ReadThenWrite,
    /// `fallocate` and then `MADV_POPULATE_WRITE`: for writing to a
    /// [`Mapping`](crate::Mapping) of a memfd, or of a file that is mapped shared
    /// and writable.
    AllocateThenPopulate,
    /// `MADV_WILLNEED` chunk by chunk, which reads ahead also where the mapping
    /// was told `MADV_RANDOM`, and then `MADV_POPULATE`: for files.
    ReadAheadThenPopulate,
}

/// How far populating has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// How much of the range is done.
    pub done_bytes: usize,
    /// How long the range is.
    pub total_bytes: usize,
    /// How long it has taken so far.
    pub elapsed: Duration,
}

/// Lets another thread end populating early.
///
/// All clones are one token. What is under way is finished first: a few
/// milliseconds.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// Makes a token that has not been cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends what was given this token, now or before it starts.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`cancel`](CancelToken::cancel) has been called.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

pub(super) type ProgressFn = dyn Fn(Progress) + Send + Sync;

/// More threads than one for each so many bytes, begun or whole, cost more than
/// they bring: two are as fast as one for 8 MiB, and take 0.63 to 0.95 times as long
/// from here on, by the kind of memory.
const BYTES_PER_THREAD: usize = 16 << 20;

/// How to populate.
///
/// ```
/// use tenure::{Access, Mapping, PopulateOptions};
///
/// let memory = Mapping::anonymous(1 << 20).map()?;
/// let options = PopulateOptions::new(Access::Write)
///     .threads(2)
///     .progress(|now| println!("{} of {} bytes", now.done_bytes, now.total_bytes));
/// memory.populate_with(.., &options)?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone)]
pub struct PopulateOptions {
    pub(super) access: Access,
    pub(super) strategy: Strategy,
    pub(super) threads: Option<usize>,
    pub(super) chunk_bytes: Option<usize>,
    pub(super) progress: Option<Arc<ProgressFn>>,
    pub(super) cancel: CancelToken,
    pub(super) force: bool,
}

impl PopulateOptions {
    /// Begins with [`Strategy::Auto`], the number of threads that helps, and
    /// chunks that keep no other thread's `mmap` waiting for long.
    pub fn new(access: Access) -> Self {
        Self {
            access,
            strategy: Strategy::Auto,
            threads: None,
            chunk_bytes: None,
            progress: None,
            cancel: CancelToken::new(),
            force: false,
        }
    }

    /// How many threads share the work, the calling one among them.
    pub(super) fn threads_for(&self, range: PageRange) -> usize {
        let threads = self.threads.unwrap_or_else(|| {
            // CPUs by affinity and by the cgroup's quota.
            let cpus = std::thread::available_parallelism().map_or(1, usize::from);
            cpus.min(range.len().div_ceil(BYTES_PER_THREAD))
        });
        // The range may begin within a page of page-table entries.
        threads.min(range.len().div_ceil(pmd_bytes()) + 1)
    }

    /// Chooses the way.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Uses this many threads, the calling one included; 0 counts as 1. Without
    /// it: one for each CPU that affinity and the cgroup's quota allow, at most
    /// one for each 16 MiB begun. Never more than can share the range in parts of
    /// 2 MiB. Where a thread cannot be started the others do its
    /// work.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads.max(1));
        self
    }

    /// Brings in this many bytes at a time, rounded up to whole pages. Another
    /// thread's `mmap` waits for as long as that takes. Without it the size
    /// follows from measuring: what takes about 2 ms.
    pub fn chunk_bytes(mut self, bytes: usize) -> Self {
        self.chunk_bytes = Some(bytes.max(1));
        self
    }

    /// Calls `progress` on the calling thread now and then, and once when all is
    /// done.
    pub fn progress(mut self, progress: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(progress));
        self
    }

    /// Ends early, with [`Error::Cancelled`](crate::Error::Cancelled), when the
    /// token is cancelled.
    pub fn cancel(mut self, token: &CancelToken) -> Self {
        self.cancel = token.clone();
        self
    }

    /// Goes on although there seems to be too little memory. Past the limit of
    /// a memory cgroup the kernel kills the process.
    pub fn force(mut self) -> Self {
        self.force = true;
        self
    }
}

impl fmt::Debug for PopulateOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PopulateOptions")
            .field("access", &self.access)
            .field("strategy", &self.strategy)
            .field("threads", &self.threads)
            .field("chunk_bytes", &self.chunk_bytes)
            .field("force", &self.force)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_threads_than_parts() {
        let range = PageRange::between(pmd_bytes(), 5 * pmd_bytes());
        let threads = |asked| {
            let options = PopulateOptions::new(Access::Read).threads(asked);
            options.threads_for(range)
        };
        assert_eq!([0, 1, 4].map(threads), [1, 1, 4]);
        assert_eq!(threads(usize::MAX), 5);
    }
}
