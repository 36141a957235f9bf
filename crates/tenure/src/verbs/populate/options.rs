//! The options of populating, and its progress reports.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::workers::span_unit;
use crate::ground::range::PageRange;

/// The access that populated pages are prepared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading: maps existing contents. On private anonymous memory the kernel maps
    /// the zero page, which takes no memory; the first write still faults.
    Read,
    /// Writing, without changing contents: allocates (or copies) each page.
    Write,
}

/// How pages are faulted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strategy {
    /// The fastest strategy for each part of the range. For files the first chunks
    /// measure [`Populate`](Strategy::Populate) and
    /// [`ReadAheadThenPopulate`](Strategy::ReadAheadThenPopulate), and the rest
    /// uses the faster one. An empty memfd is allocated first where one or two
    /// threads write to it. Without `MADV_POPULATE` (before Linux 5.14) it is
    /// [`Touch`](Strategy::Touch).
    Auto,
    /// `MADV_POPULATE_READ` or `MADV_POPULATE_WRITE`.
    Populate,
    /// An access to each page within a system call, so that a bad page is an error
    /// (EFAULT) and no signal: `pwritev(2)` reads a byte of it; to write, an
    /// atomic addition of zero (`FUTEX_WAKE_OP`) to a word of it. Contents do not
    /// change, and no concurrent write of another thread is lost.
    Touch,
    /// `MADV_POPULATE_READ` and then `MADV_POPULATE_WRITE`.
    ReadThenWrite,
    /// `fallocate` and then `MADV_POPULATE_WRITE`: for writing to a
    /// [`Mapping`](crate::Mapping) of a memfd, or of a file that is mapped shared
    /// and writable.
    AllocateThenPopulate,
    /// `MADV_WILLNEED` chunk by chunk, which reads ahead even if the mapping has
    /// `MADV_RANDOM` advice, and then `MADV_POPULATE`: for files.
    ReadAheadThenPopulate,
}

/// The progress of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The bytes populated so far.
    pub done_bytes: usize,
    /// The length of the range.
    pub total_bytes: usize,
    /// The time since the call began.
    pub elapsed: Duration,
}

/// Lets another thread cancel populating.
///
/// All clones are one token. The workers finish the chunks in progress first, which
/// takes a few milliseconds.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// Creates a token that has not been cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels each call that has this token, running or yet to start.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`cancel`](CancelToken::cancel) has been called.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

pub(super) type ProgressFn = dyn Fn(Progress) + Send + Sync;

/// Automatic thread counts have one thread for each 16 MiB, rounded up: two threads
/// are as fast as one for 8 MiB, and take 0.63 to 0.95 times as long from 16 MiB on,
/// depending on the kind of memory.
pub const BYTES_PER_THREAD: usize = 16 << 20;

/// Options of populating: access, strategy, threads, chunk size, progress and
/// cancellation.
///
/// ```
/// use tenure::{Access, Mapping, populate::PopulateOptions};
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
    /// Creates options with [`Strategy::Auto`], an automatic number of threads, and
    /// chunks of about 2 ms.
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

    /// Returns how many threads share the work, including the calling one.
    pub(super) fn threads_for(&self, range: PageRange) -> usize {
        let threads = self.threads.unwrap_or_else(|| {
            // CPUs by affinity and by the cgroup's quota.
            let cpus = std::thread::available_parallelism().map_or(1, usize::from);
            cpus.min(range.len().div_ceil(BYTES_PER_THREAD))
        });
        // The range may begin in the middle of a unit.
        threads.min(range.len().div_ceil(span_unit()) + 1)
    }

    /// Sets how pages are faulted in.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Sets the number of threads, including the calling one; 0 counts as 1. By
    /// default there is one for each CPU that the caller's affinity, which the
    /// threads inherit, and the cgroup's quota allow, and at most one for each 16 MiB, rounded up. A call never uses more
    /// threads than the range has parts of 2 MiB. If a thread cannot be started,
    /// the others do its work.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads.max(1));
        self
    }

    /// Sets how many bytes one system call populates, rounded up to whole pages.
    /// Another thread's `mmap` waits for that long. By default the size adapts so
    /// that a chunk takes about 2 ms.
    pub fn chunk_bytes(mut self, bytes: usize) -> Self {
        self.chunk_bytes = Some(bytes.max(1));
        self
    }

    /// Calls `progress` on the calling thread about every 50 ms, and once when the
    /// whole range is done. If it panics, all threads stop after their chunk, and the
    /// call panics.
    pub fn progress(mut self, progress: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(progress));
        self
    }

    /// Returns early, with [`Error::Cancelled`](crate::Error::Cancelled), when the
    /// token is cancelled.
    pub fn cancel(mut self, token: &CancelToken) -> Self {
        self.cancel = token.clone();
        self
    }

    /// Skips the check of the [`Headroom`](crate::Headroom). Past the limit of a
    /// memory cgroup the kernel kills the process.
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
    fn threads_above_part_count_are_capped() {
        let range = PageRange::between(span_unit(), 5 * span_unit());
        let threads = |requested| {
            let options = PopulateOptions::new(Access::Read).threads(requested);
            options.threads_for(range)
        };
        assert_eq!([0, 1, 4].map(threads), [1, 1, 4]);
        assert_eq!(threads(usize::MAX), 5);
    }
}
