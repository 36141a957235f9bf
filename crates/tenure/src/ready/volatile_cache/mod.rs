//! A cache that follows memory pressure.

mod figures;
mod margin;
mod pinned;
mod places;
mod shard;
mod slot;

pub use figures::CacheStats;
pub use pinned::Pinned;

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::margin::Margin;
use self::places::Places;
use self::shard::Shard;
use self::slot::{Process, Slot};
use crate::ground::error::Result;
use crate::ground::sys::page_size;
use crate::verbs::{Priority, VolatileBuffer};

/// Byte values under keys, as many as there is memory for: when memory becomes
/// short, for this process or for others, values go, and asking for them is a
/// miss. There is no size to configure.
///
/// For what can be had again and is worth keeping: decoded images, blocks of
/// files, results of queries. [`get`](VolatileCache::get) returns the bytes in
/// place, pinned for as long as they are held, or nothing.
///
/// ```
/// use tenure::VolatileCache;
///
/// let thumbnails = VolatileCache::new();
/// thumbnails.insert("cat.jpg", &[7; 16 << 10])?;
///
/// // Held, it stays.
/// if let Some(thumbnail) = thumbnails.get("cat.jpg") {
///     assert_eq!(thumbnail.len(), 16 << 10);
/// }
///
/// // What is not there (any more) is made.
/// let thumbnail = thumbnails.get_or_insert_with("dog.jpg", || vec![8; 16 << 10]);
/// assert_eq!(thumbnail[0], 8);
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # What goes, and when
///
/// Values are [volatile](crate::VolatileBuffer) while nobody holds them, those
/// used last marked last. So they go in three ways:
/// * The kernel takes pages of them when anybody needs memory, and
/// * tenure's keeper takes whole values under severe pressure, of this process's
///   volatile memory the lowest priority and the least recently used first.
/// * The cache itself gives values up before it takes memory for a new one, if
///   less than an eighth of the machine's memory, or of a memory cgroup's around
///   the process, is unused or page cache (and less than 5 GiB). So it does not
///   fill a cgroup to where the kernel kills, also where the kernel can take
///   nothing (no userfaultfd). It gives up values of the lowest priority first,
///   none of a higher priority than the new one's, and of one priority those that
///   have not been used for long: the one used least recently of eight that are
///   picked by chance.
///
/// A value of which a single page is lost is lost whole: it is never returned in
/// part. What has gone is found when it is asked for, and a few values are looked
/// at with each insertion: keys of what has gone do not pile up.
///
/// A new value is not let in when there is nothing to give up for it and less
/// than a 32nd of the memory is left.
///
/// # What it costs
///
/// Each value takes whole pages, and about 220 bytes beside its key. On average
/// half a page is left over: an eighth of what a value of 16 KiB takes, and
/// three quarters with 1 KiB. Small values are better kept in some other way, or
/// many in one.
///
/// Values lie in [arenas](crate::VolatileArena), which double the address space
/// each time they are full: 64 MiB at first, 4 GiB at most. So the kernel has few
/// mappings, and the cache takes no more than twice the address space that its
/// values have taken at one time (it counts against `RLIMIT_AS` and, under strict
/// overcommit, as memory), and leaves at least an eighth of that to others. It is
/// given back by [`clear`](VolatileCache::clear).
/// Values of more than 64 MiB have a mapping each.
///
/// A hit on a value that was used in the last 100 ms
/// ([`set_hand_over_delay`](crate::set_hand_over_delay)) takes no system call and
/// less than a microsecond; later the kernel has to be asked for the pages, which
/// takes some ten. `cargo run --release --example volatile_cache_costs` measures
/// both, and insertions.
///
/// # Threads and forks
///
/// It may be used from any number of threads at once. Values are spread over
/// shards by the hash of their keys, and no lock is held while a value is made or
/// held. (`Hash`, `Eq` and `Drop` of a key run with a lock held: they must not use
/// the cache.)
///
/// In a child after `fork`, another thread of the parent might have been in the
/// midst of using it. So the child's copy is left alone: it is empty, and keeps
/// nothing. A child makes a cache of its own. What was pinned at the fork can be
/// read in the child as well.
pub struct VolatileCache<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    process: Process,
    shards: Box<[Shard<K>]>,
    hasher: RandomState,
    places: Mutex<Places>,
    margin: Mutex<Margin>,
    /// Which shard is to give a value up next.
    turn: AtomicUsize,
    refused: AtomicU64,
}

impl<K> Drop for VolatileCache<K> {
    fn drop(&mut self) {
        if !self.shared.process.is_this() {
            // A thread of the parent may have been about to change it.
            std::mem::forget(self.shared.clone());
        }
    }
}

impl<K: Hash + Eq> VolatileCache<K> {
    /// Makes an empty cache. No memory is mapped before the first value.
    pub fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let shards = (4 * threads).next_power_of_two().min(1 << 10);
        let hasher = RandomState::new();
        let seeds = (0..shards).map(|index| hasher.hash_one(index));
        let shards = seeds.map(|seed| Shard::new(hasher.clone(), seed)).collect();
        Self {
            shared: Arc::new(Shared {
                process: Process::this(),
                shards,
                hasher,
                places: Mutex::new(Places::default()),
                margin: Mutex::new(Margin::new()),
                turn: AtomicUsize::new(0),
                refused: AtomicU64::new(0),
            }),
        }
    }

    /// Returns the value of the key, pinned: `None` if there is none, or if any of
    /// it has been taken.
    pub fn get<Q>(&self, key: &Q) -> Option<Pinned>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let shared = self.ours()?;
        shared.shard(key).get(key)
    }

    /// Puts in a copy of the bytes, in the place of what the key had.
    ///
    /// It succeeds also if there is no memory to keep them: a value may always go,
    /// this one has gone at once. [`CacheStats::refused`] counts that.
    ///
    /// # Errors
    ///
    /// As for [`VolatileArena::new`](crate::VolatileArena::new) and
    /// [`VolatileArena::buffer`](crate::VolatileArena::buffer), when there is no
    /// room for the value in the address space; the key has no value then.
    pub fn insert(&self, key: K, bytes: &[u8]) -> Result<()> {
        self.insert_with_priority(key, bytes, Priority::default())
    }

    /// The same with a priority, which decides who goes first.
    ///
    /// # Errors
    ///
    /// As for [`insert`](VolatileCache::insert).
    pub fn insert_with_priority(&self, key: K, bytes: &[u8], priority: Priority) -> Result<()> {
        self.insert_with(key, bytes.len(), priority, |value| {
            value.copy_from_slice(bytes);
        })
    }

    /// The same for `len` bytes that are written in place: `fill` gets so many
    /// zeros. It is not called when there is no memory to keep them.
    ///
    /// # Errors
    ///
    /// As for [`insert`](VolatileCache::insert).
    pub fn insert_with(
        &self,
        key: K,
        len: usize,
        priority: Priority,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let Some(shared) = self.ours() else {
            return Ok(());
        };
        match shared.make(len, priority, fill) {
            Ok(Some(buffer)) => {
                let slot = Slot::volatile(buffer, len, priority);
                shared.put(key, Arc::new(slot));
                Ok(())
            }
            answer => {
                // The value that it had is out of date.
                shared.shard(&key).remove(&key);
                answer.map(drop)
            }
        }
    }

    /// Returns the value of the key, pinned. If it is not there, `rebuild` makes
    /// it, and it is put in, with the default priority.
    ///
    /// Where there is no memory to keep it, what `rebuild` has made is returned as
    /// it is. No lock is held meanwhile: `rebuild` may use the cache, and if
    /// several threads miss one key at the same time, each of them makes the
    /// value; what is ready last stays.
    pub fn get_or_insert_with(&self, key: K, rebuild: impl FnOnce() -> Vec<u8>) -> Pinned {
        let made = self.get_or_try_insert_with(key, || Ok(rebuild()));
        made.unwrap_or_else(|never: std::convert::Infallible| match never {})
    }

    /// The same where making the value may fail; then nothing is put in.
    ///
    /// # Errors
    ///
    /// Those of `rebuild`.
    pub fn get_or_try_insert_with<E>(
        &self,
        key: K,
        rebuild: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<Pinned, E> {
        if let Some(pinned) = self.get(&key) {
            return Ok(pinned);
        }
        let bytes = rebuild()?;
        let priority = Priority::default();
        let fill = |value: &mut [u8]| value.copy_from_slice(&bytes);
        let made = self
            .ours()
            .and_then(|shared| Some((shared, shared.make(bytes.len(), priority, fill).ok()??)));
        Ok(match made {
            Some((shared, buffer)) => {
                let (slot, pinned) = Slot::pinned(buffer, bytes.len(), priority);
                shared.put(key, slot);
                pinned
            }
            None => Pinned::uncached(bytes),
        })
    }

    /// Whether [`get`](VolatileCache::get) would find a value at this moment. Does
    /// not count as a use of it.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.ours()
            .is_some_and(|shared| shared.shard(key).contains(key))
    }

    /// Removes the value of the key, and gives its memory back, now or when nobody
    /// holds it any more. Returns whether there was one.
    pub fn remove<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.ours()
            .is_some_and(|shared| shared.shard(key).remove(key))
    }

    /// Removes all values, and gives the address space back as well.
    pub fn clear(&self) {
        let Some(shared) = self.ours() else {
            return;
        };
        shared.shards.iter().for_each(Shard::clear);
        lock(&shared.places).clear();
    }

    /// How many values there are, with those that have been taken since they were
    /// last looked at.
    pub fn len(&self) -> usize {
        let shards = self.ours().map(|shared| shared.shards.iter());
        shards.into_iter().flatten().map(Shard::len).sum()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tells what the cache has done and what is in it.
    pub fn stats(&self) -> CacheStats {
        let mut sum = CacheStats::default();
        if let Some(shared) = self.ours() {
            sum.refused = shared.refused.load(Ordering::Relaxed);
            shared
                .shards
                .iter()
                .for_each(|shard| shard.add_to(&mut sum));
        }
        sum
    }

    /// The cache, if it is not a copy in a child.
    fn ours(&self) -> Option<&Shared<K>> {
        self.shared.process.is_this().then_some(&*self.shared)
    }
}

impl<K: Hash + Eq> Shared<K> {
    fn shard<Q: Hash + ?Sized>(&self, key: &Q) -> &Shard<K> {
        // The map of a shard uses the same hash's lowest and highest bits.
        let hash = self.hasher.hash_one(key) >> 32;
        &self.shards[hash as usize & (self.shards.len() - 1)]
    }

    /// Makes room for a value and has it filled; `None` when there is no memory.
    fn make(
        &self,
        len: usize,
        priority: Priority,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Option<VolatileBuffer>> {
        let refuse = || {
            self.refused.fetch_add(1, Ordering::Relaxed);
        };
        let memory_bytes = len.max(1).checked_next_multiple_of(page_size());
        if !memory_bytes.is_some_and(|bytes| self.make_room(bytes, priority)) {
            refuse();
            return Ok(None);
        }
        // An empty value has a page, too.
        let taken = lock(&self.places).take(len.max(1));
        let mut buffer = taken.inspect_err(|_| refuse())?;
        fill(&mut buffer.as_mut_slice()?[..len]);
        Ok(Some(buffer))
    }

    /// Gives values up until there is memory for another one.
    fn make_room(&self, bytes: usize, priority: Priority) -> bool {
        let wanted_bytes = lock(&self.margin).wanted(bytes);
        let freed_bytes = self.evict(wanted_bytes, priority);
        lock(&self.margin).take(bytes, freed_bytes)
    }

    /// Gives up values of this and lower priorities.
    fn evict(&self, wanted_bytes: usize, most: Priority) -> usize {
        let mut freed_bytes = 0;
        for priority in Priority::ALL.into_iter().filter(|&lower| lower <= most) {
            let mut in_vain = 0;
            while freed_bytes < wanted_bytes && in_vain < self.shards.len() {
                // In turn, for all have about as much.
                let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.shards.len();
                match self.shards[turn].evict_one(priority) {
                    Some(bytes) => (freed_bytes, in_vain) = (freed_bytes + bytes, 0),
                    None => in_vain += 1,
                }
            }
        }
        freed_bytes
    }

    fn put(&self, key: K, slot: Arc<Slot>) {
        let shard = self.shard(&key);
        shard.put(key, slot);
        shard.sweep();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panic has left is as good as any: figures, and a list.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K: Hash + Eq> Default for VolatileCache<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Hash + Eq> fmt::Debug for VolatileCache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolatileCache")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
