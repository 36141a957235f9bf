//! Arenas: many buffers in one mapping of the kernel's.
//!
//! **A buffer** has a slot in its arena's [table](table::Table): a state word and a place. Marking and
//! unmarking within the offer delay change the word and nothing else.
//!
//! **Registration** goes by blocks of 2 MiB. A block is registered with the userfaultfd
//! when a buffer with pages in it is offered for the first time, and stays so. In a
//! registered block each page of a buffer is present, as the zero page if need be, so that
//! an absent page is a purged one; elsewhere an absent page was never touched.
//!
//! **Revoking an offer** takes MADV_POPULATE_WRITE and no lock, if each page had contents
//! when it was offered and none has been purged: success shows both. Otherwise the pages
//! are looked at, chunk by chunk, under the ENGINE lock. The thread that changes what the
//! kernel knows of a buffer has claimed its word (*busy*); a chunk is about a millisecond.
//!
//! **Lost protection.** In a forked child, until it is registered anew, or where the
//! program could close the userfaultfd, [`Space::epoch`] differs from the engine's: then
//! all that was offered counts as purged.

mod arena;
mod blocks;
mod due;
mod fork;
mod free_extents;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod memory;
mod offer;
mod place;
mod purge;
mod reserve;
mod revoke;
mod space;
mod table;

pub use arena::VolatileArena;
pub(super) use due::{offer_due, retry_refused};
pub(super) use memory::ArenaMemory;
pub(super) use place::Place;
pub(super) use purge::{purge_partial, purge_places};
pub(super) use reserve::Reserve;

use std::collections::BTreeMap;
use std::sync::Arc;

use due::has_marked;
use space::Space;

use super::registry::ENGINE;
use super::word::State;
use crate::ground::range::PageRange;

/// How much is offered, populated or purged under one ENGINE lock: other threads wait for
/// about a millisecond.
const CHUNK_BYTES: usize = 16 << 20;

/// All arenas, by their first address.
pub(super) struct Arenas {
    spaces: BTreeMap<usize, Space>,
    /// How much of the buffers has been offered, as far as the ENGINE lock holder has
    /// changed it.
    offered_bytes: usize,
    /// Counts the arenas that were ever inserted.
    inserted: u64,
}

/// The arenas that were in use at some time.
pub(super) struct LiveArenas {
    arenas: Vec<Arc<ArenaMemory>>,
    inserted: u64,
}

impl LiveArenas {
    /// Returns those of now. Locks ENGINE, which the caller must not hold when it drops
    /// the value.
    pub(super) fn now() -> Self {
        let registry = ENGINE.lock();
        let arenas = &registry.arenas;
        let spaces = arenas.spaces.values();
        Self {
            arenas: spaces.filter_map(|space| space.memory.upgrade()).collect(),
            inserted: arenas.inserted,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<ArenaMemory>> {
        self.arenas.iter()
    }

    /// Returns whether a buffer in one of them waits to be offered.
    pub(super) fn has_marked(&self) -> bool {
        self.arenas.iter().any(|memory| has_marked(memory))
    }

    /// Returns whether all arenas are here.
    pub(super) fn are_complete(&self, arenas: &Arenas) -> bool {
        self.inserted == arenas.inserted
    }
}

impl Arenas {
    pub(super) const fn new() -> Self {
        Self {
            spaces: BTreeMap::new(),
            offered_bytes: 0,
            inserted: 0,
        }
    }

    /// Returns whether anything may have been offered.
    pub(super) fn is_in_use(&self) -> bool {
        self.spaces.values().any(|space| space.was_protected)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.spaces.is_empty()
    }

    /// Returns how much is offered, `revoked_bytes` after the start.
    pub(super) fn offered_bytes(&self, revoked_bytes: u64) -> usize {
        self.offered_bytes.saturating_sub(revoked_bytes as usize)
    }

    /// Counts a place as offered that was in the state `before`.
    fn count_offered(&mut self, before: State, place: PageRange) {
        if before != State::Offered {
            self.offered_bytes += place.len();
        }
    }

    /// Counts a place as not offered any more that was in the state `before`.
    fn count_revoked(&mut self, before: State, place: PageRange) {
        if before == State::Offered {
            self.subtract_offered(place.len());
        }
    }

    fn subtract_offered(&mut self, bytes: usize) {
        self.offered_bytes = self.offered_bytes.saturating_sub(bytes);
    }

    fn insert(&mut self, space: Space) {
        self.inserted += 1;
        self.spaces.insert(space.range.start(), space);
    }

    /// Returns the space of an arena that is in use.
    fn of(&mut self, memory: &ArenaMemory) -> &mut Space {
        let space = self.spaces.get_mut(&memory.range.start());
        space.expect("an arena in use has a space")
    }

    /// Returns whether the address space of the arena is still mapped for it.
    fn has(&self, memory: &ArenaMemory) -> bool {
        let space = self.spaces.get(&memory.range.start());
        space.is_some_and(|space| std::ptr::eq(space.memory.as_ptr(), memory))
    }

    /// Removes the arenas that lie in the range.
    pub(super) fn remove_within(&mut self, range: PageRange) {
        let within = |space: &&Space| range.contains(space.range);
        let spaces = self.spaces.range(range.as_std()).map(|(_, space)| space);
        let starts: Vec<usize> = spaces
            .filter(within)
            .map(|space| space.range.start())
            .collect();
        for start in starts {
            self.spaces.remove(&start);
        }
    }

    /// Empties the places of dropped buffers.
    pub(super) fn empty_dropped(&mut self) {
        for space in self.spaces.values_mut() {
            space.empty_dropped();
        }
    }
}
