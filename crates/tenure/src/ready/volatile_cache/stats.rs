//! The statistics of a cache.

/// The counters of a [`VolatileCache`](super::VolatileCache) since it was created, and
/// its current size.
///
/// Each inserted value is still in the cache or has left it in one of three ways:
/// `insertions == values + removed + purged + evicted`. A value that the kernel or the
/// offer thread has purged counts as present until the cache notices. While other
/// threads use the cache, two figures may be from different moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Lookups that found their value.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Values inserted, including replacements.
    pub insertions: u64,
    /// Values refused, because memory or address space was unavailable.
    pub refused: u64,
    /// Values that the program has removed or replaced, or that have expired.
    pub removed: u64,
    /// Values of which the kernel or the offer thread has purged pages, as far as the
    /// cache has noticed.
    pub purged: u64,
    /// The size of the memory that was purged, in bytes of whole pages.
    pub purged_bytes: u64,
    /// Values that the cache itself has evicted to insert others.
    pub evicted: u64,
    /// The size of the memory that was freed by evictions, in bytes of whole pages.
    pub evicted_bytes: u64,
    /// Values in the cache.
    pub values: u64,
    /// The size of the memory that the values in the cache take, in bytes of whole pages.
    pub bytes: u64,
}

impl CacheStats {
    /// Adds a shard's counters; look-ups are counted elsewhere.
    pub(super) fn add(&mut self, other: &Self) {
        self.insertions += other.insertions;
        self.refused += other.refused;
        self.removed += other.removed;
        self.purged += other.purged;
        self.purged_bytes += other.purged_bytes;
        self.evicted += other.evicted;
        self.evicted_bytes += other.evicted_bytes;
        self.values += other.values;
        self.bytes += other.bytes;
    }
}
