//! One shard of the cache, with a mutex of its own.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{Hash, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::slot::{Contents, PinResult, Slot};
use super::stats::CacheStats;
use crate::ground::sys::fork;
use crate::observation::headroom::LEDGER;
use crate::observation::stats::{
    CACHE_BYTES, CACHE_EVICTED, CACHE_HITS, CACHE_MISSES, CACHE_PURGED,
};
use crate::verbs::volatile::Priority;

/// How many random values are compared to find one that was not used for long: the
/// least recently used of this many is almost always among the oldest tenth or two.
const SAMPLE_SIZE: usize = 8;

/// Aligned so that no two shards share a cache line.
#[repr(align(128))]
pub(super) struct Shard<K> {
    entries: Mutex<Entries<K>>,
    counters: Counters,
}

struct Entries<K> {
    /// All attached values, and detached ones whose key was not at hand when they were
    /// detached.
    by_key: HashMap<K, Arc<Slot>, RandomState>,
    /// The same values by priority, unordered; also some detached ones.
    by_priority: [Vec<Arc<Slot>>; Priority::ALL.len()],
    /// The number of lookups and insertions so far: the clock of `Slot::used_at`.
    clock: u64,
    random: u64,
}

#[derive(Default)]
struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    insertions: AtomicU64,
    removed: AtomicU64,
    purged: AtomicU64,
    purged_bytes: AtomicU64,
    evicted: AtomicU64,
    evicted_bytes: AtomicU64,
    values: AtomicU64,
    bytes: AtomicU64,
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl<K: Hash + Eq> Shard<K> {
    pub(super) fn new(hasher: RandomState, seed: u64) -> Self {
        Self {
            entries: Mutex::new(Entries {
                by_key: HashMap::with_hasher(hasher),
                by_priority: Default::default(),
                clock: 0,
                random: seed | 1,
            }),
            counters: Counters::default(),
        }
    }

    /// Pins the value of the key, and counts a hit or a miss.
    pub(super) fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<super::Pinned>
    where
        K: Borrow<Q>,
    {
        let found = self.lock().touch(key);
        if let Some(slot) = found {
            // Without the shard's mutex, because pinning may call the kernel.
            match slot.pin() {
                PinResult::Pinned(pinned) => {
                    add(&self.counters.hits, 1);
                    CACHE_HITS.count();
                    return Some(pinned);
                }
                PinResult::Purged => {
                    self.count_purged(&slot);
                    self.lock().forget(key, &slot);
                }
                PinResult::Detached => self.lock().forget(key, &slot),
                PinResult::Failed => {}
            }
        }
        add(&self.counters.misses, 1);
        CACHE_MISSES.count();
        None
    }

    pub(super) fn contains<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let found = self.lock().by_key.get(key).cloned();
        found.is_some_and(|slot| slot.is_intact())
    }

    /// Inserts a value, replacing the key's previous one.
    pub(super) fn insert(&self, key: K, slot: Arc<Slot>) {
        add(&self.counters.insertions, 1);
        add(&self.counters.values, 1);
        add(&self.counters.bytes, slot.memory_bytes as u64);
        CACHE_BYTES.add(slot.memory_bytes);
        let replaced = self.lock().insert(key, slot);
        self.remove_slots(replaced);
    }

    pub(super) fn remove<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let removed = self.lock().by_key.remove(key);
        self.remove_slots(removed) > 0
    }

    pub(super) fn clear(&self) {
        let mut entries = self.lock();
        let cleared: Vec<_> = entries.by_key.drain().collect();
        entries.by_priority = Default::default();
        drop(entries);
        self.remove_slots(cleared.into_iter().map(|(_, slot)| slot));
    }

    fn remove_slots(&self, slots: impl IntoIterator<Item = Arc<Slot>>) -> usize {
        let mut removed = 0;
        for slot in slots {
            if slot.detach() {
                add(&self.counters.removed, 1);
                self.subtract(&slot);
                removed += 1;
            }
        }
        removed
    }

    /// Evicts a value of this priority that was not used for long. Returns the number of
    /// bytes freed, `None` if there is no idle value.
    pub(super) fn evict_one(&self, priority: Priority) -> Option<usize> {
        let slot = self.lock().sample_oldest(priority)?;
        let evicted = LEDGER.release(slot.memory_bytes, || {
            let contents = slot.evict_if_idle();
            // What was purged before is in the last reading, or in the next.
            let is_freed = contents == Some(Contents::Intact);
            (contents, if is_freed { slot.memory_bytes } else { 0 })
        });
        if evicted? == Contents::Purged {
            self.count_purged(&slot);
            return Some(0);
        }
        add(&self.counters.evicted, 1);
        add(&self.counters.evicted_bytes, slot.memory_bytes as u64);
        CACHE_EVICTED.done(slot.memory_bytes);
        self.subtract(&slot);
        Some(slot.memory_bytes)
    }

    /// Checks a random value and detaches it if it is purged; repeats that after each
    /// find. Because each insertion sweeps, at most about half of all entries belong to
    /// detached values.
    pub(super) fn sweep(&self) {
        for _ in 0..SAMPLE_SIZE {
            let slot = self.lock().random_slot();
            match slot.filter(|slot| slot.detach_if_purged()) {
                Some(slot) => self.count_purged(&slot),
                None => break,
            }
        }
        self.lock().forget_detached(self.len());
    }

    fn count_purged(&self, slot: &Slot) {
        add(&self.counters.purged, 1);
        add(&self.counters.purged_bytes, slot.memory_bytes as u64);
        CACHE_PURGED.done(slot.memory_bytes);
        self.subtract(slot);
    }

    fn subtract(&self, slot: &Slot) {
        let bytes = slot.memory_bytes as u64;
        self.counters.values.fetch_sub(1, Ordering::Relaxed);
        self.counters.bytes.fetch_sub(bytes, Ordering::Relaxed);
        CACHE_BYTES.sub(slot.memory_bytes);
    }

    /// Returns the number of attached values.
    pub(super) fn len(&self) -> usize {
        usize::try_from(self.counters.values.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    pub(super) fn add_to(&self, sum: &mut CacheStats) {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        sum.hits += value(&counters.hits);
        sum.misses += value(&counters.misses);
        sum.insertions += value(&counters.insertions);
        sum.removed += value(&counters.removed);
        sum.purged += value(&counters.purged);
        sum.purged_bytes += value(&counters.purged_bytes);
        sum.evicted += value(&counters.evicted);
        sum.evicted_bytes += value(&counters.evicted_bytes);
        sum.values += value(&counters.values);
        sum.bytes += value(&counters.bytes);
    }

    fn lock(&self) -> MutexGuard<'_, Entries<K>> {
        // Only Hash or Eq of a key can panic under the mutex, which leaves the map
        // consistent.
        fork::lock_outer(&self.entries)
    }
}

impl<K> Shard<K> {
    /// Returns the size of the attached values, in bytes of whole pages.
    pub(super) fn bytes(&self) -> u64 {
        self.counters.bytes.load(Ordering::Relaxed)
    }
}

impl<K: Hash + Eq> Entries<K> {
    /// Returns the value of the key and marks it as just used.
    fn touch<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<Arc<Slot>>
    where
        K: Borrow<Q>,
    {
        let slot = self.by_key.get(key)?;
        self.clock += 1;
        slot.used_at.store(self.clock, Ordering::Relaxed);
        Some(slot.clone())
    }

    fn insert(&mut self, key: K, slot: Arc<Slot>) -> Option<Arc<Slot>> {
        self.clock += 1;
        slot.used_at.store(self.clock, Ordering::Relaxed);
        self.by_priority[usize::from(slot.priority.as_u8())].push(slot.clone());
        self.by_key.insert(key, slot)
    }

    /// Removes the key if it still has this value.
    fn forget<Q: Hash + Eq + ?Sized>(&mut self, key: &Q, slot: &Arc<Slot>)
    where
        K: Borrow<Q>,
    {
        let found = self.by_key.get(key);
        if found.is_some_and(|found| Arc::ptr_eq(found, slot)) {
            self.by_key.remove(key);
        }
    }

    /// Returns the least recently used of a sample of idle values.
    fn sample_oldest(&mut self, priority: Priority) -> Option<Arc<Slot>> {
        let sample = std::iter::from_fn(|| self.random_of(priority)).take(SAMPLE_SIZE);
        let idle = sample.filter(|slot| slot.is_idle());
        idle.min_by_key(|slot| slot.used_at.load(Ordering::Relaxed))
    }

    /// Returns a random value of any priority.
    fn random_slot(&mut self) -> Option<Arc<Slot>> {
        let sizes = self.by_priority.each_ref().map(Vec::len);
        let mut at = self.random_below(sizes.iter().sum())?;
        for (priority, size) in Priority::ALL.into_iter().zip(sizes) {
            match at.checked_sub(size) {
                Some(rest) => at = rest,
                None => return self.random_of(priority),
            }
        }
        None
    }

    /// Returns a random value of this priority. Detached values that it meets are removed
    /// from the list.
    fn random_of(&mut self, priority: Priority) -> Option<Arc<Slot>> {
        let index = usize::from(priority.as_u8());
        loop {
            let at = self.random_below(self.by_priority[index].len())?;
            let slots = &mut self.by_priority[index];
            if !slots[at].is_detached() {
                return Some(slots[at].clone());
            }
            slots.swap_remove(at);
        }
    }

    /// Removes the keys of detached values when these outnumber the attached ones.
    fn forget_detached(&mut self, attached: usize) {
        const SLACK: usize = 32;
        if self.by_key.len() > 2 * attached + SLACK {
            self.by_key.retain(|_, slot| !slot.is_detached());
        }
    }

    /// Returns a random number below `end` (xorshift, which is good enough for
    /// sampling); `None` if `end` is 0.
    fn random_below(&mut self, end: usize) -> Option<usize> {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (end > 0).then(|| (self.random % end as u64) as usize)
    }
}
