//! Limits on dirty memory, and the headroom for new memory.
//!
//! Without swap only the heap can free the memory of dirty blocks: a program that
//! reached its limit while some are kept would be killed. The decay thread reads the
//! headroom ten times a second while anything is dirty. In between, each thread that
//! takes new memory subtracts it, and returns dirty blocks first if the headroom is
//! low.

use std::sync::atomic::{AtomicIsize, AtomicU32, AtomicUsize, Ordering::Relaxed};

use tenure::HeadroomLimit;
use tenure::headroom;

use crate::options::HeapOptions;
use crate::slot::Slot;
use crate::space::SPACE;
use crate::{decay, decay_thread, sys};

/// Less dirty memory than this needs no decay thread.
const NEGLIGIBLE_BYTES: usize = 4 << 20;

/// The limit on dirty memory until the headroom has been read.
const INITIAL_DIRTY_BYTES: usize = 8 << 20;

/// The decay thread's clock.
static TICK: AtomicU32 = AtomicU32::new(0);

/// The memory of all dirty blocks, less what the shards have not flushed. Padded,
/// because it changes often and its neighbours seldom.
static DIRTY: CachePadded = CachePadded(AtomicUsize::new(0));

#[repr(align(128))]
struct CachePadded(AtomicUsize);

impl std::ops::Deref for CachePadded {
    type Target = AtomicUsize;

    fn deref(&self) -> &AtomicUsize {
        &self.0
    }
}

/// A shard flushes changes of so many bytes: all shards together withhold at most half
/// of the limit.
static FLUSH_BYTES: AtomicUsize = AtomicUsize::new(0);
const MAX_FLUSH_BYTES: usize = 8 << 20;

/// The memory of all muzzy places.
static MUZZY: AtomicUsize = AtomicUsize::new(0);

/// The limit that the options set.
static MAX_DIRTY: AtomicUsize = AtomicUsize::new(0);

/// With more dirty memory than this, the decay thread returns the oldest blocks.
static SOFT_LIMIT: AtomicUsize = AtomicUsize::new(INITIAL_DIRTY_BYTES);

/// With more dirty memory than this, the thread that frees a block returns some.
static HARD_LIMIT: AtomicUsize = AtomicUsize::new(INITIAL_DIRTY_BYTES);

/// The headroom, as last read less what was taken since; 0 until it is read.
static HEADROOM: AtomicIsize = AtomicIsize::new(0);

/// Below this headroom no new memory is taken while anything is dirty.
static MARGIN: AtomicIsize = AtomicIsize::new(0);

/// Sets the limits that need no file to be read.
pub(crate) fn start(options: &HeapOptions) {
    MAX_DIRTY.store(options.max_dirty_bytes, Relaxed);
    set_soft_limit(INITIAL_DIRTY_BYTES.min(options.max_dirty_bytes));
    HARD_LIMIT.store(sys::machine_bytes() / 4, Relaxed);
}

fn set_soft_limit(bytes: usize) {
    SOFT_LIMIT.store(bytes, Relaxed);
    let flush_bytes = bytes / (2 * sys::cpus());
    FLUSH_BYTES.store(flush_bytes.min(MAX_FLUSH_BYTES), Relaxed);
}

/// Returns the change of a shard's count that is flushed.
#[inline]
pub(crate) fn flush_bytes() -> usize {
    FLUSH_BYTES.load(Relaxed)
}

#[inline]
pub(crate) fn tick() -> u32 {
    TICK.load(Relaxed)
}

pub(crate) fn advance() {
    TICK.fetch_add(1, Relaxed);
}

/// Returns the dirty memory past which some is returned at once.
pub(crate) fn max_dirty_bytes() -> usize {
    SOFT_LIMIT.load(Relaxed)
}

/// Adds so many bytes (or, wrapping, subtracts them) to the dirty memory.
pub(crate) fn add_dirty_delta(by: usize) {
    DIRTY.fetch_add(by, Relaxed);
}

pub(crate) fn muzzy_bytes() -> usize {
    MUZZY.load(Relaxed)
}

pub(crate) fn add_muzzy(slot: &Slot) {
    MUZZY.fetch_add(slot.touched.get() * SPACE.page_bytes(), Relaxed);
}

pub(crate) fn subtract_muzzy(slot: &Slot) {
    MUZZY.fetch_sub(slot.touched.get() * SPACE.page_bytes(), Relaxed);
}

/// Unparks the decay thread after a block was freed, and returns dirty memory past the
/// hard limit.
#[cold]
pub(crate) fn enforce() {
    let dirty = DIRTY.load(Relaxed);
    if dirty < NEGLIGIBLE_BYTES {
        return;
    }
    if !decay_thread::ensure_running(dirty > SOFT_LIMIT.load(Relaxed)) {
        // No thread will enforce the soft limit.
        HARD_LIMIT.store(SOFT_LIMIT.load(Relaxed), Relaxed);
    }
    let hard = HARD_LIMIT.load(Relaxed);
    if dirty > hard {
        add_headroom(decay::return_oldest(dirty - hard));
    }
}

/// Reserves headroom for so much new memory, in the process's ledger too: what other threads
/// populate meanwhile must leave it. Returns dirty blocks if headroom is low. Dirty
/// memory too small for a decay thread, which alone reads the headroom, stays.
#[cold]
pub(crate) fn reserve_headroom(bytes: usize) {
    headroom::announce(bytes);
    // No block has half of all addresses.
    let bytes = bytes as isize;
    let left = HEADROOM.fetch_sub(bytes, Relaxed) - bytes;
    let missing = MARGIN.load(Relaxed) - left;
    if missing > 0 && !is_negligible() {
        add_headroom(decay::return_oldest(missing.unsigned_abs()));
    }
}

fn add_headroom(bytes: usize) {
    HEADROOM.fetch_add(bytes as isize, Relaxed);
}

/// Returns the dirty bytes past the soft limit.
pub(crate) fn excess_bytes() -> usize {
    DIRTY.load(Relaxed).saturating_sub(SOFT_LIMIT.load(Relaxed))
}

/// Reads the headroom and sets the limits by it. The decay thread calls it.
pub(crate) fn update_headroom() {
    let Ok(headroom) = headroom::read() else {
        return clear_headroom();
    };
    let total_bytes = match headroom.limit {
        HeadroomLimit::Cgroup { limit_bytes, .. } => limit_bytes,
        _ => headroom.bytes,
    };
    let soft_limit = MAX_DIRTY.load(Relaxed).min(headroom.bytes / 8);
    set_soft_limit(soft_limit);
    HARD_LIMIT.store(soft_limit + total_bytes / 4, Relaxed);
    MARGIN.store((total_bytes / 8).min(512 << 20) as isize, Relaxed);
    HEADROOM.store(
        isize::try_from(headroom.bytes).unwrap_or(isize::MAX),
        Relaxed,
    );
}

/// Clears the headroom, because nobody will update it.
pub(crate) fn clear_headroom() {
    HEADROOM.store(0, Relaxed);
}

/// Resets the counts in the child of a fork: its lists are dropped.
pub(crate) fn reset() {
    DIRTY.store(0, Relaxed);
    MUZZY.store(0, Relaxed);
    clear_headroom();
}

/// Returns whether too little is dirty for a decay thread.
pub(crate) fn is_negligible() -> bool {
    DIRTY.load(Relaxed) < NEGLIGIBLE_BYTES
}
