//! Keeps dirty memory within its limit while the decay thread gets no CPU.
//!
//! Blocks that come to lie in dirty memory need no more of it. Once the heap has grown by
//! what the limit still leaves, and the decay thread has not run, a thread of the program
//! returns the free pages itself: it waits for the kernel, where others would be killed. If
//! the decay thread is long overdue, it does so without growth: the limit is not known then.
//!
//! To read the heap's figures takes as long as allocating hundreds of blocks. The hooks' own
//! [count](pages::committed_bytes) tells that the heap has not grown, but for muzzy pages that are
//! in use again: where there are many, the figures are read once so much was allocated.

use std::sync::atomic::{
    AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::time::Duration;

use crate::{cache, decay_thread, jemalloc, pages, sys};

/// Smaller blocks do not ask whether the heap has grown: their sizes add up slowly.
pub(crate) const MIN_COUNTED_BYTES: usize = 64 << 10;

/// The heap may always grow by so much before its figures are read.
const MIN_BUDGET_BYTES: usize = 8 << 20;

/// The most that [`pages::committed_bytes`] may be before the figures are read again.
static MAX_COMMITTED_BYTES: AtomicUsize = AtomicUsize::new(MIN_BUDGET_BYTES);

/// The bytes allocated since they were read, where [`pages::committed_bytes`] does not tell whether
/// the heap has grown, and those that may be before they are read again.
static ALLOCATED_BYTES: AtomicUsize = AtomicUsize::new(0);
static MAX_ALLOCATED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// More than any program allocates between two readings.
const FAR_BYTES: usize = usize::MAX / 4;

/// The bytes in blocks and in dirty memory when the decay thread last ran, the most that was
/// found since, and by how much that may grow.
static TOTAL_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);
static BUDGET_BYTES: AtomicUsize = AtomicUsize::new(MIN_BUDGET_BYTES);

/// The time of the monotonic clock, in nanoseconds, from which on the decay thread is overdue.
static OVERDUE_AT_NANOS: AtomicU64 = AtomicU64::new(0);

/// A decay thread that gets CPU runs more often.
const OVERDUE: Duration = Duration::from_millis(250);
/// How often threads look for what is dirty while it is overdue.
const OVERDUE_PERIOD: Duration = Duration::from_millis(10);

/// The thread that returns free pages in place of the decay thread, or 0.
static SUBSTITUTE: AtomicUsize = AtomicUsize::new(0);

/// Purges if the heap may grow by a block that is about to be allocated, and too much is dirty.
#[inline]
pub(crate) fn note_allocation(bytes: usize) {
    let needed_bytes = pages::committed_bytes().wrapping_add(bytes);
    let excess_bytes = needed_bytes.wrapping_sub(MAX_COMMITTED_BYTES.load(Relaxed));
    if excess_bytes.cast_signed() > 0 || is_overdue() {
        purge_excess(bytes);
    }
}

/// Sets what the heap may grow by until the decay thread runs again, by jemalloc's last figures.
pub(crate) fn set_budget() {
    let (dirty_bytes, muzzy_bytes) = jemalloc::free_bytes();
    let rest_bytes = decay_thread::max_dirty_bytes().saturating_sub(dirty_bytes);
    let budget_bytes = rest_bytes.max(MIN_BUDGET_BYTES);
    let total_bytes = jemalloc::active_bytes() + dirty_bytes;
    TOTAL_BYTES.store(total_bytes, Relaxed);
    PEAK_BYTES.store(total_bytes, Relaxed);
    BUDGET_BYTES.store(budget_bytes, Relaxed);
    allow(budget_bytes, muzzy_bytes);
    set_overdue_after(OVERDUE);
}

fn max_total_bytes() -> usize {
    PEAK_BYTES
        .load(Relaxed)
        .saturating_add(BUDGET_BYTES.load(Relaxed))
}

/// Lets the heap grow by `bytes` since jemalloc's last figures.
fn allow(bytes: usize, muzzy_bytes: usize) {
    let (max_grown_bytes, max_allocated_bytes) = allowance(bytes, muzzy_bytes);
    let max_bytes = jemalloc::committed_bytes().wrapping_add(max_grown_bytes);
    MAX_COMMITTED_BYTES.store(max_bytes, Relaxed);
    MAX_ALLOCATED_BYTES.store(max_allocated_bytes, Relaxed);
    ALLOCATED_BYTES.store(0, Relaxed);
}

/// Returns by how much [`pages::committed_bytes`] may grow before the figures are read, and how much
/// may be allocated then. Muzzy pages were not part of the heap, and come back uncounted: where there
/// are many, allocations count instead, each of them.
fn allowance(bytes: usize, muzzy_bytes: usize) -> (usize, usize) {
    // Half of all numbers are larger than the other half.
    let bytes = bytes.min(FAR_BYTES);
    match muzzy_bytes <= bytes / 2 {
        true => (bytes - muzzy_bytes, 0),
        false => (FAR_BYTES.wrapping_neg(), bytes),
    }
}

fn set_overdue_after(time: Duration) {
    OVERDUE_AT_NANOS.store(nanos(sys::coarse_now() + time), Relaxed);
}

fn is_overdue() -> bool {
    nanos(sys::coarse_now()) >= OVERDUE_AT_NANOS.load(Relaxed)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
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
    let is_overdue = is_overdue();
    let allocated_bytes = ALLOCATED_BYTES
        .fetch_add(bytes, Relaxed)
        .saturating_add(bytes);
    if !is_overdue && allocated_bytes <= MAX_ALLOCATED_BYTES.load(Relaxed) {
        return;
    }
    if SUBSTITUTE
        .compare_exchange(0, sys::thread(), Acquire, Relaxed)
        .is_err()
    {
        return;
    }
    if is_overdue {
        set_overdue_after(OVERDUE_PERIOD);
    }
    // All of a small heap is less than the smallest budget.
    if !decay_thread::is_needless() {
        jemalloc::refresh();
        let (dirty_bytes, muzzy_bytes) = jemalloc::free_bytes();
        let total_bytes = jemalloc::active_bytes() + dirty_bytes;
        let needed_bytes = total_bytes.saturating_add(bytes);
        let is_excess = needed_bytes > max_total_bytes();
        if is_excess {
            decay_thread::wait_for_purge();
        }
        if is_excess || is_overdue {
            purge(dirty_bytes, needed_bytes);
            PEAK_BYTES.fetch_max(total_bytes, Relaxed);
        }
        allow(max_total_bytes().saturating_sub(total_bytes), muzzy_bytes);
    }
    SUBSTITUTE.store(0, Release);
}

/// Purges if more is dirty than may be when the heap has as much in blocks and dirty as it needs.
fn purge(dirty_bytes: usize, needed_bytes: usize) {
    // By as much as the heap has grown the headroom is less than the decay thread read.
    let grown_bytes = needed_bytes.saturating_sub(TOTAL_BYTES.load(Relaxed));
    let max_bytes = decay_thread::max_dirty_bytes();
    let max_bytes = max_bytes.saturating_sub(grown_bytes / decay_thread::HEADROOM_PARTS);
    if dirty_bytes + cache::count().1 > max_bytes {
        cache::free_all();
        jemalloc::purge_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowance_is_half_of_the_bytes_at_least_and_never_more() {
        const BYTES: usize = 8 << 20;
        assert_eq!(allowance(BYTES, 0), (BYTES, 0));
        assert_eq!(allowance(BYTES, BYTES / 2), (BYTES / 2, 0));
        for muzzy_bytes in [BYTES / 2 + 1, 100 * BYTES, usize::MAX] {
            let (grown_bytes, allocated_bytes) = allowance(BYTES, muzzy_bytes);
            assert!(grown_bytes.cast_signed() < 0, "each allocation counts");
            assert_eq!(allocated_bytes, BYTES);
        }
        // A limit that is larger than all memory is one.
        let (grown_bytes, _) = allowance(usize::MAX, 0);
        assert!(grown_bytes.cast_signed() > 0);
    }
}
