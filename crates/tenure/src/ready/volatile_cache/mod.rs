//! `VolatileCache`: a cache that follows memory pressure.

mod arenas;
mod gate;
mod pinned;
mod shard;
mod slot;
mod stats;

pub use pinned::Pinned;
pub use stats::CacheStats;

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use self::arenas::Arenas;
use self::gate::{Gate, Inside};
use self::shard::Shard;
use self::slot::{Process, Slot};
use crate::ground::error::Result;
use crate::ground::sys::{fork, page_size};
use crate::observation::headroom::{self, Admission, LEDGER, Watermark};
use crate::observation::stats::CACHE_BYTES;
use crate::verbs::volatile::{Priority, VolatileBuffer};

/// A cache of byte values that follows memory pressure: it keeps as many values as
/// memory allows, and needs no configured size. When memory becomes short, for this
/// process or for others, values are given up, and looking them up is a miss.
///
/// It suits data that can be made again but is worth keeping: decoded images, blocks of
/// files, results of queries. [`get`](VolatileCache::get) returns the bytes in place,
/// pinned for as long as the caller holds them, or `None`.
///
/// ```
/// use tenure::VolatileCache;
///
/// let thumbnails = VolatileCache::new();
/// thumbnails.insert("cat.jpg", &[7; 16 << 10])?;
///
/// // The value stays while `thumbnail` lives.
/// if let Some(thumbnail) = thumbnails.get("cat.jpg") {
///     assert_eq!(thumbnail.len(), 16 << 10);
/// }
///
/// // A missing value is made again.
/// let thumbnail = thumbnails.get_or_insert_with("dog.jpg", || vec![8; 16 << 10]);
/// assert_eq!(thumbnail[0], 8);
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Purging and eviction
///
/// Values are [volatile](crate::VolatileBuffer) while they are not pinned. They are
/// given up in three ways:
/// * The kernel purges pages of values when any process needs memory.
/// * Under severe pressure tenure's offer thread purges whole values: of this process's
///   volatile memory the lowest priority and the least recently used first.
/// * The cache evicts values before it takes memory for a new one, if less than an
///   eighth of the memory is unused or page cache (and less than 5 GiB), of the machine
///   or of a memory cgroup around the process. So it does not fill a cgroup to the point
///   where the kernel kills, even where the kernel can reclaim nothing (no userfaultfd).
///   The cache evicts values of the lowest priority first, and none of a higher priority
///   than the new value's. Within a priority it evicts the least recently used of eight
///   random values.
///
/// If a single page of a value is purged, the whole value is: a lookup never returns it
/// in part. The cache notices purged values when they are looked up. Each insertion also
/// checks a few values, so that keys of purged values do not pile up.
///
/// A new value is refused if there is nothing to evict for it and less than a 32nd of the
/// memory (and less than 1 GiB) would be left.
///
/// # What it costs
///
/// Each value takes whole pages, and about 220 bytes besides its key. On average half a
/// page is unused: an eighth of what a value of 16 KiB takes, and three quarters of what
/// a value of 1 KiB takes. Keep small values elsewhere, or many in one.
///
/// Values lie in [arenas](crate::VolatileArena): the first has 64 MiB, and each further
/// one doubles the total and has at most 4 GiB. So the kernel has few mappings, and the
/// cache takes at most twice the address space that its values have taken at one time
/// (it counts against `RLIMIT_AS` and, under strict overcommit, as memory), and leaves
/// at least an eighth of that to others. [`clear`](VolatileCache::clear) releases it.
/// Values of more than 64 MiB have a mapping each.
///
/// A hit on a value that was used in the last 100 ms (the
/// [offer delay](crate::volatile::set_offer_delay)) makes no system call and takes less
/// than a microsecond. A later hit repopulates the pages, one system call that takes half
/// a microsecond for a page. `cargo run --release --example volatile_cache_costs` measures both, and
/// insertions.
///
/// # Threads and forks
///
/// Any number of threads may use the cache at once. The hashes of the keys spread values
/// over shards, and no lock is held while a value is made or pinned. (`Hash`, `Eq` and
/// `Drop` of a key run with a lock held: they must not use the cache.)
///
/// A thread of the parent may be using the cache at the moment of a `fork`. So the
/// child's copy is inert: it is empty and keeps nothing. A child creates its own cache.
/// It can still read values that were pinned at the fork.
pub struct VolatileCache<K> {
    shared: Arc<Shared<K>>,
}

/// The bytes that a value takes besides its pages and its key.
const VALUE_OVERHEAD_BYTES: usize = 256;

struct Shared<K> {
    process: Process,
    shards: Box<[Shard<K>]>,
    hasher: RandomState,
    arenas: Mutex<Arenas>,
    gate: Gate,
    /// The shard to evict from next, modulo their number.
    next_eviction: AtomicUsize,
    refused: AtomicU64,
}

impl<K> Drop for Shared<K> {
    /// The values are dropped before the arenas.
    fn drop(&mut self) {
        let bytes: u64 = self.shards.iter().map(Shard::bytes).sum();
        CACHE_BYTES.sub(usize::try_from(bytes).unwrap_or(usize::MAX));
        lock(&self.arenas).close();
    }
}

impl<K> Drop for VolatileCache<K> {
    fn drop(&mut self) {
        if !self.shared.process.is_this() {
            // Leaked: a thread of the parent may have been changing it at the fork.
            std::mem::forget(self.shared.clone());
        }
    }
}

impl<K: Hash + Eq> VolatileCache<K> {
    /// Creates an empty cache. It maps no memory before the first insertion.
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
                arenas: Mutex::new(Arenas::default()),
                gate: Gate::new(),
                next_eviction: AtomicUsize::new(0),
                refused: AtomicU64::new(0),
            }),
        }
    }

    /// Pins the value of the key and returns it; `None` if there is none, if any page of
    /// it was purged, or if the kernel cannot make it nonvolatile at this moment (no
    /// memory for its page tables): then it stays, and a later call may find it.
    pub fn get<Q>(&self, key: &Q) -> Option<Pinned>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let shared = self.ours()?;
        shared.shard(key).get(key)
    }

    /// Inserts a copy of the bytes, with the default priority, and replaces the
    /// previous value of the key.
    ///
    /// It also succeeds if memory to keep the bytes is unavailable: a value may be
    /// given up at any time, and this one is given up at once.
    /// [`CacheStats::refused`] counts such values.
    ///
    /// # Errors
    ///
    /// As for [`VolatileArena::new`](crate::VolatileArena::new) and
    /// [`VolatileArena::buffer`](crate::VolatileArena::buffer), when address space for
    /// the value is unavailable; the key then has no value.
    pub fn insert(&self, key: K, bytes: &[u8]) -> Result<()> {
        self.insert_with(key, bytes.len(), Priority::default(), |value| {
            value.copy_from_slice(bytes);
        })
    }

    /// Inserts a value of `len` bytes that `fill` writes in place, with a priority:
    /// lower priorities are purged and evicted first. `fill` receives zeroed bytes, all of
    /// them resident; it is not called if memory to keep them is unavailable.
    ///
    /// # Errors
    ///
    /// As for [`insert`](VolatileCache::insert).
    ///
    /// ```
    /// use tenure::{VolatileCache, volatile::Priority};
    ///
    /// let cache = VolatileCache::new();
    /// cache.insert_with(1, 4096, Priority::High, |value| value.fill(7))?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
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
                shared.insert(key, Arc::new(slot));
                Ok(())
            }
            result => {
                // The previous value is out of date.
                if let Some(shared) = self.ours() {
                    shared.shard(&key).remove(&key);
                }
                result.map(drop)
            }
        }
    }

    /// Pins the value of the key and returns it. On a miss `rebuild` makes the value,
    /// which is inserted with the default priority.
    ///
    /// If memory to keep the value is unavailable, the bytes of `rebuild` are returned
    /// without being cached. No lock is held while `rebuild` runs: it may use the
    /// cache, and if several threads miss one key at the same time, each of them makes
    /// the value, and the last insertion stays.
    pub fn get_or_insert_with(&self, key: K, rebuild: impl FnOnce() -> Vec<u8>) -> Pinned {
        let made = self.get_or_try_insert_with(key, || Ok(rebuild()));
        made.unwrap_or_else(|never: std::convert::Infallible| match never {})
    }

    /// Pins the value of the key and returns it, like
    /// [`get_or_insert_with`](VolatileCache::get_or_insert_with), where making the value
    /// may fail. If `rebuild` fails, nothing is inserted.
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
                shared.insert(key, slot);
                pinned
            }
            None => Pinned::uncached(bytes),
        })
    }

    /// Whether [`get`](VolatileCache::get) would find a value at this moment. This does
    /// not count as a use of the value.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.ours()
            .is_some_and(|shared| shared.shard(key).contains(key))
    }

    /// Removes the value of the key, and frees its memory, now or with its last pin.
    /// Returns whether there was a value.
    pub fn remove<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.ours()
            .is_some_and(|shared| shared.shard(key).remove(key))
    }

    /// Removes all values, and releases the address space as well.
    pub fn clear(&self) {
        let Some(shared) = self.ours() else {
            return;
        };
        let arenas = std::mem::take(&mut *lock(&shared.arenas));
        arenas.close();
        shared.shards.iter().for_each(Shard::clear);
        // Unlocked before, because that takes time.
        drop(arenas);
    }

    /// Returns the number of values, including those whose purging the cache has not
    /// noticed yet.
    pub fn len(&self) -> usize {
        let shards = self.ours().map(|shared| shared.shards.iter());
        shards.into_iter().flatten().map(Shard::len).sum()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns what the cache has done, and its current contents.
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

    /// Returns the cache unless it is the inert copy of a forked child.
    fn ours(&self) -> Option<&Shared<K>> {
        self.shared.process.is_this().then_some(&*self.shared)
    }
}

impl<K: Hash + Eq> Shared<K> {
    fn shard<Q: Hash + ?Sized>(&self, key: &Q) -> &Shard<K> {
        // Bits from the middle: the map of a shard uses the lowest and the highest bits
        // of the same hash.
        let hash = self.hasher.hash_one(key) >> 32;
        &self.shards[hash as usize & (self.shards.len() - 1)]
    }

    /// Allocates and fills the buffer of a value; `None` if memory is unavailable.
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
        let admission = memory_bytes.and_then(|bytes| self.admit(bytes, priority));
        let Some((admission, inside)) = admission else {
            refuse();
            return Ok(None);
        };
        // An empty value has a page, too.
        let allocated = lock(&self.arenas).allocate(len.max(1));
        let mut buffer = allocated.inspect_err(|_| refuse())?;
        // What becomes resident here is not in flight while the program makes the value.
        let populated = buffer.populate(|bytes| admission.mark_resident(bytes));
        if populated.is_err() {
            admission.mark_resident(usize::MAX);
            refuse();
            return Ok(None);
        }
        drop(inside);
        let filled = FillGuard(&admission);
        fill(&mut buffer.as_mut_slice()?[..len]);
        drop(filled);
        Ok(Some(buffer))
    }

    /// Admits the memory of a value, after evicting as many values as needed; `None` if
    /// memory is unavailable.
    fn admit(
        &self,
        memory_bytes: usize,
        priority: Priority,
    ) -> Option<(Admission, Option<Inside<'_>>)> {
        let bytes = memory_bytes.checked_add(VALUE_OVERHEAD_BYTES)?;
        if !LEDGER.is_due()
            && let Some(admission) = headroom::take(bytes, Watermark::High)
        {
            return Some((admission, None));
        }
        let inside = Some(self.gate.enter(bytes).ok()?);
        if !self.can_fit(bytes) {
            // Memory may have become free since the last reading.
            headroom::refresh().ok()?;
            if !self.can_fit(bytes) {
                return None;
            }
        }
        let mut is_read = false;
        loop {
            let evicted_bytes = self.evict_for(bytes, priority);
            // The reserve is restored step by step, so that one caller does not pay for all
            // of it; the minimal reserve is restored at once.
            if let Some(admission) = headroom::take(bytes, Watermark::Low) {
                return Some((admission, inside));
            }
            if evicted_bytes == 0 {
                if is_read {
                    return None;
                }
                // Memory may have become free since the last reading.
                headroom::refresh().ok()?;
                is_read = true;
            }
        }
    }

    /// Returns whether evicting all values would make as much memory free. Values are not
    /// evicted for one that is refused then.
    fn can_fit(&self, bytes: usize) -> bool {
        let surplus_bytes = LEDGER.surplus(Watermark::Low);
        let missing_bytes = isize::try_from(bytes).map(|bytes| bytes.saturating_sub(surplus_bytes));
        let missing_bytes = missing_bytes.unwrap_or(isize::MAX);
        if missing_bytes <= 0 {
            return true;
        }
        let kept_bytes: u64 = self.shards.iter().map(Shard::bytes).sum();
        missing_bytes as u64 <= kept_bytes
    }

    /// Evicts values until the reserve allows for `bytes`, or four times as much is evicted
    /// and the minimal reserve allows for them, or nothing of this or a lower priority is
    /// left to evict. Returns the number of bytes freed.
    fn evict_for(&self, bytes: usize, max_priority: Priority) -> usize {
        let has_surplus = |watermark| LEDGER.surplus(watermark) >= bytes as isize;
        let is_enough = |freed_bytes: usize| {
            has_surplus(Watermark::High)
                || freed_bytes >= bytes.saturating_mul(4) && has_surplus(Watermark::Low)
        };
        let mut freed_bytes = 0;
        let priorities = Priority::ALL.into_iter();
        for priority in priorities.filter(|&priority| priority <= max_priority) {
            let mut failures = 0;
            while !is_enough(freed_bytes) && failures < self.shards.len() {
                // Round robin, because all shards have about the same size.
                let next = self.next_eviction.fetch_add(1, Ordering::Relaxed);
                match self.shards[next % self.shards.len()].evict_one(priority) {
                    Some(bytes) => (freed_bytes, failures) = (freed_bytes + bytes, 0),
                    None => failures += 1,
                }
            }
        }
        freed_bytes
    }

    fn insert(&self, key: K, slot: Arc<Slot>) {
        if !self.process.is_this() {
            // The program has forked while it made the value.
            return;
        }
        let shard = self.shard(&key);
        shard.insert(key, slot);
        shard.sweep();
    }
}

/// Settles the rest of an admission when the value is made, or its maker panics.
struct FillGuard<'a>(&'a Admission);

impl Drop for FillGuard<'_> {
    fn drop(&mut self) {
        self.0.mark_resident(usize::MAX);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic cannot leave these inconsistent: they hold figures and a list.
    fork::lock_outer(mutex)
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
