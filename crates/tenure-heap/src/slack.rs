//! Slack: memory behind a block, left of the larger dirty block that serves a smaller
//! request.
//!
//! Requests of varying size would need dirty blocks of each class, more than fit a
//! CPU's cache. The block that was freed last therefore serves smaller requests, too.
//! Most such blocks are freed again soon; the slack of the others is limited.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::shard;
use crate::slot::Slot;
use crate::space::SPACE;

/// For each shard: the slack of a few threads' blocks.
const SHARD_BYTES: usize = 1 << 20;

/// The share of the live bytes, less than the size classes waste.
const OF_LIVE: usize = 16;

/// The slack of all blocks.
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// The limit on slack.
static MAX_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Sets the limit by the live bytes.
pub(crate) fn set_live(live_bytes: usize) {
    let min_bytes = shard::all().len() * SHARD_BYTES;
    MAX_BYTES.store(min_bytes.max(live_bytes / OF_LIVE), Relaxed);
}

pub(crate) fn bytes() -> usize {
    BYTES.load(Relaxed)
}

/// Returns whether more slack is allowed.
#[inline]
pub(crate) fn is_allowed() -> bool {
    BYTES.load(Relaxed) < MAX_BYTES.load(Relaxed)
}

/// Adds so many touched pages behind a new block to the slack, if the limit allows.
#[inline]
pub(crate) fn try_add(slot: &Slot, pages: usize) -> bool {
    if !is_allowed() {
        return false;
    }
    // In the child of a fork the count may be too high, never too low.
    BYTES.fetch_add(pages * SPACE.page_bytes(), Relaxed);
    slot.slack.set(pages);
    true
}

/// Subtracts the slack of a freed block.
#[inline]
pub(crate) fn remove(slot: &Slot) {
    let pages = slot.slack.get();
    if pages > 0 {
        slot.slack.set(0);
        BYTES.fetch_sub(pages * SPACE.page_bytes(), Relaxed);
    }
}
