//! Deferred frees: memory that `mremap` has moved out of its owner's way is
//! pending in a queue until workers have freed it.
//!
//! A release reserves a place with the same offset within 1 GiB (or 2 MiB),
//! moves the pages there with `mremap`, and leaves them to the workers.
//! [`Mapping`](crate::Mapping) puts memory of a GiB or more on a boundary of 1
//! GiB: page tables then move a GiB at a step. All addresses are reserved
//! before anything moves. Moved memory is neither dumped nor inherited.
//!
//! Workers take chunks of about 1 ms from the oldest job. While much is left,
//! one more worker is tried, and kept if freeing is a tenth faster
//! ([`worker_scaling`]). While a thread waits for the memory, or the headroom
//! is less than the pending bytes, there are as many workers as allowed, and
//! they run without SCHED_BATCH.
//!
//! While more than a quarter of the machine's memory, or of a cgroup's limit,
//! is pending ([`limits`]), callers free their memory themselves; populate
//! waits for pending memory before it fails. Only anonymous memory moves:
//! memory with a file (seals, file locks, unmounting, drivers) must be unmapped
//! when munmap returns, and locked memory must be uncharged. The caller frees
//! memory that cannot move, in chunks.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod limits;
mod queue;
mod worker;
mod worker_scaling;

pub use limits::ReleaseLimits;

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use self::limits::max_pending_bytes;
pub(crate) use self::queue::register_fork_handlers;
use self::queue::{FREED, QUEUE, WORK_ARRIVED};
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Advice, advise};
use crate::ground::sys::reservation::Reservation;
use crate::ground::sys::{Errno, map, pmd_bytes, pud_bytes};
use crate::observation::stats;

/// How often a waiter without a deadline checks whether all is freed.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The state of a range after its pages have moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterMove {
    /// The range is unmapped.
    Unmapped,
    /// The range stays mapped and reads as zeros.
    Empty,
}

/// Moves the pages of `parts` of the range away, in a time that hardly depends
/// on their number, and defers freeing them: `mremap(2)`. Returns the parts
/// whose pages are still in place, because the kernel did not move them or too
/// much is pending already.
///
/// The page tables move to a reserved place. Where source and target have the
/// same offset within what a page of page tables maps, the kernel moves whole
/// such pages instead of one entry after the other. All addresses are reserved
/// before anything moves: a later reservation might land where a part of the
/// range has just been.
///
/// # Safety
///
/// Each part must lie in the range, in one mapping of anonymous memory that is
/// not locked; of private memory for [`AfterMove::Empty`]. Nothing may rely on the
/// contents of the parts, nor, with [`AfterMove::Unmapped`], use them.
pub(crate) unsafe fn defer_free(
    range: PageRange,
    parts: Vec<PageRange>,
    after: AfterMove,
) -> Vec<PageRange> {
    if parts.is_empty() || register_fork_handlers().is_err() {
        return parts;
    }
    let mut queue = QUEUE.lock();
    if queue.pending_bytes >= max_pending_bytes() || !queue.try_reserve(parts.len() + 1) {
        return parts;
    }
    let Ok((mut reservation, pages)) = reserve_like(range) else {
        return parts;
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
    if moved.is_empty() {
        // SAFETY: reserved above and used by nobody.
        unsafe { reservation.unmap() };
        return left;
    }
    for own in reservation.parts() {
        // Neither call can fail on these mappings; if one did, a child would
        // keep the pages, or a dump would include them.
        let _ = advise(own, Advice::DontFork);
        let _ = advise(own, Advice::DontDump);
        let targets = moved.iter().map(|&part| target(part));
        let inside = targets.filter(|&target| own.contains(target));
        let moved_bytes = inside.map(PageRange::len).sum();
        let pages = own.intersection(pages);
        queue.push(own, pages.unwrap_or(own), moved_bytes);
    }
    stats::DEFERRED_FREE.done(moved.iter().map(|part| part.len()).sum());
    let start_worker = queue.workers == 0;
    if start_worker {
        queue.workers = 1;
    }
    drop(queue);
    WORK_ARRIVED.notify_all();
    if start_worker {
        worker::start_first();
    }
    left
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
        queue = FREED
            .wait_timeout(queue, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    };
    queue.waiters -= 1;
    answer
}

/// Reads the limits that `defer_free` needs, unless that has been done.
pub(crate) fn prepare() {
    max_pending_bytes();
}

/// Returns the pending bytes: moved away and not freed yet.
pub(crate) fn pending_bytes() -> usize {
    QUEUE.lock().pending_bytes
}

/// Reserves addresses for a range of the same length and the same offset within
/// the page-table pages that can move whole. Returns the reservation, and the
/// part to move to.
fn reserve_like(range: PageRange) -> std::result::Result<(Reservation, PageRange), Errno> {
    let granule = if range.len() >= pud_bytes() {
        pud_bytes()
    } else {
        pmd_bytes()
    };
    let wanted = range.len().checked_add(granule).ok_or(Errno::NOMEM)?;
    let reservation = Reservation::new(wanted).map_err(|(_, errno)| errno)?;
    let shift = range.start().wrapping_sub(reservation.range().start()) % granule;
    let start = reservation.range().start() + shift;
    Ok((reservation, PageRange::between(start, start + range.len())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::sys::page_size;

    #[test]
    fn reserve_like_returns_same_offset_in_granule() {
        for (len, granule) in [(8 << 20, pmd_bytes()), (2 * pud_bytes(), pud_bytes())] {
            let start = 5 * granule + 3 * page_size();
            let range = PageRange::new(start, len).unwrap();
            let (reservation, pages) = reserve_like(range).unwrap();
            assert!(reservation.range().contains(pages));
            assert_eq!(pages.len(), range.len());
            assert_eq!(pages.start() % granule, range.start() % granule);
            // SAFETY: reserved above and used by nobody.
            unsafe { reservation.unmap() };
        }
    }
}
