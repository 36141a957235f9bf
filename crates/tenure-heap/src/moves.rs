//! How many blocks have grown by moving their pages, and whether pages may be moved now.
//!
//! The kernel keeps such a block's range in mappings of its own, and the number of a
//! process's mappings is limited. They are merged when the range is next returned.
//!
//! Near the limit the kernel refuses a move. The addresses of its target are then lost: an
//! interrupted move may have unmapped them. So after each refusal no pages are moved for
//! twice as long as after the one before.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::sys;
use crate::table::{self, MOVED};

/// The most blocks with mappings of their own.
const MAX_SPLIT_BLOCKS: usize = 4 << 10;

static SPLIT_BLOCKS: AtomicUsize = AtomicUsize::new(0);

/// Blocks that have grown by moving their pages, in all.
static MOVED_BLOCKS: AtomicUsize = AtomicUsize::new(0);

/// The moves that the kernel has refused, and the time before which none is tried, in
/// nanoseconds of the monotonic clock.
static REFUSALS: AtomicU32 = AtomicU32::new(0);
static NEXT_TRY_NANOS: AtomicU64 = AtomicU64::new(0);

const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const MAX_DOUBLINGS: u32 = 20;

/// Returns whether pages may be moved: the kernel has not refused that lately.
pub(crate) fn may_try() -> bool {
    REFUSALS.load(Relaxed) == 0 || sys::now() >= Duration::from_nanos(NEXT_TRY_NANOS.load(Relaxed))
}

/// Records that the kernel has refused to move pages.
pub(crate) fn record_refusal() {
    let doublings = REFUSALS.fetch_add(1, Relaxed).min(MAX_DOUBLINGS);
    let next_try = sys::now() + FIRST_BACKOFF * (1 << doublings);
    let nanos = u64::try_from(next_try.as_nanos()).unwrap_or(u64::MAX);
    NEXT_TRY_NANOS.store(nanos, Relaxed);
}

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
