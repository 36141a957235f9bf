//! Blocks leave the pool.

use super::BLOCK_BYTES;
use super::arena::{Run, discard};
use super::state::{Block, POOL, Place, filled};
use super::thread;
use crate::background::freeing::reserve_like;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Advice, LockState, advise, lock_state};
use crate::ground::sys::page_mover::{self, PageMover};
use crate::ground::sys::page_runs::populate_write;
use crate::ground::sys::{Errno, map, numa, page_size, pmd_bytes};
use crate::observation::headroom::{Watermark, take};
use crate::observation::stats;

/// Shorter mappings are filled a block at a time: each mapping that the arena's pages have
/// moved to as a whole stays linked with the arena's in the kernel.
const MIN_MAPPING_BYTES: usize = 32 << 20;

/// Whether the pool may fill missing blocks of the program's memory at these addresses.
pub(crate) fn has_blocks_for(range: PageRange) -> bool {
    range.len() >= BLOCK_BYTES && filled() > 0 && page_mover::is_supported()
}

/// Moves blocks to where the range, private anonymous memory of one mapping, has no page at
/// all in a block on a boundary of its size. Returns the parts that are as they were, in order.
///
/// `is_huge` says which blocks suit the memory. All others are left to the kernel, as is
/// locked memory, and memory with a NUMA policy or another userfaultfd.
pub(crate) fn fill(range: PageRange, is_huge: bool) -> Vec<PageRange> {
    let start = range.start().next_multiple_of(BLOCK_BYTES);
    let end = range.end() - range.end() % BLOCK_BYTES;
    let unfilled = vec![range];
    if start >= end
        || filled() == 0
        || lock_state(range) != Ok(LockState::Unlocked)
        || !numa::is_default_policy(Some(start))
    {
        return unfilled;
    }
    let Ok(mover) = PageMover::open() else {
        return unfilled;
    };
    let aligned = PageRange::between(start, end);
    let Ok(destination) = mover.register(aligned) else {
        return unfilled;
    };
    let (mut left, mut at) = (Vec::new(), range.start());
    let mut target = start;
    while target < end {
        let max = (end - target) / BLOCK_BYTES;
        let suits = |block: Block| block.is_huge == is_huge;
        let Some((run, places, blocks)) = POOL.lock().claim_filled(max, false, suits) else {
            break;
        };
        let mut published = Vec::with_capacity(run.count);
        for (place, block) in places.chunks(BLOCK_BYTES).zip(blocks) {
            let (answer, moved) = match revive(place, &[block]) {
                true => {
                    // SAFETY: the place is claimed and holds zeros, which is what the
                    // program's missing pages read as.
                    let (moved, answer) = unsafe { destination.move_pages(place, target) };
                    (answer, moved)
                }
                false => (Err(Errno::NOMEM), 0),
            };
            if answer.is_ok() {
                if at < target {
                    left.push(PageRange::between(at, target));
                }
                at = target + BLOCK_BYTES;
            }
            published.push(match (answer, moved) {
                // Only a page that exists keeps a block whole.
                (Err(Errno::EXIST), 0) => Place::Filled(block),
                (Ok(()), _) => Place::Empty,
                _ => {
                    // SAFETY: the place is claimed.
                    unsafe { discard(place) };
                    stats::POOL_RETURNED_BYTES.add(BLOCK_BYTES);
                    Place::Empty
                }
            });
            target += BLOCK_BYTES;
        }
        POOL.lock().publish_all(run.first, published.into_iter());
    }
    if at < range.end() {
        left.push(PageRange::between(at, range.end()));
    }
    let given_bytes = range.len() - left.iter().map(|part| part.len()).sum::<usize>();
    if given_bytes > 0 {
        stats::POOL_GIVEN.done(given_bytes);
        thread::wake_for_room();
    }
    left
}

/// Maps `len` bytes, whole pages, of zeros that are there, from blocks that lie side by side:
/// `mremap(2)`. `is_huge` says which blocks suit, if not all do. `None` where the pool has
/// too few, or new mappings are locked or under a NUMA policy.
///
/// The mapping is as one by `mmap(2)`: private, readable and writable, without advice.
pub(crate) fn map_mapping(len: usize, is_huge: Option<bool>) -> Option<PageRange> {
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
    let suits = |block: Block| is_huge.is_none_or(|is_huge| block.is_huge == is_huge);
    let (run, places, blocks) = POOL.lock().claim_filled(count, true, suits)?;
    let range = PageRange::between(places.start(), places.start() + len);
    let mapped = match revive(places, &blocks) {
        // SAFETY: the places are claimed.
        true => unsafe { move_out(range) },
        false => None,
    };
    publish_moved(run, places, range, &blocks, mapped.is_some());
    if mapped.is_some() {
        stats::POOL_GIVEN.done(len);
        thread::wake_for_room();
    }
    mapped
}

fn publish_moved(run: Run, places: PageRange, range: PageRange, blocks: &[Block], is_moved: bool) {
    if is_moved && range.end() < places.end() {
        // SAFETY: the places are claimed.
        unsafe { discard(PageRange::between(range.end(), places.end())) };
    }
    let places = blocks.iter().map(|&block| match is_moved {
        true => Place::Empty,
        false => Place::Filled(block),
    });
    POOL.lock().publish_all(run.first, places);
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
unsafe fn move_out(range: PageRange) -> Option<PageRange> {
    // A program may have locked all memory.
    if lock_state(range) != Ok(LockState::Unlocked) {
        return None;
    }
    let (mut reservation, target) = reserve_like(range).ok()?;
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
    moved.ok()?;
    // Without this the mapping would be missing in children and dumps.
    let is_plain = advise(target, Advice::DoFork).is_ok() && advise(target, Advice::DoDump).is_ok();
    if !is_plain {
        // SAFETY: mapped above, and no other code knows the addresses.
        let _ = unsafe { map::unmap(target) };
        return None;
    }
    Some(target)
}
