//! A part of the cache, with a mutex of its own.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{Hash, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::figures::CacheStats;
use super::slot::{Asked, Slot, Was};
use crate::verbs::Priority;

/// How many values are compared to find one that has not been used for long:
/// with so many it is almost always among the oldest tenth or two.
const COMPARED: usize = 8;

/// Kept apart, so that no two shards share a line of the processor's caches.
#[repr(align(128))]
pub(super) struct Shard<K> {
    entries: Mutex<Entries<K>>,
    figures: Figures,
}

struct Entries<K> {
    /// Also values that are gone, where that was found out without the key.
    by_key: HashMap<K, Arc<Slot>, RandomState>,
    /// The same values, those of one priority together, in no order; also some
    /// that are gone.
    by_priority: [Vec<Arc<Slot>>; Priority::ALL.len()],
    /// How often a value was asked for.
    time: u64,
    random: u64,
}

/// What has happened to the values of a shard.
#[derive(Default)]
struct Figures {
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

fn add(figure: &AtomicU64, more: u64) {
    figure.fetch_add(more, Ordering::Relaxed);
}

impl<K: Hash + Eq> Shard<K> {
    pub(super) fn new(hasher: RandomState, seed: u64) -> Self {
        Self {
            entries: Mutex::new(Entries {
                by_key: HashMap::with_hasher(hasher),
                by_priority: Default::default(),
                time: 0,
                random: seed | 1,
            }),
            figures: Figures::default(),
        }
    }

    /// Finds the value and counts a hit or a miss.
    pub(super) fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<super::Pinned>
    where
        K: Borrow<Q>,
    {
        let found = self.lock().use_now(key);
        if let Some(slot) = found {
            // Not with the mutex held: the kernel may have to be asked.
            match slot.pin() {
                Asked::Pinned(pinned) => {
                    add(&self.figures.hits, 1);
                    return Some(pinned);
                }
                Asked::Purged => self.count_purged(&slot),
                Asked::Gone => {}
            }
            self.lock().forget(key, &slot);
        }
        add(&self.figures.misses, 1);
        None
    }

    pub(super) fn contains<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let found = self.lock().by_key.get(key).cloned();
        found.is_some_and(|slot| slot.is_whole())
    }

    /// Puts a value in, in the place of one that the key has.
    pub(super) fn put(&self, key: K, slot: Arc<Slot>) {
        add(&self.figures.insertions, 1);
        add(&self.figures.values, 1);
        add(&self.figures.bytes, slot.memory_bytes as u64);
        let replaced = self.lock().put(key, slot);
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
            if slot.give_up() {
                add(&self.figures.removed, 1);
                self.count_out(&slot);
                removed += 1;
            }
        }
        removed
    }

    /// Gives up a value of this priority that has not been used for long.
    /// Returns the memory that this has freed, `None` if there was nothing.
    pub(super) fn evict_one(&self, priority: Priority) -> Option<usize> {
        let slot = self.lock().oldest(priority)?;
        match slot.give_up_if_idle()? {
            Was::Purged => {
                self.count_purged(&slot);
                Some(0)
            }
            Was::Whole => {
                add(&self.figures.evicted, 1);
                add(&self.figures.evicted_bytes, slot.memory_bytes as u64);
                self.count_out(&slot);
                Some(slot.memory_bytes)
            }
        }
    }

    /// Looks for values that have been purged, and gives up what it finds: one
    /// look, and one more for each find. As each insertion does so, no more than
    /// about half of all entries are of values that are gone.
    pub(super) fn sweep(&self) {
        for _ in 0..COMPARED {
            let any = self.lock().any();
            match any.filter(|slot| slot.give_up_if_purged()) {
                Some(slot) => self.count_purged(&slot),
                None => break,
            }
        }
        self.lock().forget_gone(self.len());
    }

    fn count_purged(&self, slot: &Slot) {
        add(&self.figures.purged, 1);
        add(&self.figures.purged_bytes, slot.memory_bytes as u64);
        self.count_out(slot);
    }

    fn count_out(&self, slot: &Slot) {
        let bytes = slot.memory_bytes as u64;
        self.figures.values.fetch_sub(1, Ordering::Relaxed);
        self.figures.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// How many values there are.
    pub(super) fn len(&self) -> usize {
        usize::try_from(self.figures.values.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    pub(super) fn add_to(&self, sum: &mut CacheStats) {
        let figure = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        let figures = &self.figures;
        sum.hits += figure(&figures.hits);
        sum.misses += figure(&figures.misses);
        sum.insertions += figure(&figures.insertions);
        sum.removed += figure(&figures.removed);
        sum.purged += figure(&figures.purged);
        sum.purged_bytes += figure(&figures.purged_bytes);
        sum.evicted += figure(&figures.evicted);
        sum.evicted_bytes += figure(&figures.evicted_bytes);
        sum.values += figure(&figures.values);
        sum.bytes += figure(&figures.bytes);
    }

    fn lock(&self) -> MutexGuard<'_, Entries<K>> {
        // A key's Hash or Eq has panicked; the map is whole all the same.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq> Entries<K> {
    fn use_now<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<Arc<Slot>>
    where
        K: Borrow<Q>,
    {
        let slot = self.by_key.get(key)?;
        self.time += 1;
        slot.used_at.store(self.time, Ordering::Relaxed);
        Some(slot.clone())
    }

    fn put(&mut self, key: K, slot: Arc<Slot>) -> Option<Arc<Slot>> {
        self.time += 1;
        slot.used_at.store(self.time, Ordering::Relaxed);
        self.by_priority[usize::from(slot.priority.as_u8())].push(slot.clone());
        self.by_key.insert(key, slot)
    }

    /// Forgets the key if it still has this value.
    fn forget<Q: Hash + Eq + ?Sized>(&mut self, key: &Q, slot: &Arc<Slot>)
    where
        K: Borrow<Q>,
    {
        let found = self.by_key.get(key);
        if found.is_some_and(|found| Arc::ptr_eq(found, slot)) {
            self.by_key.remove(key);
        }
    }

    /// Of some values that nobody holds, the one that was used least recently.
    fn oldest(&mut self, priority: Priority) -> Option<Arc<Slot>> {
        let some = std::iter::from_fn(|| self.draw(priority)).take(COMPARED);
        let idle = some.filter(|slot| slot.is_idle());
        idle.min_by_key(|slot| slot.used_at.load(Ordering::Relaxed))
    }

    /// Any value.
    fn any(&mut self) -> Option<Arc<Slot>> {
        let sizes = self.by_priority.each_ref().map(Vec::len);
        let mut at = self.below(sizes.iter().sum())?;
        for (priority, size) in Priority::ALL.into_iter().zip(sizes) {
            match at.checked_sub(size) {
                Some(rest) => at = rest,
                None => return self.draw(priority),
            }
        }
        None
    }

    /// Any value of this priority. Those that it meets and that are gone go from
    /// the list.
    fn draw(&mut self, priority: Priority) -> Option<Arc<Slot>> {
        let index = usize::from(priority.as_u8());
        loop {
            let at = self.below(self.by_priority[index].len())?;
            let slots = &mut self.by_priority[index];
            if !slots[at].is_gone() {
                return Some(slots[at].clone());
            }
            slots.swap_remove(at);
        }
    }

    /// Forgets the keys of what is gone, when it is more than what is not.
    fn forget_gone(&mut self, kept: usize) {
        const FEW: usize = 32;
        if self.by_key.len() > 2 * kept + FEW {
            self.by_key.retain(|_, slot| !slot.is_gone());
        }
    }

    /// A number below this one (xorshift: good enough to pick by).
    fn below(&mut self, end: usize) -> Option<usize> {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (end > 0).then(|| (self.random % end as u64) as usize)
    }
}
