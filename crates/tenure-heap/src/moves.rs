//! How many blocks have grown by moving their pages.
//!
//! The kernel keeps such a block's range in mappings of its own, and the number of a
//! process's mappings is limited. They are merged when the range is next returned.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::table::{self, MOVED};

/// The most blocks with mappings of their own.
const MAX_SPLIT_BLOCKS: usize = 4 << 10;

static SPLIT_BLOCKS: AtomicUsize = AtomicUsize::new(0);

/// Blocks that have grown by moving their pages, in all.
static MOVED_BLOCKS: AtomicUsize = AtomicUsize::new(0);

/// Returns whether one more block may have mappings of its own.
pub(crate) fn has_capacity() -> bool {
    SPLIT_BLOCKS.load(Relaxed) < MAX_SPLIT_BLOCKS
}

/// Returns whether any block has mappings of its own.
pub(crate) fn any() -> bool {
    SPLIT_BLOCKS.load(Relaxed) > 0
}

/// Records that a block was moved to this address.
pub(crate) fn record(address: usize) {
    if table::set(address, MOVED) {
        SPLIT_BLOCKS.fetch_add(1, Relaxed);
    }
    MOVED_BLOCKS.fetch_add(1, Relaxed);
}

/// Records that so many blocks' mappings were merged.
pub(crate) fn forget(blocks: usize) {
    SPLIT_BLOCKS.fetch_sub(blocks, Relaxed);
}

/// Returns how many blocks were moved, in all.
pub fn count() -> usize {
    MOVED_BLOCKS.load(Relaxed)
}
