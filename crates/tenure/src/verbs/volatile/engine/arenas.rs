//! The arenas that the engine knows.

use std::collections::BTreeMap;

use super::free_extents::FreeExtents;
use crate::ground::range::PageRange;

/// An arena.
pub(super) struct Arena {
    pub(super) range: PageRange,
    pub(super) free: FreeExtents,
    /// Registered with the userfaultfd as a whole; every page of a buffer is present.
    /// Ends with the userfaultfd.
    pub(super) is_registered: bool,
}

/// All arenas, by their first address.
pub(super) struct Arenas(BTreeMap<usize, Arena>);

impl Arenas {
    pub(super) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds an arena that holds no buffer yet.
    pub(super) fn insert(&mut self, range: PageRange, is_registered: bool) {
        let arena = Arena {
            range,
            free: FreeExtents::new(range),
            is_registered,
        };
        self.0.insert(range.start(), arena);
    }

    /// Returns the arena that begins where `range` does.
    pub(super) fn get_mut(&mut self, range: PageRange) -> Option<&mut Arena> {
        self.0.get_mut(&range.start())
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Arena> {
        self.0.values_mut()
    }

    /// Returns whether the range lies in an arena that is registered as a whole.
    pub(super) fn is_registered(&self, range: PageRange) -> bool {
        let arena = self.0.range(..=range.start()).next_back();
        arena.is_some_and(|(_, arena)| arena.is_registered && arena.range.contains(range))
    }

    /// Removes the arenas that lie in the range.
    pub(super) fn remove_within(&mut self, range: PageRange) {
        let within = |(_, arena): &(&usize, &Arena)| range.contains(arena.range);
        let starts: Vec<usize> = self
            .0
            .range(range.as_std())
            .filter(within)
            .map(|(&start, _)| start)
            .collect();
        for start in starts {
            self.0.remove(&start);
        }
    }
}
