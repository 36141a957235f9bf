//! `VolatileCache`: a cache that follows memory pressure.

mod arenas;
mod entries;
mod evict;
mod flight;
mod gate;
mod ghosts;
mod options;
mod pinned;
mod segment;
mod segments;
mod shard;
mod shared;
mod stats;

pub use options::CacheOptions;
pub use pinned::Pinned;
pub use stats::CacheStats;

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use self::flight::{End, Missing};
use self::shard::Shard;
use self::shared::Shared;
use crate::ground::error::Result;
use crate::verbs::volatile::Priority;

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
///   than the new value's. It does the same for its own limit, if it
///   [has one](CacheOptions::max_bytes).
///
/// Within a priority the cache evicts by S3-FIFO: a new value is on probation, and is
/// evicted if it was not found until a tenth of the memory has been filled with others. So
/// a scan of many values displaces none that are in use. Values that were found stay for
/// another round, and up to four; a key that comes back soon after its eviction is not on
/// probation again.
///
/// If a single page of a value is purged, the whole value is: a lookup never returns it
/// in part. The cache notices purged values when they are looked up. An insertion that takes
/// new memory also checks a few values, so that keys of purged values do not pile up.
///
/// A new value is refused if there is nothing to evict for it and less than a 32nd of the
/// memory (and less than 1 GiB) would be left.
///
/// # Small and large values
///
/// Values of up to 3 KiB share *segments* of 16 KiB, each filled from its start to its end.
/// A segment is pinned, purged and freed as a whole: a pinned value keeps its neighbours
/// resident, and a purged page takes them with it. An evicted segment's values that were
/// found lately are copied into another one. What is removed or replaced leaves a hole until
/// its neighbours are gone. A larger value is a segment by itself, in whole pages.
///
/// # What it costs
///
/// A small value takes its bytes, rounded up to 8, and about 40 bytes with a key of 8: 200,000
/// values of 256 bytes take 1.12 times the bytes of keys and values
/// (`cargo test -p tenure --test volatile_cache_values -- take_a_quarter --nocapture` prints
/// it). A large value takes whole pages, and about 260 bytes besides its key. On average half
/// a page is unused: an eighth of what a value of 16 KiB takes.
///
/// Values lie in [arenas](crate::VolatileArena): the first has 64 MiB, and each further
/// one doubles the total and has at most 4 GiB. So the kernel has few mappings, and the
/// cache takes at most twice the address space that its values have taken at one time
/// (it counts against `RLIMIT_AS` and, under strict overcommit, as memory), and leaves
/// at least an eighth of that to others. [`clear`](VolatileCache::clear) releases it.
/// Values of more than 64 MiB have a mapping each, of huge pages where the kernel has them.
///
/// A hit on a value that was used in the last 100 ms (the
/// [offer delay](crate::volatile::set_offer_delay)) makes no system call: it locks a shard
/// for the look-up, and changes the word of a segment when the value is pinned and unpinned. A
/// later hit repopulates the pages, one system call that takes half
/// a microsecond for a page. Keys are hashed by foldhash, with a seed of each cache. `cargo run --release --example volatile_cache_costs` measures both, and
/// insertions.
///
/// # Threads and forks
///
/// Any number of threads may use the cache at once. The hashes of the keys spread values
/// over shards, and no lock is held while a value is made, or while the kernel is asked for
/// its pages, or frees some. (`Eq` of a key runs with a lock held: it must not use the cache,
/// nor fork. If it panics, the call has no effect, and the cache stays usable. `Drop` of a key
/// runs without, and may use the cache.)
///
/// A thread of the parent may be using the cache at the moment of a `fork`. So the
/// child's copy is inert: it is empty and keeps nothing. A child creates its own cache.
/// It can still read values that were pinned at the fork.
pub struct VolatileCache<K> {
    shared: Arc<Shared<K>>,
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
        Self::with_options(CacheOptions::new())
    }

    /// Creates an empty cache with a limit, or with values that expire.
    pub fn with_options(options: CacheOptions) -> Self {
        Self {
            shared: Arc::new(Shared::new(options)),
        }
    }

    /// Pins the value of the key and returns it; `None` if there is none, if it has expired,
    /// if any page of it was purged, or if the kernel cannot make it nonvolatile at this
    /// moment (no memory for its page tables): then it stays, and a later call may find it.
    #[inline]
    pub fn get<Q>(&self, key: &Q) -> Option<Pinned>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let shared = self.ours()?;
        let (hash, shard) = shared.shard(key);
        shard.get(hash, key, shared.process, true)
    }

    /// Inserts a copy of the bytes, with the default priority, and replaces the
    /// previous value of the key.
    ///
    /// It also succeeds if memory to keep the bytes is unavailable, or if they exceed the
    /// cache's [limit](CacheOptions::max_bytes): a value may be given up at any time, and
    /// this one is given up at once. [`CacheStats::refused`] counts such values.
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
    /// them resident and, of a value that has pages of its own, on a page boundary; it is
    /// not called if memory to keep them is unavailable.
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
        self.insert_counted(key, 0, len, priority, fill)
    }

    /// Does what [`insert_with`](Self::insert_with) does, and has memory admitted for the
    /// key as well: for keys that the caller has copied.
    #[doc(hidden)]
    pub fn insert_counted(
        &self,
        key: K,
        key_bytes: usize,
        len: usize,
        priority: Priority,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let Some(shared) = self.ours() else {
            return Ok(());
        };
        let place @ (hash, shard) = shared.shard(&key);
        match shared.make(place, (len, key_bytes), priority, fill) {
            Ok(Some(making)) => {
                drop(making.commit(key, hash, None));
                Ok(())
            }
            result => {
                // The previous value is out of date.
                if self.ours().is_some() {
                    shard.remove(hash, &key);
                }
                result.map(drop)
            }
        }
    }

    /// Pins the value of the key and returns it. On a miss `rebuild` makes the value,
    /// which is inserted with the default priority.
    ///
    /// Each missing value is made once, however many threads ask for it: one makes it, and
    /// the others wait. If `rebuild` panics, one of those that wait makes the value. No lock
    /// is held while `rebuild` runs: it may use the cache, but two makers must not ask for
    /// each other's values.
    ///
    /// If the key is inserted or removed while `rebuild` runs, or the cache is cleared or
    /// [`retain`](VolatileCache::retain) called, the value of `rebuild` may be out of date: the
    /// caller gets it, but it is not cached. The threads that wait look for the key once more.
    ///
    /// If memory to keep the value is unavailable, the bytes of `rebuild` are returned
    /// without being cached, and each of the threads makes its own.
    pub fn get_or_insert_with(&self, key: K, rebuild: impl FnOnce() -> Vec<u8>) -> Pinned {
        let made = self.get_or_try_insert_with(key, || Ok(rebuild()));
        made.unwrap_or_else(|never: std::convert::Infallible| match never {})
    }

    /// Pins the value of the key and returns it, like
    /// [`get_or_insert_with`](VolatileCache::get_or_insert_with), where making the value
    /// may fail. If `rebuild` fails, nothing is inserted, and one of the threads that wait
    /// tries next.
    ///
    /// # Errors
    ///
    /// Those of `rebuild`.
    pub fn get_or_try_insert_with<E>(
        &self,
        key: K,
        rebuild: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<Pinned, E> {
        let Some(shared) = self.ours() else {
            return rebuild().map(Pinned::uncached);
        };
        let place @ (hash, shard) = shared.shard(&key);
        let mut maker = None;
        loop {
            if let Some(pinned) = shard.get(hash, &key, shared.process, false) {
                return Ok(pinned);
            }
            // Between that look-up and this another thread may have inserted the value.
            if maker.is_some() {
                break;
            }
            match shard.flights.enter(hash) {
                Missing::Make(making) => maker = Some(making),
                Missing::MakeAgain(making) => {
                    maker = Some(making);
                    break;
                }
                Missing::Made(End::Refused) => break,
                Missing::Made(_) => {}
            }
        }
        let mut maker = maker.unwrap_or_else(|| shard.flights.enter_alone(hash));
        shard.count_miss();
        let bytes = rebuild()?;
        let fill = |value: &mut [u8]| value.copy_from_slice(&bytes);
        let making = match self.ours().filter(|_| !maker.is_outdated()) {
            Some(shared) => shared.make(place, (bytes.len(), 0), Priority::default(), fill),
            None => Ok(None),
        };
        let making = making.ok().flatten();
        let pinned = making.and_then(|making| making.commit(key, hash, Some(&maker)));
        maker.set_end(match pinned {
            Some(_) => End::Inserted,
            None if maker.is_outdated() => End::Failed,
            None => End::Refused,
        });
        Ok(pinned.unwrap_or_else(|| Pinned::uncached(bytes)))
    }

    /// Whether [`get`](VolatileCache::get) would find a value at this moment. This does
    /// not count as a use of the value.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.ours().is_some_and(|shared| {
            let (hash, shard) = shared.shard(key);
            shard.contains(hash, key)
        })
    }

    /// Removes the value of the key, and frees its memory, now or with its last pin; that of
    /// a value of up to 3 KiB once the other values of its pages are gone. Returns whether
    /// there was a value.
    pub fn remove<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.ours().is_some_and(|shared| {
            let (hash, shard) = shared.shard(key);
            shard.remove(hash, key)
        })
    }

    /// Removes the values for whose keys `keep` returns `false`. Returns how many. Values that
    /// are [being made](VolatileCache::get_or_insert_with) meanwhile are not cached.
    ///
    /// # Panics
    ///
    /// `keep` runs with a lock held: it must not use the cache, which may panic, but never
    /// waits for itself.
    pub fn retain(&self, mut keep: impl FnMut(&K) -> bool) -> usize {
        let process = self.shared.process;
        let shards = self.ours().map(|shared| shared.shards.iter());
        let alive = shards
            .into_iter()
            .flatten()
            .take_while(|_| process.is_this());
        alive.map(|shard| shard.retain(process, &mut keep)).sum()
    }

    /// Calls `call` with the key of each value, in no order; some of the values may be
    /// purged. Values that are inserted or removed meanwhile may be left out.
    ///
    /// # Panics
    ///
    /// `call` runs with a lock held: it must not use the cache, which may panic, but never
    /// waits for itself.
    ///
    /// ```
    /// let cache = tenure::VolatileCache::new();
    /// cache.insert("cat.jpg", &[7; 300])?;
    /// cache.insert("dog.jpg", &[8; 300])?;
    /// let mut names = Vec::new();
    /// cache.for_each_key(|&name| names.push(name));
    /// assert_eq!(names.len(), 2);
    /// assert_eq!(cache.retain(|name| name.starts_with("cat")), 1);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn for_each_key(&self, mut call: impl FnMut(&K)) {
        let process = self.shared.process;
        let shards = self.ours().map(|shared| shared.shards.iter());
        let shards = shards.into_iter().flatten();
        for shard in shards.take_while(|_| process.is_this()) {
            shard.for_each_key(process, &mut call);
        }
    }

    /// Removes all values, and releases the address space as well.
    pub fn clear(&self) {
        if let Some(shared) = self.ours() {
            shared.clear();
        }
    }

    /// Returns the number of values, including those whose purging or expiry the cache has
    /// not noticed yet.
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
            for shard in &shared.shards {
                shard.add_to(&mut sum);
            }
        }
        sum
    }

    /// Returns the cache unless it is the inert copy of a forked child.
    #[inline]
    fn ours(&self) -> Option<&Shared<K>> {
        self.shared.process.is_this().then_some(&*self.shared)
    }
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
