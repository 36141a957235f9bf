//! Blocks leave the pool.

use std::convert::Infallible;

use super::BLOCK_BYTES;
use super::arena::{Run, discard, free_lazily};
use super::state::{Block, POOL, Place, filled};
use super::thread;
use crate::background::freeing::reserve_like;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Advice, LockState, advise, lock_state};
use crate::ground::sys::page_mover::{self, PageMover};
use crate::ground::sys::page_runs::populate_write;
use crate::ground::sys::{Errno, map, numa, page_size, pagemap, pmd_bytes};
use crate::observation::headroom::{Watermark, take};
use crate::observation::stats;

/// Shorter mappings are filled a block at a time: each mapping that the arena's pages have
/// moved to as a whole stays linked with the arena's in the kernel.
const MIN_MAPPING_BYTES: usize = 32 << 20;

/// Whether the pool may fill missing blocks of the program's memory at these addresses.
pub(crate) fn has_blocks_for(range: PageRange) -> bool {
    if range.len() < BLOCK_BYTES {
        return false;
    }
    thread::note_use();
    filled() > 0 && page_mover::is_supported()
}

/// Fills the blocks of the range, on boundaries of their size, in which it has no page, as far
/// as the pool has any. Returns the bytes that are filled now: zeros, of which the first write
/// takes no page fault. The rest is as it was.
///
/// It is no use for which [prefilling](super::PoolOptions::prefill_on_use) waits: most of what a heap
/// makes blocks of is memory that it has kept, and the pool would fill itself for nothing.
///
/// A heap calls it for addresses that it has reserved and is about to use: it takes no memory
/// from the allocator, and waits for nothing but for other threads' short use of the pool. It
/// fills nothing while a fork is under way, which may wait for the caller. `is_huge` says whether huge pages or base pages suit the memory, if
/// not both do.
///
/// # Safety
///
/// The range must be private anonymous memory, readable and writable, of which no other code
/// relies on missing pages, as the handler of a userfaultfd does. A block that lies in several
/// mappings is left out.
#[doc(hidden)]
pub unsafe fn fill_missing(range: PageRange, is_huge: Option<bool>) -> usize {
    if range.len() < BLOCK_BYTES || filled() == 0 || !page_mover::is_supported() {
        return 0;
    }
    let mut unfilled_bytes = 0;
    let open = PageMover::open_unless_forking;
    let Ok(()) = fill_with(open, range, is_huge, |part| {
        unfilled_bytes += part.len();
        Ok::<(), Infallible>(())
    });
    range.len() - unfilled_bytes
}

/// How many blocks are registered at once: as many as a word has bits.
const MAX_REGISTERED: usize = 64;

/// Moves blocks to where the range, private anonymous memory of one mapping, has no page at
/// all in a block on a boundary of its size. Calls `unfilled` for the parts that are as they
/// were, in order. It takes no memory of the allocator, so that a heap can call it.
///
/// `is_huge` says which blocks suit the memory, if not all do. All others are left to the
/// kernel, as is locked memory, and memory with a NUMA policy or another userfaultfd.
pub(crate) fn fill<E>(
    range: PageRange,
    is_huge: Option<bool>,
    unfilled: impl FnMut(PageRange) -> Result<(), E>,
) -> Result<(), E> {
    fill_with(PageMover::open, range, is_huge, unfilled)
}

fn fill_with<E>(
    open: fn() -> Result<PageMover, Errno>,
    range: PageRange,
    is_huge: Option<bool>,
    mut unfilled: impl FnMut(PageRange) -> Result<(), E>,
) -> Result<(), E> {
    let start = range.start().next_multiple_of(BLOCK_BYTES).min(range.end());
    let end = (range.end() - range.end() % BLOCK_BYTES).max(start);
    let mut at = range.start();
    let mut given_bytes = 0;
    for part in PageRange::between(start, end).chunks(MAX_REGISTERED * BLOCK_BYTES) {
        let candidates = missing_blocks(part);
        if candidates == 0 || !is_fillable(part) {
            continue;
        }
        let filled = open().map_or(0, |mover| fill_blocks(&mover, part, candidates, is_huge));
        given_bytes += filled.count_ones() as usize * BLOCK_BYTES;
        for (number, block) in part.chunks(BLOCK_BYTES).enumerate() {
            if filled >> number & 1 == 0 {
                continue;
            }
            if at < block.start() {
                unfilled(PageRange::between(at, block.start()))?;
            }
            at = block.end();
        }
    }
    if given_bytes > 0 {
        stats::POOL_GIVEN.done(given_bytes);
        thread::wake_for_room();
    }
    match at < range.end() {
        true => unfilled(PageRange::between(at, range.end())),
        false => Ok(()),
    }
}

/// Returns whether a block suits: a huge page, or base pages, or either.
fn suits(is_huge: Option<bool>) -> impl Fn(Block) -> bool {
    move |block| is_huge.is_none_or(|is_huge| block.is_huge == is_huge)
}

fn is_fillable(range: PageRange) -> bool {
    filled() > 0
        && lock_state(range) == Ok(LockState::Unlocked)
        && numa::is_default_policy(Some(range.start()))
        && numa::is_default_policy(None)
}

/// Returns a bit for each block of the range, which is set if the block's first page is
/// missing: the others are hardly ever, and to find that out here takes less than to register
/// them.
fn missing_blocks(range: PageRange) -> u64 {
    let blocks = range.chunks(BLOCK_BYTES).enumerate();
    blocks.fold(0, |missing, (number, block)| {
        missing | u64::from(!pagemap::is_resident(block.start())) << number
    })
}

/// Fills blocks of the range, all of which lies on boundaries of blocks, of which the bits in
/// `candidates` are set. Returns a bit for each, which is set if it is filled.
fn fill_blocks(mover: &PageMover, range: PageRange, candidates: u64, is_huge: Option<bool>) -> u64 {
    let mut filled = 0;
    // Not before the mover is open: a fork under way holds the mutex.
    if !POOL.lock().has_block(suits(is_huge)) {
        return filled;
    }
    let Ok(destination) = mover.register(range) else {
        return filled;
    };
    let near = numa::own_node();
    for (number, target) in range.chunks(BLOCK_BYTES).enumerate() {
        if candidates >> number & 1 == 0 {
            continue;
        }
        let Some((from, place, block)) = POOL.lock().claim_block(near, suits(is_huge)) else {
            break;
        };
        let answer = match revive(place, &[block]) {
            // SAFETY: the place is claimed and holds zeros, which is what the program's
            // missing pages read as.
            true => unsafe { destination.move_pages(place, target.start()) },
            false => (0, Err(Errno::NOMEM)),
        };
        let now = match answer {
            (_, Ok(())) => Place::Empty,
            // Pages exist there, or the kernel does not move any to such memory.
            (0, Err(errno)) if errno != Errno::NOENT && errno != Errno::BUSY => {
                // SAFETY: the place is claimed, and zeros.
                unsafe { keep(place, block) }
            }
            // A part has moved, or the block is not whole.
            (_, Err(_)) => {
                // SAFETY: the place is claimed.
                unsafe { discard(place) };
                stats::POOL_RETURNED_BYTES.add(BLOCK_BYTES);
                Place::Empty
            }
        };
        POOL.lock().publish(from, now);
        match answer.1 {
            Ok(()) => filled |= 1 << number,
            Err(Errno::EXIST | Errno::NOENT | Errno::BUSY | Errno::AGAIN) => {}
            Err(_) => break,
        }
    }
    filled
}

/// Returns the state of a block that stays in its place. One that was lazily free becomes so
/// again, because all of it is there now.
///
/// # Safety
///
/// The place must be claimed, and zeros.
unsafe fn keep(place: PageRange, block: Block) -> Place {
    // SAFETY: the place is claimed, and zeros stay zeros.
    match !block.is_lazy || unsafe { free_lazily(place) } {
        true => Place::Filled(block),
        false => {
            // SAFETY: the place is claimed.
            unsafe { discard(place) };
            stats::POOL_RETURNED_BYTES.add(BLOCK_BYTES);
            Place::Empty
        }
    }
}

/// Maps `len` bytes, whole pages, of zeros that are there, from blocks that lie side by side:
/// `mremap(2)`. `is_huge` says which blocks suit, if not all do. `None` where the pool has
/// too few, or new mappings are locked or under a NUMA policy.
///
/// The mapping is as one by `mmap(2)`: private, readable and writable, without advice.
pub(crate) fn map_mapping(len: usize, is_huge: Option<bool>) -> Option<PageRange> {
    if len >= BLOCK_BYTES {
        thread::note_use();
    }
    let count = len.div_ceil(BLOCK_BYTES);
    // The arena's pages may have no huge pages there, which advice cannot undo.
    let is_plain = pmd_bytes() == BLOCK_BYTES || is_huge == Some(false);
    if len < MIN_MAPPING_BYTES && page_mover::is_supported()
        || len < BLOCK_BYTES
        || filled() < count
        || !is_plain
        || !numa::is_default_policy(None)
    {
        return None;
    }
    let near = numa::own_node();
    let (run, places, blocks) = POOL
        .lock()
        .claim_filled(count, true, near, suits(is_huge))?;
    let range = PageRange::between(places.start(), places.start() + len);
    let moved = match revive(places, &blocks) {
        // SAFETY: the places are claimed.
        true => unsafe { move_out(range) },
        false => Moved::Nothing,
    };
    publish_moved(run, places, range, &blocks, moved);
    let Moved::To(mapped) = moved else {
        return None;
    };
    stats::POOL_GIVEN.done(len);
    thread::wake_for_room();
    Some(mapped)
}

/// Where the pages of a range of the arena are.
#[derive(Clone, Copy, Debug)]
enum Moved {
    Nothing,
    /// They are gone.
    Nowhere,
    To(PageRange),
}

fn publish_moved(run: Run, places: PageRange, range: PageRange, blocks: &[Block], moved: Moved) {
    let are_there = matches!(moved, Moved::Nothing);
    if !are_there && range.end() < places.end() {
        // SAFETY: the places are claimed.
        unsafe { discard(PageRange::between(range.end(), places.end())) };
    }
    let each = places.chunks(BLOCK_BYTES).zip(blocks);
    let states: Vec<Place> = each
        .map(|(place, &block)| match are_there {
            // SAFETY: the place is claimed, and zeros.
            true => unsafe { keep(place, block) },
            false => Place::Empty,
        })
        .collect();
    POOL.lock().publish_all(run.first, states.into_iter());
}

/// Takes lazily freed places back from the kernel. Returns whether all pages are there.
fn revive(places: PageRange, blocks: &[Block]) -> bool {
    let each = places.chunks(BLOCK_BYTES).zip(blocks);
    let mut lazy = each.filter(|(_, block)| block.is_lazy);
    lazy.all(|(place, _)| {
        // The kernel may have taken all of it.
        let admission = take(BLOCK_BYTES, Watermark::Min);
        admission.is_some_and(|admission| {
            let answer = populate_write(place);
            admission.mark_resident(BLOCK_BYTES);
            answer.is_ok()
        })
    })
}

/// Moves the pages of a range of the arena to a new mapping.
///
/// # Safety
///
/// The places of the range must be claimed.
unsafe fn move_out(range: PageRange) -> Moved {
    // A program may have locked all memory.
    if lock_state(range) != Ok(LockState::Unlocked) {
        return Moved::Nothing;
    }
    let Ok((mut reservation, target)) = reserve_like(range) else {
        return Moved::Nothing;
    };
    // New mappings are locked where the reservation is (MCL_FUTURE).
    let first_page = PageRange::between(target.start(), target.start() + page_size());
    let moved = match lock_state(first_page) {
        // SAFETY: the places are claimed; the target was reserved above, and no other code
        // knows it.
        Ok(LockState::Unlocked) => unsafe { map::move_pages_away(range, target.start()) },
        _ => Err(Errno::BUSY),
    };
    match moved {
        Ok(()) => reservation.disown(target),
        Err(Errno::BUSY) => {}
        Err(_) => reservation.map_failed(target),
    }
    // SAFETY: nobody uses the rest of the reservation.
    unsafe { reservation.unmap() };
    if moved.is_err() {
        return Moved::Nothing;
    }
    // Without this the mapping would be missing in children and dumps.
    if advise(target, Advice::DoFork).is_ok() && advise(target, Advice::DoDump).is_ok() {
        return Moved::To(target);
    }
    // SAFETY: mapped above, and no other code knows the addresses.
    let _ = unsafe { map::unmap(target) };
    Moved::Nowhere
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::background::pool::arena::Arena;
    use crate::ground::sys::advise::flush_lazyfree_batch;
    use crate::ground::sys::pagemap::PageState;
    use crate::observation::headroom::refresh;

    #[test]
    fn block_that_stays_in_place_is_lazily_free_again() {
        let block = Block {
            is_huge: false,
            is_lazy: true,
            node: None,
            since_secs: 0,
        };
        let arena = Arena::map(1).unwrap();
        let place = arena.range(Run { first: 0, count: 1 });
        refresh().unwrap();
        // A kernel before 5.14 cannot populate it, and where memory is short nothing is revived.
        // SAFETY: no other code knows the place, which has no contents.
        if populate_write(place).is_ok() && unsafe { free_lazily(place) } && revive(place, &[block])
        {
            // SAFETY: as above.
            assert_eq!(unsafe { keep(place, block) }, Place::Filled(block));
            flush_lazyfree_batch();
            advise(place, Advice::PageOut).unwrap();
            let runs = pagemap::scan(place).unwrap();
            let absent = runs.iter().filter(|run| run.state == PageState::Absent);
            let absent_bytes: usize = absent.map(|run| run.range.len()).sum();
            assert!(absent_bytes > BLOCK_BYTES / 2, "the kernel cannot take it");
        }
        // SAFETY: no other code knows the addresses.
        unsafe { arena.unmap() }.unwrap();
    }
}
