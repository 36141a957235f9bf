//! The heap's figures.

use crate::jemalloc::{self, ALL};
use crate::{decay_thread, deferred, moves, pages, start};

/// The heap's figures, from [`stats`].
///
/// They are added up while other threads go on, so they belong to slightly different
/// moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapStats {
    /// Live blocks.
    pub live_blocks: usize,
    /// The memory of live blocks, rounded up to the sizes in which blocks are made.
    pub live_bytes: usize,
    /// Freed blocks that threads keep for themselves.
    pub cached_bytes: usize,
    /// Pages that hold blocks.
    pub active_bytes: usize,
    /// Free pages that are kept for reuse.
    pub dirty_bytes: usize,
    /// The present limit on `dirty_bytes`.
    pub max_dirty_bytes: usize,
    /// Free pages that the kernel may reclaim (MADV_FREE).
    pub muzzy_bytes: usize,
    /// Free pages that another thread has moved away and the decay thread will return.
    pub pending_bytes: usize,
    /// Addresses without memory that are kept for reuse.
    pub retained_bytes: usize,
    /// The heap's addresses.
    pub mapped_bytes: usize,
    /// The heap's own tables.
    pub metadata_bytes: usize,
    /// Blocks that grew by moving their pages.
    pub moved: usize,
    /// Pages that ceased to be dirty, in all.
    pub dirty_purged_bytes: usize,
    /// Memory returned to the kernel, in all.
    pub returned_bytes: usize,
    /// Times that memory pressure had free pages returned early.
    pub pressure_purges: usize,
}

/// Returns what the heap holds and has done; zeros while it is off.
///
/// ```
/// let stats = tenure_heap::stats();
/// println!("{} bytes in {} blocks", stats.live_bytes, stats.live_blocks);
/// ```
#[must_use]
pub fn stats() -> HeapStats {
    if !start::has_started() {
        return HeapStats::default();
    }
    let (dirty_bytes, muzzy_bytes) = jemalloc::free_bytes();
    let page_bytes = jemalloc::page_bytes();
    let of_all = |name| jemalloc::figure(ALL, name);
    let total = |name| jemalloc::read::<usize>(name).unwrap_or(0);
    let cached_bytes = of_all("tcache_bytes");
    let allocated = of_all("small.nmalloc") + of_all("large.nmalloc");
    let freed = of_all("small.ndalloc") + of_all("large.ndalloc");
    let purged_bytes = |kind| of_all(kind) * page_bytes;
    let muzzy_purged_bytes = purged_bytes("muzzy_purged");
    let dirty_purged_bytes =
        purged_bytes("dirty_purged").saturating_sub(jemalloc::early_purged_bytes());
    HeapStats {
        live_blocks: allocated.saturating_sub(freed),
        live_bytes: total(c"stats.allocated").saturating_sub(cached_bytes),
        cached_bytes,
        active_bytes: jemalloc::active_bytes(),
        dirty_bytes,
        max_dirty_bytes: decay_thread::max_dirty_bytes(),
        muzzy_bytes,
        pending_bytes: deferred::bytes(),
        retained_bytes: total(c"stats.retained"),
        mapped_bytes: pages::mapped_bytes(),
        metadata_bytes: total(c"stats.metadata"),
        moved: moves::count(),
        dirty_purged_bytes,
        // Pages purged from dirty went to muzzy, or to the kernel: they were muzzy, or they
        // still are.
        returned_bytes: dirty_purged_bytes
            .saturating_sub(muzzy_bytes)
            .max(muzzy_purged_bytes),
        pressure_purges: decay_thread::pressure_purges(),
    }
}

/// Returns all free memory to the kernel: `malloc_trim(3)`. Returns whether there was any.
///
/// Blocks that other threads have cached for themselves stay.
pub fn trim() -> bool {
    if !start::has_started() {
        return false;
    }
    jemalloc::flush_thread();
    let (dirty_bytes, muzzy_bytes) = jemalloc::free_bytes();
    jemalloc::purge_all();
    let pending_bytes = deferred::free_all();
    dirty_bytes + muzzy_bytes + pending_bytes > 0
}
