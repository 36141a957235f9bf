//! Keeps dirty memory within its limit while the decay thread gets no CPU.
//!
//! Dirty memory grows by no more than what is allocated. Once the program's threads have
//! allocated what the limit still leaves, and the decay thread has not run, one of them
//! returns the free pages itself: it waits for the kernel, where others would be killed.

use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use crate::{decay_thread, jemalloc, sys};

/// Smaller blocks are not counted: their sizes add up slowly.
pub(crate) const MIN_COUNTED_BYTES: usize = 64 << 10;

/// The figures of the heap are not read more often than once in so many bytes.
const MIN_BUDGET_BYTES: usize = 8 << 20;

/// The bytes allocated since the figures were read, and those that may be until they are
/// again.
static ALLOCATED_BYTES: AtomicUsize = AtomicUsize::new(0);
static BUDGET_BYTES: AtomicUsize = AtomicUsize::new(MIN_BUDGET_BYTES);

/// The thread that returns free pages in place of the decay thread, or 0.
static SUBSTITUTE: AtomicUsize = AtomicUsize::new(0);

/// Records that a block is about to be allocated.
#[inline]
pub(crate) fn note_allocation(bytes: usize) {
    let allocated_bytes = ALLOCATED_BYTES
        .fetch_add(bytes, Relaxed)
        .saturating_add(bytes);
    if allocated_bytes > BUDGET_BYTES.load(Relaxed) {
        purge_excess();
    }
}

/// Records that so much is dirty now.
pub(crate) fn set_budget(dirty_bytes: usize) {
    let rest = decay_thread::max_dirty_bytes().saturating_sub(dirty_bytes);
    BUDGET_BYTES.store(rest.max(MIN_BUDGET_BYTES), Relaxed);
    ALLOCATED_BYTES.store(0, Relaxed);
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

#[cold]
fn purge_excess() {
    if SUBSTITUTE
        .compare_exchange(0, sys::thread(), Acquire, Relaxed)
        .is_err()
    {
        return;
    }
    let (dirty_bytes, _) = jemalloc::free_bytes();
    let is_excess = dirty_bytes > decay_thread::max_dirty_bytes();
    if is_excess {
        // The limit may be less by now: it is the decay thread that reads the headroom.
        jemalloc::purge_all();
    }
    set_budget(if is_excess { 0 } else { dirty_bytes });
    SUBSTITUTE.store(0, Release);
}
