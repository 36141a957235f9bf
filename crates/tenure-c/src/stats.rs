//! stats and version: the counters of the process, and the version of the library.

use std::ffi::{c_char, c_int};
use std::ptr;

use tenure::{Count, HeapGroup, Stats};

use crate::answer::{BAD_POINTER, answer_without_memory};

/// How often one operation succeeded, and on how much memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct tenure_count {
    /// The number of times.
    pub calls: u64,
    /// The sum of the bytes. A byte counts each time.
    pub bytes: u64,
}

/// Memory of a heap for blocks of some sizes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct tenure_heap_group {
    /// Blocks of these sizes, freed ones included that threads keep for themselves.
    pub in_use_bytes: u64,
    /// Free pages that are kept for reuse.
    pub dirty_bytes: u64,
    /// Free pages that the kernel may reclaim.
    pub muzzy_bytes: u64,
    /// Addresses without memory, kept for reuse.
    pub retained_bytes: u64,
}

/// Counters of the calls of tenure in this process since it began, or since it was forked.
/// Calls that failed, and calls on 0 bytes, are not counted. New fields come last.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tenure_stats {
    /// Ranges populated whole.
    pub populate: tenure_count,
    /// Ranges locked, in either mode.
    pub lock: tenure_count,
    /// Ranges unlocked. If one mode is cleared, the bytes are those of the parts that had
    /// such a lock; if both are, those of the whole range.
    pub unlock: tenure_count,
    /// Calls of `tenure_mlockall()`.
    pub lock_all_calls: u64,
    /// Calls of `tenure_munlockall()`.
    pub unlock_all_calls: u64,
    /// Ranges freed lazily.
    pub lazy_free: tenure_count,
    /// Ranges marked volatile, for the first time or again.
    pub mark_volatile: tenure_count,
    /// Ranges marked nonvolatile. The bytes are those of the parts that were volatile.
    pub mark_nonvolatile: tenure_count,
    /// Volatile pages that the kernel purged, in bytes. They are counted when tenure finds
    /// them: when they are marked nonvolatile.
    pub purged_by_kernel_bytes: u64,
    /// Volatile pages that `tenure_purge()` purged, in bytes.
    pub purged_on_request_bytes: u64,
    /// Volatile memory that counts as purged because its protection ended outside of
    /// tenure: its userfaultfd was closed, or it was mapped over.
    pub unprotected_bytes: u64,
    /// Memory that is volatile at the moment.
    pub volatile_bytes: u64,
    /// Ranges unmapped. The bytes include holes.
    pub munmap: tenure_count,
    /// Ranges whose contents were discarded.
    pub discard: tenure_count,
    /// Holes punched into shared memory (not in the C interface).
    pub punch: tenure_count,
    /// The part of `munmap` and `discard` that was moved away for workers to free.
    pub deferred_free: tenure_count,
    /// The part of `munmap` and `discard` that the caller itself freed.
    pub freed_by_caller_bytes: u64,
    /// Worker threads that were started to free memory.
    pub workers_started: u64,
    /// The part of `deferred_free` that is not free yet, at the moment.
    pub pending_release_bytes: u64,
    /// Ranges that a policy freed at once (not in the C interface).
    pub eager_free: tenure_count,
    /// Ranges that a policy freed lazily and had reclaimed under severe pressure (not in
    /// the C interface).
    pub freed_under_pressure: tenure_count,
    /// Volatile pages that tenure purged under memory pressure, in bytes.
    pub purged_under_pressure_bytes: u64,
    /// The part of the volatile memory that is offered to the kernel, at the moment.
    pub offered_bytes: u64,
    /// Volatile memory whose offer failed when it was due (it was locked or replaced
    /// outside of tenure, or the process had too many mappings); the pages stay resident.
    /// tenure offers ranges again when they are marked again, and buffers after seconds.
    pub offer_failed_bytes: u64,
    /// Volatile memory that cannot be offered because userfaultfd or MADV_POPULATE_WRITE
    /// is unavailable, at the moment: all of it, or none. Only tenure purges it, under
    /// memory pressure.
    pub unofferable_bytes: u64,
    /// Lookups in caches that found their value (not in the C interface).
    pub cache_hits: u64,
    /// Lookups in caches that did not (not in the C interface).
    pub cache_misses: u64,
    /// Values that caches evicted to insert others (not in the C interface).
    pub cache_evicted: tenure_count,
    /// Values of caches that were found purged (not in the C interface).
    pub cache_purged: tenure_count,
    /// The values in caches, at the moment (not in the C interface).
    pub cache_bytes: u64,
    /// Memory that the page pool holds at the moment.
    pub pool_bytes: u64,
    /// The part of it that is lazily free, at the moment.
    pub pool_lazily_free_bytes: u64,
    /// Recycled memory that the page pool has kept.
    pub pool_recycled_bytes: u64,
    /// Memory that the page pool has taken from the kernel ahead of need.
    pub pool_prefilled_bytes: u64,
    /// Ranges, or parts of them, that were populated from the page pool.
    pub pool_given: tenure_count,
    /// Memory that the page pool has returned to the kernel.
    pub pool_returned_bytes: u64,
    /// Pages in SQLite's page cache, at the moment (not in the C interface).
    pub sqlite_pages: u64,
    /// Pages of SQLite that were found purged (not in the C interface).
    pub sqlite_purged: tenure_count,
    /// Pages of SQLite that were found intact after the kernel had been offered them (not
    /// in the C interface).
    pub sqlite_offered_hits: u64,
    /// Buffers allocated in shared arenas, and their bytes (not in the C interface).
    pub shared_allocated: tenure_count,
    /// Buffers of shared arenas that this process has purged, and their bytes (not in the C
    /// interface).
    pub shared_purged: tenure_count,
    /// The memory of tenure's heap for blocks of up to 28 KiB, 224 KiB on aarch64, at the
    /// moment (the heap is not in the C interface, here and below).
    pub heap_small: tenure_heap_group,
    /// The heap's memory for larger blocks of up to 4 MiB, at the moment.
    pub heap_medium: tenure_heap_group,
    /// The heap's memory for blocks of more than 4 MiB, at the moment.
    pub heap_large: tenure_heap_group,
    /// Pages that hold blocks of the heap, at the moment.
    pub heap_active_bytes: u64,
    /// Freed blocks of the heap that threads keep for themselves, at the moment.
    pub heap_cached_bytes: u64,
    /// The most dirty memory that the heap keeps at present.
    pub heap_max_dirty_bytes: u64,
    /// Free memory that the heap's decay thread is about to return, at the moment.
    pub heap_pending_bytes: u64,
    /// Memory that the heap has returned to the kernel.
    pub heap_returned_bytes: u64,
    /// The times that memory pressure had the heap return memory early, and the memory that
    /// it returned under pressure.
    pub heap_returned_under_pressure: tenure_count,
}

/// A counter of the core crate is missing here if the sizes differ.
const _: () = assert!(size_of::<tenure_stats>() == size_of::<Stats>());

impl From<Count> for tenure_count {
    fn from(count: Count) -> Self {
        Self {
            calls: count.calls,
            bytes: count.bytes,
        }
    }
}

impl From<HeapGroup> for tenure_heap_group {
    fn from(group: HeapGroup) -> Self {
        Self {
            in_use_bytes: group.in_use_bytes,
            dirty_bytes: group.dirty_bytes,
            muzzy_bytes: group.muzzy_bytes,
            retained_bytes: group.retained_bytes,
        }
    }
}

impl From<Stats> for tenure_stats {
    fn from(stats: Stats) -> Self {
        Self {
            populate: stats.populate.into(),
            lock: stats.lock.into(),
            unlock: stats.unlock.into(),
            lock_all_calls: stats.lock_all_calls,
            unlock_all_calls: stats.unlock_all_calls,
            lazy_free: stats.lazy_free.into(),
            mark_volatile: stats.mark_volatile.into(),
            mark_nonvolatile: stats.mark_nonvolatile.into(),
            purged_by_kernel_bytes: stats.purged_by_kernel_bytes,
            purged_on_request_bytes: stats.purged_on_request_bytes,
            unprotected_bytes: stats.unprotected_bytes,
            volatile_bytes: stats.volatile_bytes,
            munmap: stats.munmap.into(),
            discard: stats.discard.into(),
            punch: stats.punch.into(),
            deferred_free: stats.deferred_free.into(),
            freed_by_caller_bytes: stats.freed_by_caller_bytes,
            workers_started: stats.workers_started,
            pending_release_bytes: stats.pending_release_bytes,
            eager_free: stats.eager_free.into(),
            freed_under_pressure: stats.freed_under_pressure.into(),
            purged_under_pressure_bytes: stats.purged_under_pressure_bytes,
            offered_bytes: stats.offered_bytes,
            offer_failed_bytes: stats.offer_failed_bytes,
            unofferable_bytes: stats.unofferable_bytes,
            cache_hits: stats.cache_hits,
            cache_misses: stats.cache_misses,
            cache_evicted: stats.cache_evicted.into(),
            cache_purged: stats.cache_purged.into(),
            cache_bytes: stats.cache_bytes,
            pool_bytes: stats.pool_bytes,
            pool_lazily_free_bytes: stats.pool_lazily_free_bytes,
            pool_recycled_bytes: stats.pool_recycled_bytes,
            pool_prefilled_bytes: stats.pool_prefilled_bytes,
            pool_given: stats.pool_given.into(),
            pool_returned_bytes: stats.pool_returned_bytes,
            sqlite_pages: stats.sqlite_pages,
            sqlite_purged: stats.sqlite_purged.into(),
            sqlite_offered_hits: stats.sqlite_offered_hits,
            shared_allocated: stats.shared_allocated.into(),
            shared_purged: stats.shared_purged.into(),
            heap_small: stats.heap_small.into(),
            heap_medium: stats.heap_medium.into(),
            heap_large: stats.heap_large.into(),
            heap_active_bytes: stats.heap_active_bytes,
            heap_cached_bytes: stats.heap_cached_bytes,
            heap_max_dirty_bytes: stats.heap_max_dirty_bytes,
            heap_pending_bytes: stats.heap_pending_bytes,
            heap_returned_bytes: stats.heap_returned_bytes,
            heap_returned_under_pressure: stats.heap_returned_under_pressure.into(),
        }
    }
}

/// Reads the counters of this process: how often each verb succeeded, and on how much memory.
///
/// `*out` receives the counters; `out` must not be NULL. The structure is the caller's, and
/// tenure keeps no pointer to it. `size_of_out` is `sizeof(*out)` as the program was built
/// with it: of a smaller structure only that much is written, and fields that this version
/// of tenure does not know are set to zeros. Each counter is exact; while other threads
/// work, two counters may be from two moments. A child after `fork()` counts from zero.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is unchanged.
///
/// # Errors
///
/// * `-EFAULT`: `out` is NULL. Correct the call.
///
/// # Notes
///
/// `tenure stat PID` shows the counters of another process.
///
/// # See also
///
/// tenure-stat(1), tenure(7)
///
/// # Safety
///
/// `out` is NULL or has space for `size_of_out` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_stats(out: *mut tenure_stats, size_of_out: usize) -> c_int {
    answer_without_memory(|| {
        if out.is_null() {
            return Err(BAD_POINTER);
        }
        let stats = tenure_stats::from(tenure::stats());
        let known = size_of_out.min(size_of::<tenure_stats>());
        let bytes = out.cast::<u8>();
        // SAFETY: `out` is not NULL, so it has space for `size_of_out` bytes, and both
        // it and `stats` have at least `known`.
        unsafe {
            ptr::copy_nonoverlapping((&raw const stats).cast(), bytes, known);
            bytes.add(known).write_bytes(0, size_of_out - known);
        }
        Ok(0)
    })
}

/// Returns the version of the library that the program runs with.
///
/// # Return value
///
/// Text such as "0.1.0", never NULL. It is tenure's and valid until the process ends; the
/// caller must not free it.
///
/// # See also
///
/// tenure(7)
#[unsafe(no_mangle)]
pub extern "C" fn tenure_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
