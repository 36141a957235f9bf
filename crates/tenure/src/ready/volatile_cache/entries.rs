//! The values of a shard by key.

use std::borrow::Borrow;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU8, Ordering};

use hashbrown::HashTable;

/// The number of a segment in its shard.
pub(super) type SegmentId = NonZeroU32;

/// One value. Kept small: it stays in memory beside each value, however small that is.
pub(super) struct Entry<K> {
    pub(super) key: K,
    pub(super) hash: u32,
    pub(super) segment: SegmentId,
    /// Where a small value starts in its segment, in units of [`GRAIN`](super::segments::GRAIN).
    pub(super) offset: u16,
    /// The length of a small value, or [`OF_SEGMENT`].
    pub(super) len: u16,
    /// How often it was found lately, [`MAX_FREQUENCY`] at most.
    pub(super) frequency: AtomicU8,
    /// When it expires, in nanoseconds; never without a time to live.
    pub(super) expiry: u64,
}

/// The expiry of a value without a time to live.
pub(super) const NEVER: u64 = u64::MAX;

impl<K> Entry<K> {
    /// Whether it has expired at that time, in nanoseconds.
    pub(super) fn is_expired(&self, now: u64) -> bool {
        self.expiry <= now
    }

    /// Records that the value was found. One that is found all the time is not written: threads
    /// on other CPUs read the line, too.
    #[inline]
    pub(super) fn count_find(&self) {
        let frequency = self.frequency();
        if frequency < MAX_FREQUENCY {
            // Of two finds at the same time one may not count.
            self.frequency.store(frequency + 1, Ordering::Relaxed);
        }
    }

    pub(super) fn frequency(&self) -> u8 {
        self.frequency.load(Ordering::Relaxed)
    }
}

/// The value is large: it has the length of its segment.
pub(super) const OF_SEGMENT: u16 = u16::MAX;

/// Where counting of finds ends.
pub(super) const MAX_FREQUENCY: u8 = 3;

/// The entries of a shard. A look-up finds key and place in one cache line. An entry's number
/// stays the same until another one is added.
pub(super) struct Entries<K> {
    table: HashTable<Entry<K>>,
}

/// Spreads the 32 bits that entries keep over the 64 that the table takes.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl<K> Entries<K> {
    pub(super) fn new() -> Self {
        Self {
            table: HashTable::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    #[inline]
    pub(super) fn find<Q: Eq + ?Sized>(&self, hash: u32, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        let is_same = |entry: &Entry<K>| entry.hash == hash && entry.key.borrow() == key;
        self.table.find_bucket_index(spread(hash), is_same)
    }

    /// As [`find`](Self::find), for a look-up, which needs no number.
    #[inline]
    pub(super) fn find_entry<Q: Eq + ?Sized>(&self, hash: u32, key: &Q) -> Option<&Entry<K>>
    where
        K: Borrow<Q>,
    {
        let is_same = |entry: &Entry<K>| entry.hash == hash && entry.key.borrow() == key;
        self.table.find(spread(hash), is_same)
    }

    #[inline]
    pub(super) fn get(&self, number: usize) -> Option<&Entry<K>> {
        self.table.get_bucket(number)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: usize) -> Option<&mut Entry<K>> {
        self.table.get_bucket_mut(number)
    }

    /// Returns the numbers of the entries of a segment that have one of the hashes, each once.
    pub(super) fn of_segment(&self, segment: SegmentId, hashes: &[u32]) -> Vec<usize> {
        let numbers_of = |&hash: &u32| self.table.iter_hash_buckets(spread(hash));
        let is_in = |&number: &usize| {
            let entry = self.get(number);
            entry.is_some_and(|entry| entry.segment == segment)
        };
        let mut numbers: Vec<_> = hashes.iter().flat_map(numbers_of).filter(is_in).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// Adds an entry whose key has none. Runs no code of the key's.
    pub(super) fn add(&mut self, entry: Entry<K>) {
        let hash_of = |entry: &Entry<K>| spread(entry.hash);
        self.table.insert_unique(spread(entry.hash), entry, hash_of);
    }

    /// Removes an entry. The caller drops its key without the shard's lock.
    pub(super) fn remove(&mut self, number: usize) -> Option<Entry<K>> {
        let entry = self.table.get_bucket_entry(number).ok()?;
        Some(entry.remove().0)
    }

    /// Returns a range that has the numbers of all entries.
    pub(super) fn numbers(&self) -> std::ops::Range<usize> {
        0..self.table.num_buckets()
    }
}

/// Returns the bits of the hash that an entry keeps. The others choose the shard.
pub(super) fn entry_hash(hash: u64) -> u32 {
    hash as u32
}
