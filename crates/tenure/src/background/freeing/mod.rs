//! Memory that has been moved out of its owner's way waits here until workers
//! have freed it.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod limits;
mod queue;
mod tempo;
mod worker;

pub use limits::ReleaseLimits;

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use self::limits::max_pending_bytes;
use self::queue::{ARRIVED, FREED, QUEUE, keep_out_of_children};
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Harmless, advise};
use crate::ground::sys::reservation::Reservation;
use crate::ground::sys::{Errno, map, pmd_bytes, pud_bytes};
use crate::observation::stats;

/// How long to wait between looks whether all is freed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What becomes of the range whose pages are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// Nothing: it is unmapped.
    Unmapped,
    /// It stays mapped and reads as zeros.
    Empty,
}

/// Takes the pages of `parts` of the range away, in a time that hardly depends
/// on their number, and has them freed later. Returns the parts whose pages are
/// still where they were, because the kernel did not move them or too much is
/// pending already.
///
/// The page tables are moved with `mremap` to a reserved place. Where source
/// and target have the same offset within what a page of page tables maps, the
/// kernel moves whole such pages instead of one entry after the other. All room
/// is reserved before anything moves: later it might be found where a part of
/// the range has just been.
///
/// # Safety
///
/// Each part must lie in the range, in one mapping of anonymous memory that is
/// not locked; of private memory for [`Leave::Empty`]. Nothing may rely on the
/// contents of the parts, nor, with [`Leave::Unmapped`], use them.
pub(crate) unsafe fn carry_off(
    range: PageRange,
    parts: Vec<PageRange>,
    leave: Leave,
) -> Vec<PageRange> {
    if parts.is_empty() || keep_out_of_children().is_err() {
        return parts;
    }
    let mut queue = QUEUE.lock();
    if queue.pending_bytes >= max_pending_bytes() || !queue.has_places(parts.len() + 1) {
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
        // SAFETY: the caller gives up the part or its contents; the target was
        // reserved above and nobody else knows of it.
        let answer = unsafe {
            match leave {
                Leave::Unmapped => map::move_away(*part, target.start()),
                Leave::Empty => map::move_pages_away(*part, target.start()),
            }
        };
        if answer.is_err() {
            reservation.refused(target);
        }
        answer.is_ok()
    });
    if moved.is_empty() {
        // SAFETY: reserved above and used by nobody.
        unsafe { reservation.unmap() };
        return left;
    }
    for ours in reservation.parts() {
        // Neither call can be refused on mappings of ours; were they, a child
        // would keep the pages, or a dump would show them.
        let _ = advise(ours, Harmless::DontFork);
        let _ = advise(ours, Harmless::DontDump);
        let targets = moved.iter().map(|&part| target(part));
        let inside = targets.filter(|&target| ours.contains(target));
        let moved_bytes = inside.map(PageRange::len).sum();
        let pages = ours.intersection(pages);
        queue.push(ours, pages.unwrap_or(ours), moved_bytes);
    }
    stats::CARRIED_OFF.done(moved.iter().map(|part| part.len()).sum());
    let start_worker = queue.workers == 0;
    if start_worker {
        queue.workers = 1;
    }
    drop(queue);
    ARRIVED.notify_all();
    if start_worker {
        worker::start_first();
    }
    left
}

/// Waits until everything that was carried off is freed, for `timeout` at most.
pub(crate) fn drain(timeout: Option<Duration>) -> Result<()> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut queue = QUEUE.lock();
    queue.waiting += 1;
    let answer = loop {
        if queue.pending_bytes == 0 {
            break Ok(());
        }
        let left = match deadline {
            None => LOOK_EVERY,
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
    queue.waiting -= 1;
    answer
}

/// Makes what carrying off needs, if that has not been done.
pub(crate) fn prepare() {
    let _ = keep_out_of_children();
    max_pending_bytes();
}

/// What has been carried off and is not freed yet.
pub(crate) fn pending_bytes() -> usize {
    QUEUE.lock().pending_bytes
}

/// Reserves room for a range of the same length and the same offset within the
/// page-table pages that can be moved whole. Returns all that is reserved, and
/// the part to move to.
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
    fn reserves_a_place_with_the_same_offset() {
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
