//! Memory that has been moved out of its owner's way waits here until a worker
//! has freed it.

use std::collections::VecDeque;
use std::sync::{Condvar, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Harmless, Losing, advise, advise_losing};
use crate::ground::sys::fork::{ForkMutex, at_fork};
use crate::ground::sys::{Errno, map, pmd_bytes, process, pud_bytes};

/// What the worker frees in one call: about 2 ms, the longest that another
/// thread's `mmap` waits for it.
const CHUNK_BYTES: usize = 32 << 20;

/// How long the worker waits for more work before it ends.
const LINGER: Duration = Duration::from_secs(1);

/// Memory that nobody can see any more.
#[derive(Debug)]
struct Load {
    /// All addresses that go away, the unused rest of the reservation included.
    reservation: PageRange,
    /// Where the pages are, with gaps where the range had parts that stayed.
    pages: PageRange,
    /// How much of it has been moved there.
    moved_bytes: usize,
}

#[derive(Debug)]
struct Queue {
    loads: VecDeque<Load>,
    /// What `loads` and the worker have in hand.
    pending_bytes: usize,
    worker_runs: bool,
}

impl Queue {
    const EMPTY: Self = Self {
        loads: VecDeque::new(),
        pending_bytes: 0,
        worker_runs: false,
    };
}

/// Held while memory is on its way from its owner to the queue, so that a fork
/// finds it in one place or the other.
static QUEUE: ForkMutex<Queue> = ForkMutex::new(Queue::EMPTY);
static ARRIVED: Condvar = Condvar::new();
static FREED: Condvar = Condvar::new();

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
/// Each part must lie in the range, in one mapping of private anonymous memory
/// that is not locked. Nothing may rely on the contents of the parts, nor, with
/// [`Leave::Unmapped`], use them.
pub(crate) unsafe fn carry_off(
    range: PageRange,
    parts: Vec<PageRange>,
    leave: Leave,
) -> Vec<PageRange> {
    if parts.is_empty() || keep_out_of_children().is_err() {
        return parts;
    }
    let mut queue = QUEUE.lock();
    if queue.pending_bytes >= bound_bytes() || queue.loads.try_reserve(1).is_err() {
        return parts;
    }
    let Ok((reservation, pages)) = reserve_like(range) else {
        return parts;
    };
    let (moved, left): (Vec<PageRange>, Vec<PageRange>) = parts.into_iter().partition(|part| {
        let target = pages.start() + (part.start() - range.start());
        // SAFETY: the caller gives up the part or its contents; the target was
        // reserved above and nobody else knows of it.
        let answer = unsafe {
            match leave {
                Leave::Unmapped => map::move_away(*part, target),
                Leave::Empty => map::move_pages_away(*part, target),
            }
        };
        answer.is_ok()
    });
    let moved_bytes: usize = moved.iter().map(|part| part.len()).sum();
    if moved_bytes == 0 {
        // SAFETY: reserved above and used by nobody. If unmapping fails (no
        // room to split a mapping), addresses stay reserved, no memory.
        let _ = unsafe { map::unmap(reservation) };
        return left;
    }
    // Neither call can be refused on mappings of ours; were they, a child would
    // keep the pages, or a dump would show them.
    let _ = advise(reservation, Harmless::DontFork);
    let _ = advise(pages, Harmless::DontDump);

    queue.pending_bytes += moved_bytes;
    queue.loads.push_back(Load {
        reservation,
        pages,
        moved_bytes,
    });
    let start_worker = !queue.worker_runs;
    queue.worker_runs = true;
    drop(queue);
    ARRIVED.notify_one();
    if start_worker && process::spawn_quiet("tenure-free", work).is_err() {
        // No thread to be had: this one does the work. Whoever comes after it
        // tries again.
        QUEUE.lock().worker_runs = false;
        free_all();
    }
    left
}

/// Waits until everything that was carried off is freed, for `timeout` at most.
pub(crate) fn drain(timeout: Option<Duration>) -> Result<()> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut queue = QUEUE.lock();
    while queue.pending_bytes > 0 {
        let left = match deadline {
            None => LINGER,
            Some(deadline) => deadline.saturating_duration_since(Instant::now()),
        };
        if left.is_zero() {
            return Err(Error::TimedOut {
                pending_bytes: queue.pending_bytes,
            });
        }
        queue = FREED
            .wait_timeout(queue, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
    Ok(())
}

/// Reserves room for a range of the same length and the same offset within the
/// page-table pages that can be moved whole. Returns all that is reserved, and
/// the part to move to.
fn reserve_like(range: PageRange) -> std::result::Result<(PageRange, PageRange), Errno> {
    let granule = if range.len() >= pud_bytes() {
        pud_bytes()
    } else {
        pmd_bytes()
    };
    let wanted = range.len().checked_add(granule).ok_or(Errno::NOMEM)?;
    let reservation = map::reserve(wanted)?;
    let shift = range.start().wrapping_sub(reservation.start()) % granule;
    let start = reservation.start() + shift;
    Ok((reservation, PageRange::between(start, start + range.len())))
}

/// How much may be pending before callers free their memory themselves.
fn bound_bytes() -> usize {
    static BOUND_BYTES: OnceLock<usize> = OnceLock::new();
    *BOUND_BYTES.get_or_init(|| process::mem_total_bytes().map_or(1 << 30, |total| total / 4))
}

/// The worker: frees what comes, and ends when nothing has come for a while.
fn work() {
    loop {
        free_all();
        let queue = QUEUE.lock();
        let (mut queue, waited) = ARRIVED
            .wait_timeout_while(queue, LINGER, |queue| queue.loads.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() && queue.loads.is_empty() {
            queue.worker_runs = false;
            return;
        }
    }
}

fn free_all() {
    loop {
        let Some(load) = QUEUE.lock().loads.pop_front() else {
            return;
        };
        for chunk in load.pages.chunks(CHUNK_BYTES) {
            // SAFETY: the load is this function's own; nobody else knows the
            // addresses. A refusal leaves the work to the unmapping.
            let _ = unsafe { advise_losing(chunk, Losing::DontNeed) };
        }
        // SAFETY: as above. If it fails (no room to split a mapping that has
        // merged with a neighbour), addresses stay reserved, no memory.
        let _ = unsafe { map::unmap(load.reservation) };
        QUEUE.lock().pending_bytes -= load.moved_bytes;
        FREED.notify_all();
    }
}

/// Has children begin with an empty queue and no worker: what is pending here
/// is not mapped there.
fn keep_out_of_children() -> std::result::Result<(), Errno> {
    unsafe extern "C" fn prepare() {
        QUEUE.hold();
    }
    unsafe extern "C" fn parent() {
        // SAFETY: `prepare` has run in this thread.
        unsafe { QUEUE.let_go(|_| ()) };
    }
    unsafe extern "C" fn child() {
        // A `Load` owns nothing that the allocator would have to free.
        // SAFETY: `prepare` has run in the thread that this is a copy of.
        unsafe {
            QUEUE.let_go(|queue| {
                queue.loads.clear();
                queue.pending_bytes = 0;
                queue.worker_runs = false;
            });
        }
    }
    static REGISTERED: OnceLock<std::result::Result<(), Errno>> = OnceLock::new();
    *REGISTERED.get_or_init(|| at_fork(prepare, parent, child))
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
            assert!(reservation.contains(pages));
            assert_eq!(pages.len(), range.len());
            assert_eq!(pages.start() % granule, range.start() % granule);
            // SAFETY: reserved above and used by nobody.
            unsafe { map::unmap(reservation) }.unwrap();
        }
    }
}
