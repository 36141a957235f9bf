//! What is known of a place for a block.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Lies beside its neighbours, away from the blocks: giving a block up or taking one
/// touches none of its pages. A line of the cache each, so that neighbours do not
/// disturb each other. All zeros: nobody has had it yet.
///
/// The fields belong to whoever has the place: its user, the holder of the lock of
/// the list that it is in, or the thread that has it in hand. They are atomic
/// because a child of a fork may find anything in them.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Slot {
    pub(crate) state: AtomicU32,
    /// Neighbours in a list: one more than their index, 0 for none.
    pub(crate) newer: AtomicU32,
    pub(crate) older: AtomicU32,
    /// When it was put in its list, in ticks.
    pub(crate) stamp: AtomicU32,
    /// What the block fills.
    pub(crate) pages: Pages,
    /// Pages from here on have never been touched, or given back since: they are
    /// zeros, and there is no memory behind them.
    pub(crate) touched: Pages,
    /// How many touched pages behind the block are kept on purpose, as counted by
    /// [`spare`](crate::spare).
    pub(crate) spare: Pages,
    /// From here on the kernel puts no huge pages; 0 if it may anywhere.
    pub(crate) base_from: Pages,
    /// Where the kernel has one mapping end and another one begin, for good, in
    /// ascending order; 0 from the last one on. (Not where huge pages end.)
    pub(crate) seams: [Pages; MOST_SEAMS],
}

/// A number of pages.
#[derive(Debug, Default)]
pub(crate) struct Pages(AtomicU32);

impl Pages {
    #[inline]
    pub(crate) fn get(&self) -> usize {
        self.0.load(Relaxed) as usize
    }

    #[inline]
    pub(crate) fn set(&self, pages: usize) {
        // A range of addresses has fewer than 2^32 pages: `Space::reserve`.
        self.0.store(pages as u32, Relaxed);
    }
}

/// With more, contents are copied instead of moved.
pub(crate) const MOST_SEAMS: usize = 6;

/// There is a block. (0: nobody has had the place.)
pub(crate) const LIVE: u32 = 1;
/// It is in a list, or in some thread's hands; what its touched pages hold is
/// nobody's business. With the generation of the process.
pub(crate) const FREE: u32 = 2;

/// The part of the state beside the generation.
#[inline]
pub(crate) fn kind(state: u32) -> u32 {
    state & 0xff
}

/// The state of what is free now: a child of a fork knows by it what it has freed
/// itself.
#[inline]
pub(crate) fn free_in(generation: u32) -> u32 {
    FREE | generation << 8
}

impl Slot {
    /// Says what is there.
    pub(crate) fn set_state(&self, state: u32) {
        // A later owner gets it through a lock, or a child through a fork.
        self.state.store(state, Relaxed);
    }
}
