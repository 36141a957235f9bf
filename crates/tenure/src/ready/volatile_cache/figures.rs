//! What a cache tells of itself.

/// What a [`VolatileCache`](super::VolatileCache) has done since it was made, and
/// what is in it.
///
/// What has been inserted is there still, or has gone in one of three ways:
/// `insertions == values + removed + purged + evicted`. A value that the kernel
/// or the keeper has taken counts as there until the cache finds out. Read while
/// other threads work, two figures may be from two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Values asked for that were there.
    pub hits: u64,
    /// Values asked for that were not.
    pub misses: u64,
    /// Values that came in, also in the place of others.
    pub insertions: u64,
    /// Values that were not let in, as there was no memory or no room in the
    /// address space for them.
    pub refused: u64,
    /// Values that the program has removed or replaced.
    pub removed: u64,
    /// Values of which the kernel or the keeper had taken something, as far as
    /// the cache has found out.
    pub purged: u64,
    /// What those took, in bytes of whole pages.
    pub purged_bytes: u64,
    /// Values that the cache gave up itself, to make room for others.
    pub evicted: u64,
    /// What those took, in bytes of whole pages.
    pub evicted_bytes: u64,
    /// Values that are there.
    pub values: u64,
    /// What they take, in bytes of whole pages.
    pub bytes: u64,
}
