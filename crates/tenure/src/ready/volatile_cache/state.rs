//! The state of a shard, behind its mutex, and what leaves it.

use super::entries::{Entries, MAX_FREQUENCY, OF_SEGMENT, SegmentId, entry_hash};
use super::ghosts::Ghosts;
use super::pinned::Found;
use super::segment::Segment;
use super::segments::{GRAIN, Queue, Record, Segments};
use super::stats::CacheStats;
use crate::ground::sys::process::monotonic_coarse_nanos;
use crate::observation::stats::{CACHE_EVICTED, CACHE_PURGED};

pub(super) struct State<K> {
    pub(super) entries: Entries<K>,
    pub(super) segments: Segments,
    pub(super) ghosts: Ghosts,
    /// The counters of the shard, but for its size.
    pub(super) stats: CacheStats,
    random: u64,
    /// In nanoseconds.
    time_to_live: Option<u64>,
}

/// Values that a shard has given up: dropped without its mutex.
pub(super) struct Garbage<K> {
    pub(super) records: Vec<Record>,
    pub(super) keys: Vec<K>,
}

impl<K> Garbage<K> {
    pub(super) fn new() -> Self {
        Self {
            records: Vec::new(),
            keys: Vec::new(),
        }
    }
}

/// Why a value leaves the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Removed,
    Purged,
    Evicted,
}

impl<K> State<K> {
    pub(super) fn new(seed: u64, time_to_live: Option<u64>) -> Self {
        Self {
            entries: Entries::new(),
            segments: Segments::new(),
            ghosts: Ghosts::default(),
            stats: CacheStats::default(),
            random: seed | 1,
            time_to_live,
        }
    }

    /// Returns the place of a value, and its segment.
    #[inline]
    pub(super) fn place(&self, number: u32) -> Option<(Found, SegmentId, &Record)> {
        let entry = self.entries.get(number)?;
        let record = self.segments.get(entry.segment)?;
        let len = match entry.len {
            OF_SEGMENT => record.filled,
            len => usize::from(len),
        };
        // SAFETY: the value begins within its segment.
        let start = unsafe { record.start().add(usize::from(entry.offset) * GRAIN) };
        let found = Found {
            start,
            len,
            segment: record.address,
        };
        Some((found, entry.segment, record))
    }

    /// Removes a value.
    pub(super) fn give_up(&mut self, number: u32, cause: Cause, garbage: &mut Garbage<K>) {
        let Some(entry) = self.entries.remove(number) else {
            return;
        };
        match cause {
            Cause::Removed => self.stats.removed += 1,
            Cause::Purged => {
                self.stats.purged += 1;
                CACHE_PURGED.add(1, 0);
            }
            Cause::Evicted => {
                self.stats.evicted += 1;
                CACHE_EVICTED.add(1, 0);
            }
        }
        garbage.keys.push(entry.key);
        self.leave(entry.segment, garbage);
    }

    /// Subtracts a value from its segment, which is given up with its last one.
    pub(super) fn leave(&mut self, id: SegmentId, garbage: &mut Garbage<K>) {
        if let Some(record) = self.segments.get_mut(id) {
            record.live -= 1;
            if record.live == 0 {
                garbage.records.extend(self.segments.remove(id));
            }
        }
    }

    /// Gives up all values of a segment, if it is still the same one.
    pub(super) fn give_up_all(
        &mut self,
        id: SegmentId,
        segment: *const Segment,
        cause: Cause,
        garbage: &mut Garbage<K>,
    ) {
        let Some(record) = self.segments.of(id, segment) else {
            return;
        };
        let bytes = record.segment.memory_bytes() as u64;
        match cause {
            Cause::Removed => {}
            Cause::Purged => {
                self.stats.purged_bytes += bytes;
                CACHE_PURGED.add(0, bytes);
            }
            Cause::Evicted => {
                self.stats.evicted_bytes += bytes;
                CACHE_EVICTED.add(0, bytes);
            }
        }
        let record = self.segments.of(id, segment).expect("just found");
        for number in std::mem::take(&mut record.members) {
            let entry = self.entries.get(number);
            if entry.is_some_and(|entry| entry.segment == id) {
                self.give_up(number, cause, garbage);
            }
        }
    }

    /// Returns the time, if values expire.
    pub(super) fn now(&self) -> Option<u64> {
        self.time_to_live.map(|_| monotonic_coarse_nanos())
    }

    pub(super) fn expiry(&self) -> Option<u64> {
        let lifetime = self.time_to_live?;
        Some(monotonic_coarse_nanos().saturating_add(lifetime))
    }

    /// Returns a random number below `end`, which is not 0 (xorshift, which is good enough
    /// for sampling).
    pub(super) fn random_below(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % end as u64) as usize
    }

    #[inline]
    pub(super) fn count_hit(&mut self, number: u32) {
        self.stats.hits += 1;
        // A value found all the time is not written: threads on other CPUs read the line, too.
        if let Some(entry) = self.entries.get_mut(number)
            && entry.frequency < MAX_FREQUENCY
        {
            entry.frequency += 1;
        }
    }

    /// Returns the queue of a new value: one that was evicted lately skips probation.
    pub(super) fn queue_of(&self, hash: u64) -> Queue {
        match self.ghosts.has(entry_hash(hash)) {
            true => Queue::Main,
            false => Queue::Probation,
        }
    }

    /// Removes expired values out of a few random ones.
    pub(super) fn remove_expired(&mut self, garbage: &mut Garbage<K>) {
        let (Some(now), end) = (self.now(), self.entries.numbers().end as usize) else {
            return;
        };
        for _ in 0..8_usize.min(end) {
            let number = self.random_below(end) as u32;
            let is_used = self.entries.get(number).is_some();
            if is_used && self.entries.is_expired(number, now) {
                self.give_up(number, Cause::Removed, garbage);
            }
        }
    }
}
