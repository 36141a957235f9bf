//! Keeps dirty memory within its limit while the decay thread gets no CPU.
//!
//! Blocks that come to lie in dirty memory need no more of it. Once the heap has grown by
//! what the limit still leaves, and the decay thread has not run, a thread of the program
//! returns the free pages itself: it waits for the kernel, where others would be killed. If
//! the decay thread is long overdue, it does so without growth: the limit is not known then.

use std::sync::atomic::{
    AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::time::Duration;

use crate::{cache, decay_thread, jemalloc, sys};

/// Smaller blocks are not counted: their sizes add up slowly.
pub(crate) const MIN_COUNTED_BYTES: usize = 64 << 10;

/// The figures of the heap are not read more often than once in so many bytes.
const MIN_BUDGET_BYTES: usize = 8 << 20;

/// The bytes allocated since the figures were read, and those that may be until they are
/// again.
static ALLOCATED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The bytes in blocks and in dirty memory when the decay thread last ran, the most that was
/// found since, and by how much that may grow.
static TOTAL_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);
static BUDGET_BYTES: AtomicUsize = AtomicUsize::new(MIN_BUDGET_BYTES);

/// The time at which the decay thread last ran, in nanoseconds of the monotonic clock.
static RAN_AT_NANOS: AtomicU64 = AtomicU64::new(0);

/// A decay thread that gets CPU runs more often.
const OVERDUE: Duration = Duration::from_millis(250);

/// The thread that returns free pages in place of the decay thread, or 0.
static SUBSTITUTE: AtomicUsize = AtomicUsize::new(0);

/// Records that a block is about to be allocated.
#[inline]
pub(crate) fn note_allocation(bytes: usize) {
    let allocated_bytes = ALLOCATED_BYTES
        .fetch_add(bytes, Relaxed)
        .saturating_add(bytes);
    if allocated_bytes > BUDGET_BYTES.load(Relaxed) {
        purge_excess(bytes);
    }
}

/// Records that so much is dirty now, by jemalloc's last figures.
pub(crate) fn set_budget(dirty_bytes: usize) {
    let rest = decay_thread::max_dirty_bytes().saturating_sub(dirty_bytes);
    let total_bytes = jemalloc::active_bytes() + dirty_bytes;
    TOTAL_BYTES.store(total_bytes, Relaxed);
    PEAK_BYTES.store(total_bytes, Relaxed);
    BUDGET_BYTES.store(rest.max(MIN_BUDGET_BYTES), Relaxed);
    ALLOCATED_BYTES.store(0, Relaxed);
    RAN_AT_NANOS.store(now_nanos(), Relaxed);
}

fn now_nanos() -> u64 {
    u64::try_from(sys::now().as_nanos()).unwrap_or(u64::MAX)
}

fn is_overdue() -> bool {
    let age_nanos = now_nanos().saturating_sub(RAN_AT_NANOS.load(Relaxed));
    Duration::from_nanos(age_nanos) > OVERDUE
}

/// Returns whether the calling thread returns pages in place of the decay thread.
pub(crate) fn is_substitute() -> bool {
    let thread = SUBSTITUTE.load(Relaxed);
    thread != 0 && thread == sys::thread()
}

/// Records in the child of a fork that the parent's threads are gone.
pub(crate) fn reset() {
    SUBSTITUTE.store(0, Relaxed);
}

/// Purges if the heap may grow past its budget with a block of `bytes`, and too much is dirty.
#[cold]
fn purge_excess(bytes: usize) {
    if decay_thread::is_needless() {
        // All of the heap is less than the smallest budget. To read its figures takes as long
        // as hundreds of allocations.
        ALLOCATED_BYTES.store(0, Relaxed);
        return;
    }
    if SUBSTITUTE
        .compare_exchange(0, sys::thread(), Acquire, Relaxed)
        .is_err()
    {
        return;
    }
    let (dirty_bytes, _) = jemalloc::free_bytes();
    let total_bytes = jemalloc::active_bytes() + dirty_bytes;
    let needed_bytes = total_bytes.saturating_add(bytes);
    let peak_bytes = PEAK_BYTES.load(Relaxed);
    if needed_bytes > peak_bytes + BUDGET_BYTES.load(Relaxed) || is_overdue() {
        decay_thread::wait_for_purge();
        // By as much as the heap has grown the headroom is less than the decay thread read.
        let grown_bytes = needed_bytes.saturating_sub(TOTAL_BYTES.load(Relaxed));
        let max_bytes = decay_thread::max_dirty_bytes();
        let max_bytes = max_bytes.saturating_sub(grown_bytes / decay_thread::HEADROOM_PARTS);
        if dirty_bytes + cache::count().1 > max_bytes {
            cache::free_all();
            jemalloc::purge_all();
        }
        PEAK_BYTES.fetch_max(total_bytes, Relaxed);
    }
    ALLOCATED_BYTES.store(total_bytes.saturating_sub(peak_bytes), Relaxed);
    SUBSTITUTE.store(0, Release);
}
