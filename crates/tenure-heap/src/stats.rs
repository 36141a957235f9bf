//! What the heap has done, and what it holds.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::space::SPACE;
use crate::{limits, shard, spare};

/// A figure that one thread at a time changes, and any may read.
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

/// What has been done to blocks where they are, or by moving them.
pub(crate) struct Resized {
    pub(crate) in_place: AtomicUsize,
    pub(crate) moved: AtomicUsize,
    /// How many bytes more, wrapping, are live than were handed out.
    pub(crate) bytes: AtomicUsize,
}

pub(crate) static RESIZED: Resized = Resized {
    in_place: AtomicUsize::new(0),
    moved: AtomicUsize::new(0),
    bytes: AtomicUsize::new(0),
};

/// What the heap holds and has done, from [`stats`].
///
/// A moment's figures, added up while other threads go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapStats {
    /// Blocks in use.
    pub live_blocks: usize,
    /// Their memory, in whole pages.
    pub live_bytes: usize,
    /// Memory behind blocks in use, left of larger ones that were there before.
    pub spare_bytes: usize,
    /// Memory of freed blocks that is kept for the next ones.
    pub warm_bytes: usize,
    /// How much of that there may be, as things are now.
    pub most_warm_bytes: usize,
    /// Memory of freed blocks that the kernel may take.
    pub lazy_bytes: usize,
    /// Requests served with a warm block: without a system call.
    pub from_warm: usize,
    /// Requests served with a block that was lazily free.
    pub from_lazy: usize,
    /// Requests served with a place that had been given back.
    pub from_given: usize,
    /// Requests served with a place that nobody had had.
    pub from_new: usize,
    /// Blocks that were freed.
    pub freed: usize,
    /// Blocks that grew or shrank where they were.
    pub resized_in_place: usize,
    /// Blocks that grew by moving their pages.
    pub moved: usize,
    /// Memory that was given back to the kernel, in all.
    pub given_back_bytes: usize,
}

/// Adds up what the heap holds and has done. All zeros while it is off.
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
        most_warm_bytes: limits::most_warm_bytes(),
        lazy_bytes: limits::lazy_bytes(),
        spare_bytes: spare::bytes(),
        resized_in_place: RESIZED.in_place.load(Relaxed),
        moved: RESIZED.moved.load(Relaxed),
        given_back_bytes: GIVEN_BACK.load(Relaxed),
        live_bytes: RESIZED.bytes.load(Relaxed),
        ..HeapStats::default()
    };
    for class in SPACE.classes() {
        stats.from_lazy += class.tally.lazy.get();
        stats.from_given += class.tally.given.get();
        stats.from_new += class.tally.new.get();
        stats.live_bytes = stats.live_bytes.wrapping_add(class.tally.bytes.get());
    }
    for shard in shard::all() {
        let (taken, freed) = (shard.tally.taken_bytes.get(), shard.tally.freed_bytes.get());
        stats.live_bytes = stats.live_bytes.wrapping_add(taken).wrapping_sub(freed);
        stats.from_warm += shard.tally.taken.get();
        stats.freed += shard.tally.freed.get();
        stats.warm_bytes += shard.tally.warm_bytes.get();
    }
    let served = stats.from_warm + stats.from_lazy + stats.from_given + stats.from_new;
    // Of a moving block the old place is no block any more.
    stats.live_blocks = served.saturating_sub(stats.freed + stats.moved);
    // Of figures that change while they are added up, more may be freed than taken.
    if stats.live_blocks == 0 || stats.live_bytes > isize::MAX as usize {
        stats.live_bytes = 0;
    }
    stats
}

/// What was given back to the kernel, in all.
pub(crate) static GIVEN_BACK: AtomicUsize = AtomicUsize::new(0);
