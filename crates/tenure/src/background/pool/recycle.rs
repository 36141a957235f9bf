//! Released memory enters the pool.

use super::BLOCK_BYTES;
use super::arena::{Run, discard, discard_dirty, free_lazily};
use super::shrink::{is_memory_ample, may_keep};
use super::state::{Block, POOL, Place, is_on};
use super::thread;
use crate::ground::range::PageRange;
use crate::ground::sys::page_mover::{self, PageMover};
use crate::ground::sys::pagemap::{self, PageState};
use crate::ground::sys::process::monotonic_nanos;
use crate::ground::sys::zero::write_zeros;
use crate::ground::sys::{Errno, numa, pmd_bytes};
use crate::observation::stats;

/// Whether released memory may enter the pool.
pub(in crate::background) fn is_recycling() -> bool {
    is_on() && may_keep() && page_mover::is_supported()
}

/// Moves what fits of a chunk of released memory into the pool and zeroes it. Returns the
/// parts whose pages are still in place, in order.
///
/// A block is taken whole or not at all: its pages must all be there, because zeroing would
/// take memory for those that are not, and none may be in swap or shared with a child.
///
/// # Safety
///
/// Nothing may use the chunk any more.
pub(in crate::background) unsafe fn recycle(chunk: PageRange) -> Vec<PageRange> {
    let mut left = Vec::new();
    let blocks = whole_blocks(chunk).unwrap_or_default();
    let mut at = chunk.start();
    let mut next = 0;
    while next < blocks.len() {
        let Some((run, range)) = POOL.lock().claim_empty(blocks.len() - next) else {
            break;
        };
        let taken = &blocks[next..next + run.count];
        next += run.count;
        // SAFETY: nothing uses the chunk any more (the caller's contract), and the places
        // are claimed.
        let moved = unsafe { take(taken, range) };
        publish(run, range, taken, &moved);
        for (block, is_moved) in taken.iter().zip(moved) {
            if is_moved {
                left.push(PageRange::between(at, block.start));
                at = block.start + BLOCK_BYTES;
            }
        }
    }
    left.push(PageRange::between(at, chunk.end()));
    left.retain(|part| !part.is_empty());
    left
}

/// A block of released memory.
#[derive(Clone, Copy, Debug)]
struct Released {
    start: usize,
    is_huge: bool,
}

/// Returns the blocks of the chunk, on boundaries of their size, all of whose pages are there.
fn whole_blocks(chunk: PageRange) -> Result<Vec<Released>, Errno> {
    let runs = pagemap::scan(chunk)?;
    let huge = match pmd_bytes() == BLOCK_BYTES {
        true => pagemap::huge_parts(chunk)?,
        false => Vec::new(),
    };
    let present = runs.iter().filter(|run| run.state == PageState::Present);
    let starts = present.flat_map(|run| {
        let first = run.range.start().next_multiple_of(BLOCK_BYTES);
        (first..run.range.end())
            .step_by(BLOCK_BYTES)
            .filter(|start| start + BLOCK_BYTES <= run.range.end())
    });
    let is_huge = |start| {
        let block = PageRange::between(start, start + BLOCK_BYTES);
        huge.iter().any(|part| part.contains(block))
    };
    Ok(starts
        .map(|start| Released {
            start,
            is_huge: is_huge(start),
        })
        .collect())
}

/// Moves the blocks to places, one to each, and zeroes them. Returns which of them moved.
///
/// # Safety
///
/// Nothing may use the blocks any more, and the places must be claimed.
unsafe fn take(blocks: &[Released], places: PageRange) -> Vec<bool> {
    // SAFETY: the conditions are the same.
    let moved = unsafe { move_to(blocks, places) }.unwrap_or_default();
    // Nothing is registered any more, and forks do not wait for this.
    let places = places.chunks(BLOCK_BYTES).zip(moved);
    let zero = places.map(|(place, is_moved)| {
        if is_moved {
            // SAFETY: the place is claimed and writable. A page that the kernel has reclaimed
            // meanwhile is one of zeros.
            unsafe { write_zeros(place) };
        }
        is_moved
    });
    zero.chain(std::iter::repeat(false))
        .take(blocks.len())
        .collect()
}

/// Moves the blocks to places, one to each. Returns which of them moved; all others are empty.
///
/// # Safety
///
/// Nothing may use the blocks any more, and the places must be claimed.
unsafe fn move_to(blocks: &[Released], places: PageRange) -> Result<Vec<bool>, Errno> {
    let mover = PageMover::open()?;
    let destination = mover.register_untouched(places)?;
    let mut moved = Vec::with_capacity(blocks.len());
    let mut partly_moved = Vec::new();
    for (block, place) in blocks.iter().zip(places.chunks(BLOCK_BYTES)) {
        let from = PageRange::between(block.start, block.start + BLOCK_BYTES);
        // SAFETY: nothing uses the block any more (the caller's contract), and nobody sees
        // the place before it is zeroed.
        let move_block = || unsafe { destination.move_pages(from, place.start()) };
        let (bytes, answer) = match move_block() {
            // `mlockall` has populated the arena meanwhile.
            // SAFETY: the place is claimed and empty: what is there is zeros.
            (0, Err(Errno::EXIST)) if unsafe { discard(place) } => move_block(),
            moved => moved,
        };
        if answer.is_err() && bytes > 0 {
            partly_moved.push(place);
        }
        moved.push(answer.is_ok());
        match answer {
            // A page is shared with a child or pinned, or was reclaimed meanwhile.
            Ok(()) | Err(Errno::BUSY | Errno::NOENT | Errno::AGAIN) => {}
            Err(_) => break,
        }
    }
    // Zeros cannot be written to a place that is registered.
    drop(destination);
    drop(mover);
    for place in partly_moved {
        // SAFETY: the place is claimed, and what was moved there is released.
        unsafe { discard_dirty(place) };
    }
    Ok(moved)
}

/// Publishes the places that blocks have moved to, and the others as empty.
fn publish(run: Run, places: PageRange, blocks: &[Released], moved: &[bool]) {
    let is_lazy = !is_memory_ample() && {
        // Also where a block has not moved, and nothing is there.
        // SAFETY: the places are claimed, and zeros where anything is there.
        unsafe { free_lazily(places) }
    };
    let since_secs = now_secs();
    let place = |((block, is_moved), place): ((&Released, &bool), PageRange)| match is_moved {
        true => Place::Filled(Block {
            is_huge: block.is_huge,
            is_lazy,
            node: numa::node_of(place.start()),
            since_secs,
        }),
        false => Place::Empty,
    };
    let count = moved.iter().filter(|&&is_moved| is_moved).count();
    stats::POOL_RECYCLED_BYTES.add(count * BLOCK_BYTES);
    let places = blocks.iter().zip(moved).zip(places.chunks(BLOCK_BYTES));
    // Not under the mutex, because the kernel tells the nodes.
    let places: Vec<Place> = places.map(place).collect();
    let mut pool = POOL.lock();
    let sleeps = pool.filled == pool.lazy;
    pool.publish_all(run.first, places.into_iter());
    drop(pool);
    thread::watch_blocks(sleeps);
}

pub(super) fn now_secs() -> u32 {
    (monotonic_nanos() / 1_000_000_000) as u32
}
