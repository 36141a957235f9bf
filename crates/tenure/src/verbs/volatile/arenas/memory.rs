//! The address space of an arena, the table of its buffers, and who keeps them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::table::Table;
use crate::ground::range::PageRange;
use crate::ground::sys::exclusive::{fork_count, may_share_pages_since};
use crate::verbs::volatile::counts::COUNTS;
use crate::verbs::volatile::registry::ENGINE;
use crate::verbs::volatile::word::{State, Word};

/// The address space of an arena, to which the arena and its buffers have a reference each.
/// Dropping the last unmaps it. No thread drops one while it holds ENGINE.
#[derive(Debug)]
pub(crate) struct ArenaOwner(pub(super) Arc<ArenaMemory>);

/// The record of an arena. Other threads than the owners' may keep it when the address
/// space is unmapped: under the ENGINE lock, [`Arenas::has`](super::Arenas::has) tells.
#[derive(Debug)]
pub(crate) struct ArenaMemory {
    pub(crate) range: PageRange,
    pub(crate) table: Table,
    /// The pages behind each place that hold no contents and can always be read.
    pub(super) overrun_bytes: usize,
    /// How often the process had forked before anything was written there.
    fork_count: usize,
    /// Nothing that the program does to its descriptors ends the protection of what is
    /// offered, so that owners may revoke offers without a look at it.
    is_kept: AtomicBool,
    /// While memory is ample, what is volatile is offered late.
    defers_offers: AtomicBool,
    /// The rest of the arena is dropped as a whole: buffers that are dropped leave their
    /// places as they are.
    is_closed: AtomicBool,
}

impl ArenaMemory {
    /// Takes over a mapping that nothing uses yet.
    pub(super) fn new(range: PageRange, table: Table, overrun_bytes: usize) -> Self {
        Self {
            range,
            table,
            overrun_bytes,
            fork_count: fork_count(),
            is_kept: AtomicBool::new(false),
            defers_offers: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Returns a place with its overrun.
    pub(super) fn with_overrun(&self, place: PageRange) -> PageRange {
        PageRange::between(place.start(), place.end() + self.overrun_bytes)
    }

    /// Returns whether another process may have pages of the arena, too.
    pub(super) fn may_share_pages(&self) -> bool {
        may_share_pages_since(self.fork_count)
    }

    pub(super) fn is_kept(&self) -> bool {
        self.is_kept.load(Ordering::Acquire)
    }

    pub(in crate::verbs::volatile) fn defers_offers(&self) -> bool {
        self.defers_offers.load(Ordering::Relaxed)
    }

    pub(super) fn defer_offers(&self) {
        self.defers_offers.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Returns whether a buffer is nonvolatile.
    pub(super) fn has_nonvolatile(&self) -> bool {
        let is_nonvolatile = |(slot, word): (usize, &Word)| {
            word.read().state() == State::Nonvolatile && !self.table.place(slot).is_empty()
        };
        self.table.words().iter().enumerate().any(is_nonvolatile)
    }

    /// Counts the volatile buffers that were dropped after the arena was closed.
    fn count_dropped(&self) {
        let mut offered_bytes = 0;
        for (slot, word) in self.table.words().iter().enumerate() {
            let state = word.read().state();
            if state != State::Nonvolatile {
                let bytes = self.table.place(slot).len();
                COUNTS.add_drop(bytes);
                if state == State::Offered {
                    offered_bytes += bytes;
                }
            }
        }
        ENGINE.lock().arenas.subtract_offered(offered_bytes);
    }

    /// The caller holds ENGINE.
    pub(super) fn set_kept(&self, is_kept: bool) {
        self.is_kept.store(is_kept, Ordering::Release);
    }
}

impl Drop for ArenaOwner {
    fn drop(&mut self) {
        if self.0.is_closed() {
            self.0.count_dropped();
        }
        // SAFETY: each buffer holds a reference to this, so none is left; other threads
        // use the address space only while the registry has the arena. On failure the
        // addresses stay reserved.
        let _ = unsafe { self.0.range.munmap() };
    }
}
