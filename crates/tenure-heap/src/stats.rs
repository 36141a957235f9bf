//! The heap's figures: counted here, read from jemalloc, and published to the page of
//! counters that other processes read.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tenure::HeapGroup;
use tenure::heap_stats::{self, Figures};

use crate::jemalloc::{self, ALL};
use crate::{cache, decay_thread, deferred, groups, moves, pages, start};

/// Memory returned to the kernel, and that part of it which was returned under pressure.
static RETURNED_BYTES: AtomicUsize = AtomicUsize::new(0);
static PRESSURE_RETURNED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Counts free pages that were returned to the kernel.
pub(crate) fn note_returned(bytes: usize) {
    RETURNED_BYTES.fetch_add(bytes, Relaxed);
    if decay_thread::is_under_pressure() {
        PRESSURE_RETURNED_BYTES.fetch_add(bytes, Relaxed);
    }
}

/// Counts from zero: when the heap has started, and in the child of a fork.
pub(crate) fn reset() {
    RETURNED_BYTES.store(0, Relaxed);
    PRESSURE_RETURNED_BYTES.store(0, Relaxed);
}

/// Has the process publish the heap's figures before it reads its counters.
pub(crate) fn prepare() {
    reset();
    heap_stats::prepare(&(publish as fn()));
}

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
    /// Freed blocks that threads keep for themselves, or for a few others.
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
    /// The part of these figures that belongs to blocks of up to 28 KiB where jemalloc's pages
    /// have 8 KiB, and 14 KiB where they have 4: blocks, those included that threads keep for
    /// themselves, and free ranges that are too short for larger blocks.
    pub small: HeapGroup,
    /// The part that belongs to larger blocks of up to 4 MiB.
    pub medium: HeapGroup,
    /// The part that belongs to blocks of more than 4 MiB.
    ///
    /// jemalloc counts what lies in free ranges exactly. Of blocks over 32 KiB it counts all
    /// bytes, and how many blocks there are between two sizes: what is in use is divided
    /// between medium and large by that, to within an eighth of the smaller of the two.
    pub large: HeapGroup,
    /// The heap's addresses.
    pub mapped_bytes: usize,
    /// The heap's own tables.
    pub metadata_bytes: usize,
    /// Blocks that grew by moving their pages.
    pub moved: usize,
    /// Pages that ceased to be dirty, in all.
    pub dirty_purged_bytes: usize,
    /// Memory returned to the kernel, in all. A child of a fork counts from zero, here and
    /// below.
    pub returned_bytes: usize,
    /// Times that memory pressure had free pages returned early.
    pub pressure_purges: usize,
    /// The part of `returned_bytes` that was returned under memory pressure: while pages
    /// decayed faster, or all at once.
    pub pressure_returned_bytes: usize,
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
    jemalloc::refresh();
    latest()
}

/// Returns the figures as of jemalloc's last refresh.
fn latest() -> HeapStats {
    let page_bytes = jemalloc::page_bytes();
    let of_all = |name| jemalloc::figure(ALL, name);
    let total = |name| jemalloc::read::<usize>(name).unwrap_or(0);
    let dirty_bytes = of_all("pdirty") * page_bytes;
    let muzzy_bytes = of_all("pmuzzy") * page_bytes;
    let retained_bytes = total(c"stats.retained");
    let (kept_blocks, kept_bytes) = cache::count();
    let cached_bytes = of_all("tcache_bytes") + kept_bytes;
    let allocated = of_all("small.nmalloc") + of_all("large.nmalloc");
    let freed = of_all("small.ndalloc") + of_all("large.ndalloc");
    let dirty_purged_bytes = of_all("dirty_purged") * page_bytes;
    let [small, medium, large] = groups::read([dirty_bytes, muzzy_bytes, retained_bytes]);
    HeapStats {
        live_blocks: allocated.saturating_sub(freed + kept_blocks),
        live_bytes: total(c"stats.allocated").saturating_sub(cached_bytes),
        cached_bytes,
        active_bytes: jemalloc::active_bytes(),
        dirty_bytes,
        max_dirty_bytes: decay_thread::max_dirty_bytes(),
        muzzy_bytes,
        pending_bytes: deferred::bytes(),
        retained_bytes,
        small,
        medium,
        large,
        mapped_bytes: pages::mapped_bytes(),
        metadata_bytes: total(c"stats.metadata"),
        moved: moves::count(),
        dirty_purged_bytes: dirty_purged_bytes.saturating_sub(jemalloc::early_purged_bytes()),
        returned_bytes: RETURNED_BYTES.load(Relaxed),
        pressure_purges: decay_thread::pressure_purges(),
        pressure_returned_bytes: PRESSURE_RETURNED_BYTES.load(Relaxed),
    }
}

fn publish() {
    if start::has_started() {
        jemalloc::refresh();
        publish_latest();
    }
}

/// Publishes the figures as of jemalloc's last refresh.
pub(crate) fn publish_latest() {
    let now = latest();
    heap_stats::set(&Figures {
        small: now.small,
        medium: now.medium,
        large: now.large,
        active_bytes: now.active_bytes,
        cached_bytes: now.cached_bytes,
        max_dirty_bytes: now.max_dirty_bytes,
        pending_bytes: now.pending_bytes,
        returned_bytes: now.returned_bytes,
        pressure_purges: now.pressure_purges,
        pressure_returned_bytes: now.pressure_returned_bytes,
    });
}

/// Returns all free memory to the kernel: `malloc_trim(3)`. Returns whether there was any.
///
/// Blocks that other threads have cached for themselves stay.
pub fn trim() -> bool {
    if !start::has_started() {
        return false;
    }
    jemalloc::flush_thread();
    cache::free_all();
    jemalloc::refresh();
    let (dirty_bytes, muzzy_bytes) = jemalloc::free_bytes();
    jemalloc::purge_all();
    let pending_bytes = deferred::free_all();
    deferred::wait();
    dirty_bytes + muzzy_bytes + pending_bytes > 0
}
