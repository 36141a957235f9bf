//! One shard of the cache, with a lock of its own.

use std::borrow::Borrow;
use std::sync::Arc;

use super::entries::{Entries, entry_hash};
use super::flight::Flights;
use super::lock::{BigReaderLock, Reading, Writing};
use super::segment::Contents;
use super::state::{Cause, Garbage, State};
use super::stats::CacheStats;
use crate::verbs::volatile::Priority;

/// Aligned so that no two shards share a cache line.
#[repr(C, align(128))]
pub(super) struct Shard<K> {
    state: BigReaderLock<State<K>>,
    pub(super) flights: Flights,
}

impl<K: Eq> Shard<K> {
    pub(super) fn new(seed: u64, time_to_live: Option<u64>) -> Self {
        Self {
            state: BigReaderLock::new(State::new(seed, time_to_live)),
            flights: Flights::new(),
        }
    }

    pub(super) fn remove<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let mut garbage = Garbage::new();
        let mut state = self.lock();
        let number = Self::find(&mut state, entry_hash(hash), key, &mut garbage);
        self.flights.outdate(Some(entry_hash(hash)), None);
        if let Some(number) = number {
            state.give_up(number, Cause::Removed, &mut garbage);
        }
        drop(state);
        number.is_some()
    }

    /// Gives up a random segment if it is purged, and repeats that after each find, so that
    /// entries of purged values do not pile up; and a few expired values.
    pub(super) fn sweep(&self) {
        for _ in 0..8 {
            let mut garbage = Garbage::new();
            let mut state = self.lock();
            state.remove_expired(&mut garbage);
            let capacity = state.segments.capacity().max(1);
            let number = state.random_below(capacity);
            let Some((id, record)) = state.segments.from(number) else {
                return;
            };
            let segment = (*record.segment).clone();
            drop(state);
            if !segment.is_idle() || segment.contents() != Contents::Purged {
                return;
            }
            let mut state = self.lock();
            // It may be in use again only if it was replaced: a purged one stays purged.
            state.give_up_all(id, Arc::as_ptr(&segment), Cause::Purged, &mut garbage);
            drop(state);
        }
    }

    /// Removes all values.
    pub(super) fn clear(&self) {
        let mut garbage = Garbage::new();
        let mut state = self.lock();
        self.flights.outdate(None, None);
        for number in state.entries.numbers() {
            state.give_up(number, Cause::Removed, &mut garbage);
        }
        // A value that is being made finds its segment gone.
        garbage.records.extend(state.segments.take_all());
        state.entries = Entries::new();
        drop(state);
    }

    /// Returns how many bytes the segments of this and lower priorities have that no pin keeps.
    pub(super) fn idle_bytes(&self, max_priority: Priority) -> usize {
        self.lock_shared().segments.idle_bytes(max_priority)
    }

    /// Returns the number of values.
    pub(super) fn len(&self) -> usize {
        self.lock_shared().entries.len()
    }

    pub(super) fn add_to(&self, sum: &mut CacheStats) {
        let state = self.lock_shared();
        sum.add(&state.stats);
        sum.values += state.entries.len() as u64;
        sum.bytes += state.segments.bytes() as u64;
    }

    pub(super) fn lock(&self) -> Writing<'_, State<K>> {
        self.state.write()
    }

    /// Locks the state beside other look-ups.
    #[inline]
    pub(super) fn lock_shared(&self) -> Reading<'_, State<K>> {
        self.state.read()
    }
}
