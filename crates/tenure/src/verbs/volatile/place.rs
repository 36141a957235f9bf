//! The part of an arena that one buffer uses.

use std::sync::Arc;

use super::registry::ENGINE;
use crate::ground::range::PageRange;

/// The address space of an arena. Dropping the last reference, the arena's or a
/// buffer's, unmaps it.
#[derive(Debug)]
pub(super) struct ArenaMemory(pub(super) PageRange);

impl Drop for ArenaMemory {
    fn drop(&mut self) {
        // SAFETY: each buffer holds a reference to this, so none is left. On failure
        // the addresses stay reserved.
        let _ = unsafe { self.0.munmap() };
    }
}

/// A part of an arena. Dropping it empties its pages and gives it back to the arena.
#[derive(Debug)]
pub(super) struct Place {
    range: PageRange,
    arena: Arc<ArenaMemory>,
}

impl Place {
    /// Owns `range`, which the engine has taken from the arena for the caller.
    pub(super) fn new(range: PageRange, arena: Arc<ArenaMemory>) -> Self {
        Self { range, arena }
    }

    pub(super) fn range(&self) -> PageRange {
        self.range
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut registry = ENGINE.lock();
        registry.engine.put_back_place(self.arena.0, self.range);
    }
}
