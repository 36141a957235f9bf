//! The queue of pending memory.

use std::collections::VecDeque;
use std::sync::Condvar;
use std::time::Instant;

use rustix::process::Pid;

use super::calls::{CALLS, CALLS_TIMEOUT};
use super::headroom::HeadroomCache;
use super::limits::max_active;
use super::worker_scaling::WorkerScaling;
use crate::background::pool;
use crate::ground::range::PageRange;
use crate::ground::sys::Errno;
use crate::ground::sys::fork::{self, ForkMutex};
use crate::ground::sys::pmd_bytes;
use crate::observation::stats;

/// A deferred free: memory whose addresses no other code knows.
#[derive(Debug)]
pub(super) struct Job {
    /// All addresses to be unmapped, including the unused rest of the
    /// reservation.
    pub(super) reservation: PageRange,
    /// The pages, with gaps where parts of the range did not move.
    pages: PageRange,
    /// The bytes that were moved there.
    moved_bytes: usize,
    /// The start of the part that no worker has taken.
    next: usize,
    /// The number of chunks that workers are freeing.
    in_flight: usize,
    destination: Destination,
}

/// Where the pages of pending memory go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    Kernel,
    /// The page pool, up to its size.
    Pool,
}

impl Destination {
    /// Returns where memory goes that is released, not recycled.
    pub(crate) fn of_released() -> Self {
        match pool::recycles_released() {
            true => Self::Pool,
            false => Self::Kernel,
        }
    }
}

/// A chunk that one worker frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) range: PageRange,
    /// The reservation of its job, which identifies the job.
    reservation: PageRange,
    pub(super) destination: Destination,
}

#[derive(Debug)]
pub(super) struct Queue {
    jobs: VecDeque<Job>,
    /// The process that the workers belong to; `None` before the first release.
    pid: Option<Pid>,
    /// The bytes that have been moved away and are not freed yet.
    pub(super) pending_bytes: usize,
    pub(super) workers: usize,
    /// The number of workers that wait for work.
    pub(super) idle_workers: usize,
    /// The number of CPUs that the workers may use; 0 before they have counted them.
    pub(super) worker_cpus: usize,
    /// The number of threads that wait until nothing is pending.
    pub(super) waiters: usize,
    /// Whether the headroom is little beside the pending bytes.
    pub(super) is_memory_short: bool,
    pub(super) worker_scaling: WorkerScaling,
    pub(super) headroom: HeadroomCache,
    /// Addresses that the kernel failed to unmap; their pages are free.
    pub(super) unmap_failed: Vec<PageRange>,
}

/// Locked while memory moves from its owner to the queue, so that a fork finds
/// it in one place or the other.
pub(super) static QUEUE: ForkMutex<Queue> = ForkMutex::new(Queue::EMPTY, Queue::start_in_child);
pub(super) static WORK_ARRIVED: Condvar = Condvar::new();
pub(super) static FREED: Condvar = Condvar::new();

impl Queue {
    pub(super) const EMPTY: Self = Self {
        jobs: VecDeque::new(),
        pid: None,
        pending_bytes: 0,
        workers: 0,
        idle_workers: 0,
        worker_cpus: 0,
        waiters: 0,
        is_memory_short: false,
        worker_scaling: WorkerScaling::ONE,
        headroom: HeadroomCache::EMPTY,
        unmap_failed: Vec::new(),
    };

    /// Empties the queue. A `Job` owns nothing that the allocator would have to free.
    fn start_in_child(&mut self) {
        self.jobs.clear();
        self.pid = None;
        self.unmap_failed.clear();
        // The child's counters start at zero.
        self.pending_bytes = 0;
        self.workers = 0;
        self.idle_workers = 0;
        self.waiters = 0;
        self.is_memory_short = false;
        self.worker_scaling = WorkerScaling::ONE;
        CALLS.clear();
    }

    /// Returns whether the queue belongs to this process, and not to the parent of a
    /// `vfork(2)`: a worker that started here would be counted for ever, and end with the
    /// child.
    pub(super) fn is_own(&mut self) -> bool {
        let pid = rustix::process::getpid();
        *self.pid.get_or_insert(pid) == pid
    }

    /// Reserves capacity, so that the next `count` calls of `push` need no
    /// memory. Returns whether that succeeded.
    pub(super) fn try_reserve(&mut self, count: usize) -> bool {
        self.jobs.try_reserve(count).is_ok()
    }

    pub(super) fn push(
        &mut self,
        reservation: PageRange,
        pages: PageRange,
        moved_bytes: usize,
        destination: Destination,
    ) {
        self.set_pending(self.pending_bytes + moved_bytes);
        self.jobs.push_back(Job {
            reservation,
            pages,
            moved_bytes,
            next: pages.start(),
            in_flight: 0,
            destination,
        });
    }

    /// Sets the pending bytes, here and in the statistics.
    fn set_pending(&mut self, bytes: usize) {
        self.pending_bytes = bytes;
        stats::PENDING_RELEASE_BYTES.set(bytes);
    }

    /// Takes the next chunk of the oldest job that has one. It ends between two
    /// page-table pages where it can: the kernel frees one whose pages a call
    /// frees all (Linux 6.14), and unmapping the job takes less time then.
    pub(super) fn next_chunk(
        &mut self,
        chunk_bytes: impl FnOnce(Destination) -> usize,
    ) -> Option<Chunk> {
        let job = self.jobs.iter_mut().find(|job| job.has_more())?;
        let chunk_bytes = chunk_bytes(job.destination);
        let mut end = job.next.saturating_add(chunk_bytes).min(job.pages.end());
        if end < job.pages.end() && end - end % pmd_bytes() > job.next {
            end -= end % pmd_bytes();
        }
        let range = PageRange::between(job.next, end);
        job.next = end;
        job.in_flight += 1;
        Some(Chunk {
            range,
            reservation: job.reservation,
            destination: job.destination,
        })
    }

    /// Records that a chunk is free. Returns its job when that is free as a
    /// whole; the caller then unmaps its addresses.
    pub(super) fn complete(&mut self, chunk: Chunk) -> Option<Job> {
        let of_chunk = |job: &Job| job.reservation == chunk.reservation;
        let at = self.jobs.iter().position(of_chunk)?;
        let job = &mut self.jobs[at];
        job.in_flight -= 1;
        if job.in_flight > 0 || job.has_more() {
            return None;
        }
        self.jobs.remove(at)
    }

    /// Records that the addresses of a job are unmapped.
    pub(super) fn subtract_pending(&mut self, job: &Job) {
        self.set_pending(self.pending_bytes - job.moved_bytes);
        if self.jobs.is_empty() {
            self.worker_scaling.stop_measuring();
            self.worker_scaling.set_urgent(None);
            self.is_memory_short = false;
        }
    }

    pub(super) fn has_more(&self) -> bool {
        self.jobs.iter().any(Job::has_more)
    }

    /// Returns whether another worker would have work and should be started.
    pub(super) fn wants_worker(&self) -> bool {
        self.has_more() && self.workers < self.worker_scaling.wanted()
    }

    /// Returns how many of `bytes` may be deferred now, and records whether
    /// memory is short then. Of private memory, what this process has in memory bounds what
    /// the bytes hold.
    pub(super) fn fitting_bytes(&mut self, bytes: usize, is_private: bool) -> usize {
        let job_count = self.jobs.len() + self.unmap_failed.len();
        let fit = self
            .headroom
            .fit(bytes, is_private, self.pending_bytes, job_count);
        self.is_memory_short = fit.is_short && self.pending_bytes + fit.bytes > 0;
        fit.bytes
    }

    /// Returns the number of workers to have if freeing is urgent. While a
    /// thread waits there is one for each of the `cpus` at most, because more
    /// do not free faster. While memory is short there may be more: beside busy
    /// threads they get a larger share of the CPUs.
    pub(super) fn urgent_workers(&self, cpus: usize) -> Option<usize> {
        if self.is_memory_short {
            Some(max_active(usize::MAX))
        } else {
            (self.waiters > 0).then(|| max_active(cpus))
        }
    }

    /// Waits for the calls of workers, before a release makes its own.
    pub(super) fn wait_for_calls(&self) {
        if self.may_wait_for_calls() {
            CALLS.wait(CALLS_TIMEOUT);
        }
    }

    /// Returns whether a release may wait for the calls of workers: while memory is
    /// short it must not, and beside a single CPU it would keep them from ending.
    fn may_wait_for_calls(&self) -> bool {
        !self.is_memory_short && !self.worker_scaling.is_urgent() && self.worker_cpus > 1
    }

    /// Returns the bytes that no worker has taken yet.
    fn untaken_bytes(&self) -> usize {
        self.jobs.iter().map(|job| job.pages.end() - job.next).sum()
    }

    /// Records that `bytes` were freed, with at most `max_workers` workers allowed.
    pub(super) fn record(&mut self, bytes: usize, max_workers: usize) {
        let remaining_bytes = self.untaken_bytes();
        self.worker_scaling
            .record(bytes, Instant::now(), remaining_bytes, max_workers);
    }
}

impl Job {
    fn has_more(&self) -> bool {
        self.next < self.pages.end()
    }
}

/// Has forks start children with an empty queue and no worker, because the pending
/// memory is not mapped there.
pub(crate) fn register_fork_handlers() -> Result<(), Errno> {
    static ENTRY: fork::Entry = fork::Entry::new(&QUEUE);
    fork::register(&ENTRY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::sys::page_size;

    fn range(from: usize, to: usize) -> PageRange {
        PageRange::between(from * page_size(), to * page_size())
    }

    #[test]
    fn chunks_end_between_page_table_pages() {
        let mut queue = Queue::EMPTY;
        let tables = |count: usize| count * pmd_bytes();
        let pages = PageRange::between(tables(1) + page_size(), tables(4) + page_size());
        queue.push(pages, pages, 1, Destination::Kernel);
        let mut ends = Vec::new();
        while let Some(chunk) = queue.next_chunk(|_| tables(2)) {
            ends.push(chunk.range.end());
        }
        assert_eq!(ends, [tables(3), pages.end()]);
        queue.push(pages, pages, 1, Destination::Kernel);
        let chunk = queue.next_chunk(|_| page_size()).unwrap();
        assert_eq!(chunk.range.len(), page_size(), "no page table is so short");
    }

    #[test]
    fn release_waits_for_calls_only_beside_other_cpus_and_without_urgency() {
        let mut queue = Queue::EMPTY;
        for (cpus, is_memory_short, urgent, waits) in [
            (2, false, None, true),
            (0, false, None, false),
            (1, false, None, false),
            (2, true, None, false),
            (2, false, Some(4), false),
        ] {
            queue.worker_cpus = cpus;
            queue.is_memory_short = is_memory_short;
            queue.worker_scaling.set_urgent(urgent);
            assert_eq!(queue.may_wait_for_calls(), waits, "{cpus} CPUs, {urgent:?}");
        }
    }

    #[test]
    fn free_queue_is_not_urgent() {
        let mut queue = Queue::EMPTY;
        queue.push(range(1, 2), range(1, 2), 1, Destination::Kernel);
        queue.worker_scaling.set_urgent(Some(4));
        let chunk = queue.next_chunk(|_| page_size()).unwrap();
        let job = queue.complete(chunk).unwrap();
        queue.subtract_pending(&job);
        assert!(!queue.worker_scaling.is_urgent());
        assert_eq!(queue.worker_scaling.wanted(), 1);
    }

    #[test]
    fn jobs_are_split_into_chunks_and_complete_with_the_last() {
        let mut queue = Queue::EMPTY;
        assert!(queue.try_reserve(1));
        queue.push(range(10, 20), range(12, 17), 5, Destination::Kernel);
        queue.push(range(30, 40), range(30, 32), 2, Destination::Kernel);
        assert_eq!(queue.pending_bytes, 7);
        let mut take = || queue.next_chunk(|_| 3 * page_size()).unwrap();
        let (first, second, third) = (take(), take(), take());
        let ranges = [first, second, third].map(|chunk| chunk.range);
        assert_eq!(ranges, [range(12, 15), range(15, 17), range(30, 32)]);
        assert!(!queue.has_more() && queue.next_chunk(|_| page_size()).is_none());
        assert!(
            queue.complete(second).is_none(),
            "the first is still in flight"
        );
        let job = queue.complete(third).unwrap();
        assert_eq!(job.reservation, range(30, 40));
        queue.subtract_pending(&job);
        assert_eq!(queue.pending_bytes, 5);
        let job = queue.complete(first).unwrap();
        queue.subtract_pending(&job);
        assert_eq!(queue.pending_bytes, 0);
    }
}
