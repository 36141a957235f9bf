//! The heap's counters.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::space::SPACE;
use crate::{limits, shard, slack};

/// A counter that one thread at a time changes, and any thread may read.
#[derive(Debug)]
pub(crate) struct Count(AtomicUsize);

impl Count {
    pub(crate) const fn zero() -> Self {
        Self(AtomicUsize::new(0))
    }

    #[inline]
    pub(crate) fn get(&self) -> usize {
        self.0.load(Relaxed)
    }

    #[inline]
    pub(crate) fn set(&self, figure: usize) {
        self.0.store(figure, Relaxed);
    }

    #[inline]
    pub(crate) fn add(&self, more: usize) {
        self.set(self.get().wrapping_add(more));
    }

    #[inline]
    pub(crate) fn subtract(&self, less: usize) {
        self.set(self.get().wrapping_sub(less));
    }
}

/// Counts of resized blocks.
pub(crate) struct Resized {
    pub(crate) in_place: AtomicUsize,
    pub(crate) moved: AtomicUsize,
    /// Live bytes in excess of those allocated, wrapping.
    pub(crate) bytes: AtomicUsize,
}

pub(crate) static RESIZED: Resized = Resized {
    in_place: AtomicUsize::new(0),
    moved: AtomicUsize::new(0),
    bytes: AtomicUsize::new(0),
};

/// The heap's counters, from [`stats`].
///
/// The figures are added up while other threads go on, so they belong to slightly
/// different moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapStats {
    /// Live blocks.
    pub live_blocks: usize,
    /// The memory of live blocks, in whole pages.
    pub live_bytes: usize,
    /// Memory behind live blocks, left of the larger blocks that were there before.
    pub slack_bytes: usize,
    /// Memory of freed blocks that is kept for reuse.
    pub dirty_bytes: usize,
    /// The present limit on `dirty_bytes`.
    pub max_dirty_bytes: usize,
    /// Memory of freed blocks that the kernel may reclaim (MADV_FREE).
    pub muzzy_bytes: usize,
    /// Requests served with a dirty block: without a system call.
    pub from_dirty: usize,
    /// Requests served with a muzzy block.
    pub from_muzzy: usize,
    /// Requests served with a place whose memory had been returned to the kernel.
    pub from_retained: usize,
    /// Requests served with a place that had never been used.
    pub from_new: usize,
    /// Blocks that were freed.
    pub freed: usize,
    /// Blocks that were resized in place.
    pub resized_in_place: usize,
    /// Blocks that grew by moving their pages.
    pub moved: usize,
    /// Memory returned to the kernel, in all.
    pub returned_bytes: usize,
}

/// Returns what the heap holds and has done; zeros while it is off.
///
/// ```
/// let stats = tenure_heap::stats();
/// println!("{} bytes in {} blocks", stats.live_bytes, stats.live_blocks);
/// ```
#[must_use]
pub fn stats() -> HeapStats {
    if SPACE.classes().is_empty() {
        return HeapStats::default();
    }
    let mut stats = HeapStats {
        max_dirty_bytes: limits::max_dirty_bytes(),
        muzzy_bytes: limits::muzzy_bytes(),
        slack_bytes: slack::bytes(),
        resized_in_place: RESIZED.in_place.load(Relaxed),
        moved: RESIZED.moved.load(Relaxed),
        returned_bytes: RETURNED_BYTES.load(Relaxed),
        live_bytes: RESIZED.bytes.load(Relaxed),
        ..HeapStats::default()
    };
    for class in SPACE.classes() {
        stats.from_muzzy += class.counts.muzzy.get();
        stats.from_retained += class.counts.retained.get();
        stats.from_new += class.counts.new.get();
        stats.live_bytes = stats.live_bytes.wrapping_add(class.counts.bytes.get());
    }
    for shard in shard::all() {
        let (taken, freed) = (
            shard.counts.taken_bytes.get(),
            shard.counts.freed_bytes.get(),
        );
        stats.live_bytes = stats.live_bytes.wrapping_add(taken).wrapping_sub(freed);
        stats.from_dirty += shard.counts.taken.get();
        stats.freed += shard.counts.freed.get();
        stats.dirty_bytes += shard.counts.dirty_bytes.get();
    }
    let served = stats.from_dirty + stats.from_muzzy + stats.from_retained + stats.from_new;
    // The old place of a moved block was served but not freed.
    stats.live_blocks = served.saturating_sub(stats.freed + stats.moved);
    // The counters change while they are added up: more may seem freed than taken.
    if stats.live_blocks == 0 || stats.live_bytes > isize::MAX as usize {
        stats.live_bytes = 0;
    }
    stats
}

/// Memory returned to the kernel, in all.
pub(crate) static RETURNED_BYTES: AtomicUsize = AtomicUsize::new(0);
