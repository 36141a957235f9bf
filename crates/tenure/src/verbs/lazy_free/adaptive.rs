//! `FreePolicy::Adaptive`: frees lazily while memory is plentiful, eagerly under
//! pressure.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::freed_ranges::{self, FreeRecord};
use super::mark;
use super::policy::{dontneed, free_eagerly};
use crate::ground::error::{MemoryKind, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Advice, LockState, advise, flush_lazyfree_batch, lock_state};
use crate::ground::sys::exclusive::{fork_count, may_share_pages};
use crate::ground::sys::{fork, vma};
use crate::observation::pressure::{self, Level};
use crate::observation::stats;
use crate::verbs::volatile;

/// The most that one MADV_PAGEOUT call reclaims: another thread's `mmap` may have to
/// wait for it, about 3 ms.
const CHUNK_BYTES: usize = 8 << 20;

/// Frees a range lazily or eagerly, by the current pressure.
///
/// # Safety
///
/// As for [`PageRange::free`].
pub(super) unsafe fn free(range: PageRange) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let wants_lazy = ensure_watched() && pressure::level() == Level::None;
    let record = freed_ranges::record(range, wants_lazy);
    // If a part was locked since the check, the kernel would free the pages before that
    // part and then fail.
    let can_skip_check = record.is_validated && lock_state(range) == Ok(LockState::Unlocked);
    // SAFETY: the caller guarantees what `PageRange::free` requires, for both functions.
    if !can_skip_check || !unsafe { free_validated(range, record) } {
        // SAFETY: as above.
        unsafe { validate_and_free(range, record) }?;
    }
    if record.is_lazy {
        pressure::record_lazy_free(range.len());
    }
    if record.is_lazy && pressure::level() == Level::Severe {
        // The level rose after it was read above, and the subscriber may have run
        // before these pages were lazily free.
        reclaim_freed();
    }
    Ok(())
}

/// Frees a range that was validated before: checking it again would take some 5 µs,
/// more than freeing a small range. If other code has mapped memory over it, the kernel
/// refuses, or that memory loses its contents, as [`PageRange::free`] documents. Returns
/// whether the range was freed.
///
/// # Safety
///
/// As for [`PageRange::free`].
unsafe fn free_validated(range: PageRange, record: FreeRecord) -> bool {
    if volatile::forget_contents(range).is_err() {
        return false;
    }
    if !record.is_lazy {
        // SAFETY: the caller gives the contents up.
        return unsafe { dontneed(range) }.is_ok();
    }
    let fork_count = fork_count();
    let is_own = record.is_own || !may_share_pages();
    // SAFETY: the caller gives the contents up.
    let is_marked = unsafe { mark(range, is_own) }.is_ok();
    if is_marked {
        if !is_own {
            // All others have been discarded.
            freed_ranges::record_own(range, fork_count);
        }
        flush_lazyfree_batch();
        stats::LAZY_FREE.done(range.len());
    }
    is_marked
}

/// Checks the mappings of a range, frees it, and records that it is valid.
///
/// # Safety
///
/// As for [`PageRange::free`].
unsafe fn validate_and_free(range: PageRange, record: FreeRecord) -> Result<()> {
    // SAFETY: the caller guarantees what `PageRange::free` requires.
    let freed = unsafe {
        match record.is_lazy {
            true => range.lazy_free(),
            false => free_eagerly(range),
        }
    };
    match freed {
        Ok(()) => freed_ranges::record_validated(range),
        Err(_) => freed_ranges::forget(range),
    }
    freed
}

/// Has the kernel reclaim the recorded lazily free ranges: `madvise(MADV_PAGEOUT)`.
///
/// `MADV_DONTNEED` would destroy pages that were written since without a report, which
/// `MADV_FREE` allows. `MADV_PAGEOUT` reclaims the pages that are still lazily free and
/// destroys no others, whatever is mapped there by now.
fn reclaim_freed() {
    while let Some(range) = freed_ranges::pop_lazily_free() {
        stats::FREED_UNDER_PRESSURE.done(range.len());
        for chunk in range.chunks(CHUNK_BYTES) {
            // Skips files that were mapped over it: they would be written back.
            let mapped = vma::within(chunk).unwrap_or_default();
            let is_anonymous = |vma: &&vma::Vma| vma.kind == MemoryKind::PrivateAnonymous;
            for part in mapped.iter().filter(is_anonymous) {
                // The kernel refuses a part that is locked by now, and so in use.
                let _ = advise(part.range, Advice::PageOut);
            }
        }
    }
}

/// Subscribes to pressure in this process, unless that was done before, so that the
/// freed ranges are reclaimed when it becomes severe. Returns `false` if pressure
/// cannot be watched.
fn ensure_watched() -> bool {
    /// The outcome for one generation of the process, because a child has no watcher:
    /// `2 * generation + 1` for subscribed, `+ 2` for failed, 0 for neither.
    static WATCHED: AtomicUsize = AtomicUsize::new(0);
    let Ok(generation) = fork::generation() else {
        return false;
    };
    if fork::is_in_child_handler() {
        return false;
    }
    let (watched, failed) = (2 * generation + 1, 2 * generation + 2);
    let before = WATCHED.load(Ordering::Acquire);
    if before == watched || before == failed {
        return before == watched;
    }
    let is_subscribed = freed_ranges::register_fork_handlers().is_ok() && subscribe();
    let now = if is_subscribed { watched } else { failed };
    WATCHED.store(now, Ordering::Release);
    is_subscribed
}

fn subscribe() -> bool {
    let react = |level| {
        if level == Level::Severe {
            reclaim_freed();
        }
    };
    // The subscription lasts as long as the process. If two threads are first at the
    // same time, both subscribe, which does no harm.
    pressure::subscribe(react).map(std::mem::forget).is_ok()
}

#[cfg(test)]
#[path = "adaptive_tests.rs"]
pub(super) mod tests;
