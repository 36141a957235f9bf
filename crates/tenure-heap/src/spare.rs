//! Memory behind blocks: what is left of a warm one that serves a smaller request.
//!
//! Sizes that vary would need warm blocks of each class, and what circulates would not
//! fit a CPU's cache. So the block that was freed last serves what is smaller, too. Most
//! such blocks are freed again soon; what others keep for nothing is limited.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::shard;
use crate::slot::Slot;
use crate::space::SPACE;

/// For each shard: what a few threads' blocks have.
const SHARD_BYTES: usize = 1 << 20;

/// Of what is live: less than blocks waste besides.
const OF_LIVE: usize = 16;

/// Behind all blocks.
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// There may be so much.
static MOST: AtomicUsize = AtomicUsize::new(0);

/// Sets the limit by how much is live.
pub(crate) fn set_live(live_bytes: usize) {
    let least = shard::all().len() * SHARD_BYTES;
    MOST.store(least.max(live_bytes / OF_LIVE), Relaxed);
}

pub(crate) fn bytes() -> usize {
    BYTES.load(Relaxed)
}

/// Whether more may be kept.
#[inline]
pub(crate) fn is_allowed() -> bool {
    BYTES.load(Relaxed) < MOST.load(Relaxed)
}

/// Keeps so many touched pages behind a block that is about to be handed out, if there
/// may be more.
#[inline]
pub(crate) fn keep(slot: &Slot, pages: usize) -> bool {
    if !is_allowed() {
        return false;
    }
    // A child of a fork may find too much counted, never too little.
    BYTES.fetch_add(pages * SPACE.page_bytes(), Relaxed);
    slot.spare.set(pages);
    true
}

/// Of a block that was freed.
#[inline]
pub(crate) fn release(slot: &Slot) {
    let pages = slot.spare.get();
    if pages > 0 {
        slot.spare.set(0);
        BYTES.fetch_sub(pages * SPACE.page_bytes(), Relaxed);
    }
}
