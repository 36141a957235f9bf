//! `VolatileCache`: a cache that follows memory pressure.

mod admit;
mod arenas;
mod closure;
mod entries;
mod evict;
mod flight;
mod gate;
mod ghosts;
mod insert;
mod lock;
mod lookup;
mod lookups;
mod options;
mod pinned;
mod reservation;
mod segment;
mod segments;
mod shard;
mod shared;
mod state;
mod stats;
mod survivors;

pub use options::CacheOptions;
pub use pinned::Pinned;
pub use stats::CacheStats;

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use self::shard::Shard;
use self::shared::Shared;

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
/// A small value takes its bytes, rounded up to 8, and about 53 bytes with a key of 8: 200,000
/// values of 256 bytes take 1.17 times the bytes of keys and values
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
/// for the look-up, beside other look-ups, and changes the word of a segment when the value is
/// pinned and unpinned. A later hit repopulates the pages, one system call that takes half
/// a microsecond for a page. Keys are hashed by foldhash, with a seed of each cache. `cargo run --release --example volatile_cache_costs` measures both, and
/// insertions.
///
/// # Threads and forks
///
/// Any number of threads may use the cache at once. The hashes of the keys spread values
/// over shards, and no lock is held while a value is made, or while the kernel is asked for
/// its pages, or frees some. (`Eq` of a key runs with a lock held, in several threads at a time,
/// so a cache for several threads has keys that are `Sync`. It must not use the cache, nor fork.
/// If it panics, the call has no effect, and the cache stays usable. `Drop` of a key runs
/// without, and may use the cache.)
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
        let found = shard.get(hash, key, &shared.lookups);
        if found.is_none() {
            shared.lookups.count_miss();
        }
        found
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
    /// waits for itself. It may use another one, of which no thread runs such a closure at that
    /// moment: that may panic, too.
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
    /// waits for itself. It may use another one, of which no thread runs such a closure at that
    /// moment: that may panic, too.
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
            sum.hits = shared.lookups.hits();
            sum.misses = shared.lookups.misses();
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
