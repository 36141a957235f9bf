//! The metadata of a place for a block.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Slots lie side by side, away from the blocks, so allocating and freeing touch none
/// of a block's pages; each fills a cache line, so neighbours do not share one. A slot
/// of zeros belongs to a place that has never been used.
///
/// The fields belong to the owner of the place: its user, the holder of the lock of its
/// list, or the thread that has claimed it. They are atomic because the child of a fork
/// may find anything in them.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Slot {
    pub(crate) state: AtomicU32,
    /// Neighbours in a list: their index plus one, 0 for none.
    pub(crate) newer: AtomicU32,
    pub(crate) older: AtomicU32,
    /// The tick at which the place was put in its list.
    pub(crate) timestamp: AtomicU32,
    /// The pages of the block.
    pub(crate) pages: Pages,
    /// The pages from here on have not been touched since they were last discarded:
    /// they are zero and have no memory.
    pub(crate) touched: Pages,
    /// The touched pages behind the block that [`slack`](crate::slack) counts.
    pub(crate) slack: Pages,
    /// The first page that gets no huge page, plus one; 0 if all may.
    pub(crate) base_from: Pages,
    /// The pages at which the kernel splits the place into mappings for good,
    /// ascending; 0 from the first unused one on. (Cuts of huge pages are not listed.)
    pub(crate) vma_splits: [Pages; MAX_VMA_SPLITS],
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

/// Blocks with more splits are copied instead of moved.
pub(crate) const MAX_VMA_SPLITS: usize = 6;

/// The place has a block. (0: it has never been used.)
pub(crate) const LIVE: u32 = 1;
/// The place is in a list or claimed by a thread; the contents of its touched pages are
/// undefined. The state includes the process's generation.
pub(crate) const FREE: u32 = 2;

/// Returns the state without the generation.
#[inline]
pub(crate) fn kind(state: u32) -> u32 {
    state & 0xff
}

/// Returns the state of a place freed in this generation: by it the child of a fork
/// knows which places it has freed itself.
#[inline]
pub(crate) fn free_in(generation: u32) -> u32 {
    FREE | generation << 8
}

impl Slot {
    /// Sets the state.
    pub(crate) fn set_state(&self, state: u32) {
        // A later owner sees it through a lock, or a child through a fork.
        self.state.store(state, Relaxed);
    }
}
