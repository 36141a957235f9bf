//! The state of a shard, behind its lock, and what leaves it.

use super::entries::{Entries, Entry, NEVER, OF_SEGMENT, SegmentId, entry_hash};
use super::ghosts::Ghosts;
use super::pinned::Found;
use super::segment::Segment;
use super::segments::{GRAIN, Queue, Record, Segments};
use super::stats::CacheStats;
use crate::ground::sys::process::monotonic_coarse_nanos;
use crate::observation::stats::{CACHE_EVICTED, CACHE_PURGED};

/// The fields that a hit reads are side by side.
#[repr(C)]
pub(super) struct State<K> {
    /// In nanoseconds.
    time_to_live: Option<u64>,
    pub(super) entries: Entries<K>,
    pub(super) segments: Segments,
    pub(super) ghosts: Ghosts,
    /// The counters of the shard, but for its size.
    pub(super) stats: CacheStats,
    random: u64,
}

/// Values that a shard has given up: dropped without its lock.
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

impl<K> Entry<K> {
    /// Returns the place of the value in its segment, whose record this is.
    #[inline]
    pub(super) fn place(&self, record: &Record) -> Found {
        let len = match self.len {
            OF_SEGMENT => record.filled,
            len => usize::from(len),
        };
        // SAFETY: the value begins within its segment.
        let start = unsafe { record.start().add(usize::from(self.offset) * GRAIN) };
        Found {
            start,
            len,
            segment: record.address,
        }
    }
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
    pub(super) fn place(&self, number: usize) -> Option<(Found, SegmentId, &Record)> {
        let entry = self.entries.get(number)?;
        let record = self.segments.get(entry.segment)?;
        Some((entry.place(record), entry.segment, record))
    }

    /// Removes a value.
    pub(super) fn give_up(&mut self, number: usize, cause: Cause, garbage: &mut Garbage<K>) {
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
        let members = std::mem::take(&mut record.members);
        for number in self.entries.of_segment(id, &members) {
            self.give_up(number, cause, garbage);
        }
    }

    /// Returns the time, if values expire.
    pub(super) fn now(&self) -> Option<u64> {
        self.time_to_live.map(|_| monotonic_coarse_nanos())
    }

    /// Returns when a value expires that is inserted now.
    pub(super) fn expiry(&self) -> u64 {
        let expiry = |lifetime| monotonic_coarse_nanos().saturating_add(lifetime);
        self.time_to_live.map_or(NEVER, expiry)
    }

    /// Whether the entry has expired, if values do.
    #[inline]
    pub(super) fn is_expired(&self, number: usize, now: Option<u64>) -> bool {
        let is_over = |now| {
            self.entries
                .get(number)
                .is_some_and(|it| it.is_expired(now))
        };
        now.is_some_and(is_over)
    }

    /// Returns a random number below `end`, which is not 0 (xorshift, which is good enough
    /// for sampling).
    pub(super) fn random_below(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % end as u64) as usize
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
        let (now @ Some(_), end) = (self.now(), self.entries.numbers().end) else {
            return;
        };
        for _ in 0..8_usize.min(end) {
            let number = self.random_below(end);
            if self.is_expired(number, now) {
                self.give_up(number, Cause::Removed, garbage);
            }
        }
    }
}
