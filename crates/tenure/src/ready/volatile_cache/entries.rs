//! The values of a shard by key.

use std::borrow::Borrow;
use std::num::NonZeroU32;

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
    pub(super) frequency: u8,
}

/// The value is large: it has the length of its segment.
pub(super) const OF_SEGMENT: u16 = u16::MAX;

/// Where counting of finds ends.
pub(super) const MAX_FREQUENCY: u8 = 3;

/// The entries of a shard, with an index by key. An entry's number stays the same.
pub(super) struct Entries<K> {
    index: HashTable<u32>,
    slots: Vec<Option<Entry<K>>>,
    free: Vec<u32>,
    /// When each entry expires, in nanoseconds; empty without a time to live.
    expiries: Vec<u64>,
}

/// Spreads the 32 bits that entries keep over the 64 that the index takes.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl<K> Entries<K> {
    pub(super) fn new() -> Self {
        Self {
            index: HashTable::new(),
            slots: Vec::new(),
            free: Vec::new(),
            expiries: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    #[inline]
    pub(super) fn find<Q: Eq + ?Sized>(&self, hash: u32, key: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
    {
        let is_same = |&number: &u32| {
            let entry = self.slots[number as usize].as_ref();
            entry.is_some_and(|entry| entry.hash == hash && entry.key.borrow() == key)
        };
        self.index.find(spread(hash), is_same).copied()
    }

    pub(super) fn get(&self, number: u32) -> Option<&Entry<K>> {
        self.slots.get(number as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Entry<K>> {
        self.slots.get_mut(number as usize)?.as_mut()
    }

    /// Adds an entry whose key has none. Runs no code of the key's.
    pub(super) fn add(&mut self, entry: Entry<K>, expiry: Option<u64>) -> u32 {
        let hash = entry.hash;
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        self.slots[number as usize] = Some(entry);
        self.set_expiry(number, expiry);
        let slots = &self.slots;
        let hash_of = |&number: &u32| {
            let entry = slots[number as usize].as_ref();
            spread(entry.map_or(0, |entry| entry.hash))
        };
        self.index.insert_unique(spread(hash), number, hash_of);
        number
    }

    /// Removes an entry. The caller drops its key without the shard's mutex.
    pub(super) fn remove(&mut self, number: u32) -> Option<Entry<K>> {
        let entry = self.slots.get_mut(number as usize)?.take()?;
        let indexed = (self.index).find_entry(spread(entry.hash), |&other| other == number);
        if let Ok(indexed) = indexed {
            indexed.remove();
        }
        self.free.push(number);
        Some(entry)
    }

    pub(super) fn set_expiry(&mut self, number: u32, expiry: Option<u64>) {
        if let Some(expiry) = expiry {
            let index = number as usize;
            if self.expiries.len() <= index {
                self.expiries.resize(index + 1, 0);
            }
            self.expiries[index] = expiry;
        }
    }

    /// Whether the entry has expired at that time, in nanoseconds.
    pub(super) fn is_expired(&self, number: u32, now: u64) -> bool {
        let expiry = self.expiries.get(number as usize);
        expiry.is_some_and(|&expiry| expiry <= now)
    }

    pub(super) fn numbers(&self) -> std::ops::Range<u32> {
        0..self.slots.len() as u32
    }
}

/// Returns the bits of the hash that an entry keeps. The others choose the shard.
pub(super) fn entry_hash(hash: u64) -> u32 {
    hash as u32
}
