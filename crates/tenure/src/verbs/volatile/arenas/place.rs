//! The part of an arena that one buffer uses.

use std::sync::Arc;
use std::time::Duration;

use super::memory::{ArenaMemory, ArenaOwner};
use super::space::SMALL_PAGES;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::discard_contents;
use crate::ground::sys::{fork, page_size};
use crate::verbs::volatile::counts::COUNTS;
use crate::verbs::volatile::error::at;
use crate::verbs::volatile::registry::{ENGINE, Registry};
use crate::verbs::volatile::word::{State, Word};

/// A part of an arena, with its slot in the table. Dropping it frees both.
#[derive(Debug)]
pub(crate) struct Place {
    owner: Arc<ArenaOwner>,
    pub(super) slot: usize,
    range: PageRange,
}

/// How often a thread asks whether a claimed word is published. The thread that has
/// claimed it publishes it after the current chunk.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

impl Place {
    /// Takes a part of the arena, all of whose pages can be used and read as zeros.
    pub(super) fn take(owner: &Arc<ArenaOwner>, len: usize) -> Result<Self> {
        let memory = &owner.0;
        let mut registry = ENGINE.lock();
        let range = registry.take_place(memory, len)?;
        let slot = memory.table.take(range);
        drop(registry);
        Ok(Self {
            owner: owner.clone(),
            slot,
            range,
        })
    }

    pub(in crate::verbs::volatile) fn memory(&self) -> &ArenaMemory {
        &self.owner.0
    }

    pub(crate) fn range(&self) -> PageRange {
        self.range
    }

    pub(crate) fn word(&self) -> &Word {
        self.memory().table.word(self.slot)
    }

    /// Claims the word of the volatile place for its owner. Waits for another thread that
    /// has claimed it. Returns the state before that.
    pub(super) fn claim(&self) -> State {
        // In a child the changes publish the words that other threads had claimed.
        fork::start_child_in_handler();
        let word = self.word();
        loop {
            if let Some(before) = word.try_claim_volatile() {
                return before;
            }
            // The ENGINE lock holder publishes what it claims before it unlocks, except
            // between the chunks of a large place.
            drop(ENGINE.lock());
            if word.want() {
                // The thread that has claimed it waits for ENGINE, which this one may hold
                // across a fork.
                fork::wait_outside(|| std::thread::sleep(POLL_INTERVAL));
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.memory().is_closed() {
            // The volatile places are purged together. A nonvolatile one has outlived that, and
            // others may keep the arena.
            if self.word().read().state() == State::Nonvolatile {
                empty(self.range);
            }
            return;
        }
        let mut before = State::Nonvolatile;
        if self.word().read().state() != State::Nonvolatile {
            before = self.claim();
            COUNTS.add_drop(self.range.len());
        }
        let all = self.memory().with_overrun(self.range);
        let is_large = all.pages() > SMALL_PAGES;
        let is_usable = !is_large || empty(all);
        let mut registry = ENGINE.lock();
        registry.engine.forget_purged(self.range);
        registry.arenas.count_revoked(before, self.range);
        self.word().publish(State::Nonvolatile);
        self.memory().table.free(self.slot);
        // A place that cannot be emptied is not used again.
        if is_usable {
            registry.arenas.of(self.memory()).put_back(all);
        }
    }
}

/// Empties a large place of a buffer that is gone, without the ENGINE lock.
fn empty(place: PageRange) -> bool {
    place.chunks(super::CHUNK_BYTES).all(|chunk| {
        // SAFETY: the place belonged to one buffer, which is gone.
        unsafe { discard_contents(chunk) }.is_ok()
    })
}

impl Registry {
    fn take_place(&mut self, memory: &ArenaMemory, len: usize) -> Result<PageRange> {
        let full = |longest_bytes| Error::ArenaFull {
            arena: memory.range,
            requested_bytes: len,
            longest_bytes,
        };
        if self.arenas.of(memory).is_inaccessible {
            // On failure, too, the arena is accessible again.
            let _ = self.restore_protection(memory);
        }
        let space = self.arenas.of(memory);
        let rounded = len.checked_next_multiple_of(page_size());
        let with_overrun = rounded.and_then(|len| len.checked_add(memory.overrun_bytes));
        let Some(all_bytes) = with_overrun else {
            return Err(full(space.longest()));
        };
        let taken = space.take(all_bytes, &self.engine);
        let taken = taken.map_err(at("ioctl(UFFDIO_ZEROPAGE)", memory.range))?;
        let all = taken.ok_or_else(|| full(space.longest()))?;
        let end = all.end() - memory.overrun_bytes;
        Ok(PageRange::between(all.start(), end))
    }
}
