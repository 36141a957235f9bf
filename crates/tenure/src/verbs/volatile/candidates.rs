//! All that is volatile, in the order in which it is purged.

use super::arenas::{LiveArenas, purge_places};
use super::priority::{Priority, Timestamp};
use super::registry::{Candidate, ENGINE, purge};
use super::word::State;
use crate::ground::error::Result;
use crate::observation::stats::Counter;

/// How many neighbours in the purge order are purged together.
const BATCH_SLOTS: usize = 64;

/// Volatile ranges and objects that were found at some time: by now they may have been
/// unmarked.
pub(super) struct VolatileCandidates<'a> {
    live: &'a LiveArenas,
    /// Ranges, and objects with their own mapping.
    others: Vec<Candidate>,
    /// All, 24 bytes each.
    all: Vec<Entry>,
}

#[derive(Clone, Copy)]
struct Entry {
    priority: Priority,
    /// The index of the arena, or [`OTHER`].
    arena: u32,
    timestamp: Timestamp,
    /// The slot in the arena's table, or the index in `others`.
    index: usize,
}

const OTHER: u32 = u32::MAX;

impl<'a> VolatileCandidates<'a> {
    /// Returns all that is volatile, in no order.
    pub(super) fn all(live: &'a LiveArenas) -> Self {
        Self::find(live, false)
    }

    /// Returns all that is volatile and not known to be purged, in no order.
    pub(super) fn unpurged(live: &'a LiveArenas) -> Self {
        Self::find(live, true)
    }

    fn find(live: &'a LiveArenas, without_purged: bool) -> Self {
        let (mut others, mut all) = (Vec::new(), Vec::new());
        let registry = ENGINE.lock();
        for volatile in registry.volatile_candidates() {
            let range = volatile.candidate.range();
            if without_purged && registry.engine.has_purged(range) {
                continue;
            }
            all.push(Entry {
                priority: volatile.priority,
                arena: OTHER,
                timestamp: volatile.timestamp,
                index: others.len(),
            });
            others.push(volatile.candidate);
        }
        drop(registry);
        let now = Timestamp::coarse();
        for (arena, memory) in live.iter().enumerate() {
            // Memory may be short. An arena that is left out is found the next time.
            if all.try_reserve(memory.table.words().len()).is_err() {
                continue;
            }
            for (slot, word) in memory.table.words().iter().enumerate() {
                let reading = word.stamp(now);
                if matches!(reading.state(), State::Nonvolatile | State::Busy)
                    || without_purged && reading.is_purged()
                {
                    continue;
                }
                all.push(Entry {
                    priority: reading.priority(),
                    arena: arena as u32,
                    timestamp: reading.timestamp(),
                    index: slot,
                });
            }
        }
        Self { live, others, all }
    }

    pub(super) fn sort_by_purge_order(&mut self) {
        self.all
            .sort_unstable_by_key(|entry| (entry.priority, entry.timestamp));
    }

    /// Purges what is still volatile, in order, until so many bytes are purged, and adds
    /// them to `cause`. Returns the first error; all others are purged.
    pub(super) fn purge(&self, cause: Counter, enough_bytes: usize) -> Result<()> {
        let (mut purged_bytes, mut answer) = (0, Ok(()));
        let live: Vec<_> = self.live.iter().collect();
        for of_one_arena in self.all.chunk_by(|a, b| a.arena == b.arena) {
            let mut rest = of_one_arena;
            while !rest.is_empty() && purged_bytes < enough_bytes {
                let memory = live.get(rest[0].arena as usize);
                let Some(memory) = memory else {
                    let other = &self.others[rest[0].index];
                    match purge(other, cause) {
                        Ok(bytes) => purged_bytes += bytes,
                        Err(error) => answer = answer.and(Err(error)),
                    }
                    rest = &rest[1..];
                    continue;
                };
                let mut slots = Vec::with_capacity(BATCH_SLOTS);
                let mut batch_bytes = 0;
                while slots.len() < BATCH_SLOTS
                    && purged_bytes + batch_bytes < enough_bytes
                    && let Some((first, others)) = rest.split_first()
                {
                    slots.push(first.index);
                    batch_bytes += memory.table.place(first.index).len();
                    rest = others;
                }
                let (bytes, purged) = purge_places(memory, &slots, cause);
                purged_bytes += bytes;
                answer = answer.and(purged);
            }
        }
        answer
    }
}
