//! Deferred frees: memory that `mremap` has moved out of its owner's way is
//! pending in a queue until workers have freed it.
//!
//! A release reserves a place with the same offset within 1 GiB (or 2 MiB),
//! moves the pages there with `mremap`, and leaves them to the workers.
//! [`Mapping`](crate::Mapping) puts memory of a GiB or more on a boundary of 1
//! GiB: page tables then move a GiB at a step. All addresses are reserved
//! before anything moves. Moved memory is neither dumped nor inherited.
//!
//! Workers take chunks of about 0.2 ms from the oldest job, and a release moves
//! its pages between two chunks ([`calls`]). While much is left, one more
//! worker is tried, and kept if freeing is a tenth faster
//! ([`worker_scaling`]). While a thread waits for the memory, or memory is
//! short, there are as many workers as allowed, and they take chunks of 1 ms
//! and run without SCHED_BATCH. Where there are several NUMA nodes, they run on those that a
//! policy names for the memory.
//!
//! Pending bytes are at most half of the headroom ([`headroom`]); callers
//! free what exceeds that themselves. Populate, and a mapping that the kernel
//! refuses, wait for pending memory before they fail. Only anonymous memory moves:
//! memory with a file (seals, file locks, unmounting, drivers) must be unmapped
//! when munmap returns, and locked memory must be uncharged. The caller frees
//! memory that cannot move, in chunks, and all of it where much is merged with equal
//! pages (KSM): to move that, the kernel would give each page memory of its own.

mod calls;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod headroom;
mod limits;
mod queue;
mod worker;
mod worker_scaling;

pub use limits::ReleaseLimits;

use std::iter;
use std::time::{Duration, Instant};

use self::headroom::{Known, split_parts};
use self::limits::max_active;
pub(crate) use self::queue::{Destination, register_fork_handlers};
use self::queue::{FREED, QUEUE, Queue, WORK_ARRIVED};
use crate::background::pool;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Advice, DestructiveAdvice, advise, advise_destructive};
use crate::ground::sys::fork::ForkGuard;
use crate::ground::sys::reservation::Reservation;
use crate::ground::sys::{Errno, map, merged, page_size, pending, table_bytes};
use crate::observation::stats;

/// How often a waiter without a deadline checks whether all is freed.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a call that the kernel refused memory or addresses waits for
/// pending memory, before it is tried again.
const RETRY_TIMEOUT: Duration = Duration::from_secs(5);

/// The state of a range after its pages have moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterMove {
    /// The range is unmapped.
    Unmapped,
    /// The range stays mapped and reads as zeros.
    Empty,
}

/// Moves the pages of `parts`, in order, away, in a time that hardly depends on
/// their number, and defers freeing them: `mremap(2)`. Returns the parts
/// whose pages are still in place, because the kernel did not move them or more
/// would not fit beside what is pending.
///
/// The page tables move to a reserved place. Where source and target have the
/// same offset within what a page of page tables maps, the kernel moves whole
/// such pages instead of one entry after the other. All addresses are reserved
/// before anything moves: a later reservation might land where a part has just
/// been.
///
/// # Safety
///
/// Each part must lie in one mapping of anonymous memory that is not locked; of
/// private memory for [`AfterMove::Empty`]. Nothing may rely on the contents of
/// the parts, nor, with [`AfterMove::Unmapped`], use them.
pub(crate) unsafe fn defer_free(
    parts: Vec<PageRange>,
    after: AfterMove,
    destination: Destination,
) -> Vec<PageRange> {
    if parts.is_empty() || register_fork_handlers().is_err() || merged::are_many() {
        return parts;
    }
    let mut queue = QUEUE.lock();
    if !queue.is_own() {
        return parts;
    }
    let bytes = parts.iter().map(|part| part.len()).sum();
    let fitting_bytes = queue.fitting_bytes(bytes, after == AfterMove::Empty);
    let (parts, mut unmoved) = split_parts(parts, fitting_bytes);
    let ([first, ..], [.., last]) = (&*parts, &*parts) else {
        return unmoved;
    };
    let range = PageRange::between(first.start(), last.end());
    queue.wait_for_calls();
    let reservation = queue
        .try_reserve(parts.len() + 1)
        .then(|| reserve_like(range).ok());
    let Some((mut reservation, pages)) = reservation.flatten() else {
        unmoved.extend(parts);
        return unmoved;
    };
    let target = |part: PageRange| {
        let start = pages.start() + (part.start() - range.start());
        PageRange::between(start, start + part.len())
    };
    let (moved, left): (Vec<PageRange>, Vec<PageRange>) = parts.into_iter().partition(|part| {
        let target = target(*part);
        // SAFETY: nothing uses the part, or nothing relies on its contents, as
        // `after` requires (the caller's contract); the target was reserved
        // above, and no other code knows it.
        let answer = unsafe {
            match after {
                AfterMove::Unmapped => map::move_away(*part, target.start()),
                AfterMove::Empty => map::move_pages_away(*part, target.start()),
            }
        };
        if answer.is_err() {
            reservation.map_failed(target);
        }
        answer.is_ok()
    });
    unmoved.extend(left);
    if moved.is_empty() {
        // SAFETY: reserved above and used by nobody.
        unsafe { reservation.unmap() };
        return unmoved;
    }
    let targets = moved.into_iter().map(target);
    enqueue(queue, &reservation, pages, targets, destination);
    unmoved
}

/// Does what [`defer_free`] does with a range that is one mapping of private anonymous
/// memory, where all of it may be deferred. Returns `false` otherwise, with the range
/// mapped as before. (If it was MADV_WIPEONFORK it no longer is.)
///
/// It reads no list of mappings from `/proc`, whose files take some 30 µs to open once the
/// caches are cold, and needs no memory.
///
/// # Safety
///
/// No part of the range may be locked, and nothing may use it any more.
pub(crate) unsafe fn defer_free_of_mapping(range: PageRange, destination: Destination) -> bool {
    if register_fork_handlers().is_err() || merged::are_many() {
        return false;
    }
    let mut queue = QUEUE.lock();
    if !queue.is_own()
        || queue.fitting_bytes(range.len(), true) < range.len()
        || !queue.try_reserve(2)
    {
        return false;
    }
    queue.wait_for_calls();
    // The kernel takes this advice for private anonymous memory alone.
    // SAFETY: nothing uses the range any more (the caller's contract), in no child either.
    let is_private = unsafe { advise_destructive(range, DestructiveAdvice::WipeOnFork) }.is_ok();
    let moved = is_private.then(|| {
        // SAFETY: nothing uses the range any more (the caller's contract).
        unsafe { move_mapping(range) }
    });
    let Some((reservation, pages)) = moved.flatten() else {
        // The kernel may refuse to unmap the range, too (`mseal(2)`): children have it then.
        // It may have taken the advice for the first of several mappings.
        let _ = advise(range, Advice::KeepOnFork);
        return false;
    };
    enqueue(queue, &reservation, pages, iter::once(pages), destination);
    true
}

/// Moves a range that is one mapping to addresses that it reserves. Returns the reservation
/// and the part with the pages; `None` with the range mapped as before.
///
/// # Safety
///
/// Nothing may use the range any more.
unsafe fn move_mapping(range: PageRange) -> Option<(Reservation, PageRange)> {
    let (mut reservation, pages) = reserve_like(range).ok()?;
    // SAFETY: nothing uses the range any more (the caller's contract); the target was
    // reserved above, and no other code knows it.
    if unsafe { map::move_mapping_away(range, pages.start()) }.is_ok() {
        return Some((reservation, pages));
    }
    // `reserve_like` leaves a page behind the target.
    reservation.map_failed(PageRange::between(pages.start(), pages.end() + page_size()));
    // SAFETY: reserved above and used by nobody.
    unsafe { reservation.unmap() };
    None
}

/// Leaves the pages that have moved to the `targets` in a reservation to the workers.
fn enqueue(
    mut queue: ForkGuard<Queue>,
    reservation: &Reservation,
    pages: PageRange,
    targets: impl Iterator<Item = PageRange> + Clone,
    destination: Destination,
) {
    for own in reservation.parts() {
        // Neither call can fail on these mappings; if one did, a child would
        // keep the pages, or a dump would include them.
        let _ = advise(own, Advice::DontFork);
        let _ = advise(own, Advice::DontDump);
        let inside = targets.clone().filter(|&target| own.contains(target));
        let moved_bytes = inside.map(PageRange::len).sum();
        let pages = own.intersection(pages);
        queue.push(own, pages.unwrap_or(own), moved_bytes, destination);
    }
    stats::DEFERRED_FREE.done(targets.map(PageRange::len).sum());
    pending::set_free(drain_for_retry);
    let is_first = queue.workers == 0;
    let wanted = if queue.is_memory_short {
        // A worker that waits for a CPU would start the next one too late.
        let workers = max_active(usize::MAX);
        queue.worker_scaling.set_urgent(Some(workers));
        workers
    } else {
        1
    };
    let others = wanted.saturating_sub(queue.workers.max(1));
    queue.workers += others + usize::from(is_first);
    drop(queue);
    if wanted > 1 {
        WORK_ARRIVED.notify_all();
    } else {
        // Another worker that wakes could take the CPU of the caller.
        WORK_ARRIVED.notify_one();
    }
    worker::start_others(others);
    if is_first {
        worker::start_first();
    }
}

/// Waits for pending memory, and empties the page pool, because the kernel has refused memory
/// or addresses.
/// Returns whether another attempt may succeed.
pub(crate) fn drain_for_retry() -> bool {
    let was_pending = pending_bytes() > 0;
    if was_pending {
        // Even a part of the memory may suffice.
        let _ = pool::without_recycling(|| drain(Some(RETRY_TIMEOUT)));
    }
    pool::empty() || was_pending
}

/// Waits for pending memory if more is pending than the headroom has left: the
/// caller is about to take much.
pub(crate) fn drain_if_short() {
    let mut queue = QUEUE.lock();
    let pending_bytes = queue.pending_bytes;
    if pending_bytes > 0 && queue.headroom.is_exceeded_by(pending_bytes) {
        drop(queue);
        let _ = pool::without_recycling(|| drain(Some(RETRY_TIMEOUT)));
    }
}

/// Waits until nothing is pending, for at most `timeout`.
pub(crate) fn drain(timeout: Option<Duration>) -> Result<()> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut queue = QUEUE.lock();
    queue.waiters += 1;
    let answer = loop {
        if queue.pending_bytes == 0 {
            break Ok(());
        }
        let left = match deadline {
            None => RECHECK_INTERVAL,
            Some(deadline) => deadline.saturating_duration_since(Instant::now()),
        };
        if left.is_zero() {
            break Err(Error::TimedOut {
                pending_bytes: queue.pending_bytes,
            });
        }
        (queue, _) = queue.wait(|queue| FREED.wait_timeout(queue, left));
    };
    queue.waiters -= 1;
    answer
}

/// Reads the limits that `defer_free` needs.
pub(crate) fn prepare() {
    let known = Known::find();
    QUEUE.lock().headroom.known = known;
}

/// Returns the pending bytes: moved away and not freed yet.
pub(crate) fn pending_bytes() -> usize {
    QUEUE.lock().pending_bytes
}

/// Reserves addresses for a range of the same length and the same offset within
/// the page-table pages that can move whole, and for one page behind it at least. Returns
/// the reservation, and the part to move to.
pub(in crate::background) fn reserve_like(
    range: PageRange,
) -> std::result::Result<(Reservation, PageRange), Errno> {
    let granule = table_bytes(range.len());
    let wanted = range.len().checked_add(granule).ok_or(Errno::NOMEM)?;
    let reservation = Reservation::new(wanted).map_err(|(_, errno)| errno)?;
    let shift = range.start().wrapping_sub(reservation.range().start()) % granule;
    let start = reservation.range().start() + shift;
    Ok((reservation, PageRange::between(start, start + range.len())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::sys::advise::{LockState, lock_state};
    use crate::ground::sys::{pmd_bytes, pud_bytes};

    #[test]
    fn reserve_like_returns_same_offset_in_granule() {
        for (len, granule) in [(8 << 20, pmd_bytes()), (2 * pud_bytes(), pud_bytes())] {
            let start = 5 * granule + 3 * page_size();
            let range = PageRange::new(start, len).unwrap();
            let (reservation, pages) = reserve_like(range).unwrap();
            assert!(reservation.range().contains(pages));
            assert!(pages.end() < reservation.range().end());
            assert_eq!(pages.len(), range.len());
            assert_eq!(pages.start() % granule, range.start() % granule);
            // SAFETY: reserved above and used by nobody.
            unsafe { reservation.unmap() };
        }
    }

    const LEN: usize = 8 << 20;

    fn filled(memory: crate::Mapping) -> std::mem::ManuallyDrop<crate::Mapping> {
        let mut memory = std::mem::ManuallyDrop::new(memory);
        memory.as_mut_slice().unwrap().fill(7);
        memory
    }

    #[test]
    fn private_anonymous_mapping_moves_whole() {
        // The stack of a worker that starts could be where the mapping has been.
        let other = filled(crate::Mapping::anonymous(LEN).map().unwrap()).range();
        // SAFETY: the test's own memory, which nothing uses any more.
        assert!(unsafe { defer_free_of_mapping(other, Destination::Kernel) });
        drain(None).unwrap();
        let range = filled(crate::Mapping::anonymous(LEN).map().unwrap()).range();
        // SAFETY: the test's own memory, which nothing uses any more.
        assert!(unsafe { defer_free_of_mapping(range, Destination::Kernel) });
        assert_ne!(lock_state(range), Ok(LockState::Unlocked), "it is unmapped");
        drain(None).unwrap();
    }

    #[test]
    fn other_memory_stays_with_its_contents() {
        let several = filled(crate::Mapping::anonymous(LEN).map().unwrap());
        let middle = several.range().start() + LEN / 2;
        let middle = PageRange::between(middle, middle + page_size());
        advise(middle, Advice::DontDump).unwrap();
        let shared = filled(crate::Mapping::shared_anonymous(LEN).map().unwrap());
        let memfd = crate::Mapping::memfd(LEN, crate::MemfdPages::Base);
        let file = filled(memfd.private().map().unwrap());
        for memory in [several, shared, file] {
            // SAFETY: the test's own memory.
            assert!(!unsafe { defer_free_of_mapping(memory.range(), Destination::Kernel) });
            assert!(memory.as_slice().iter().all(|&byte| byte == 7));
            drop(std::mem::ManuallyDrop::into_inner(memory));
        }
    }
}
