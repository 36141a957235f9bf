//! Statistics: what tenure has done in a process.
//!
//! The counters are in one page of atomics ([`counters`]), a private mapping of
//! a memfd that other processes find by its name. New figures are added at the
//! end; a changed order is a new number in the name. A fork zeroes the page in
//! the child, but for the heap's gauges, and modules that keep a gauge then set it again.

mod count;

pub(crate) use count::*;
#[doc(hidden)]
pub use count::{heap, sqlite};

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::ground::error::{Error, Result};
use crate::ground::sys::Errno;
use crate::ground::sys::counters::{self, COUNTER_CAPACITY, Found};

/// The number of calls of a verb, and of the bytes in them.
///
/// Failed calls, and calls on zero bytes, are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[repr(C)]
pub struct Count {
    /// The number of calls.
    pub calls: u64,
    /// The bytes of all calls. A byte counts once for each call.
    pub bytes: u64,
}

/// Memory of the heap (the crate tenure-heap) for blocks of some sizes: in blocks of these
/// sizes, and in free ranges that are as long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[repr(C)]
pub struct HeapGroup {
    /// Bytes of the blocks, including freed ones that threads keep for themselves.
    pub in_use_bytes: u64,
    /// Bytes of free pages that are kept for reuse.
    pub dirty_bytes: u64,
    /// Bytes of free pages that the kernel may reclaim (MADV_FREE).
    pub muzzy_bytes: u64,
    /// Bytes of addresses without memory, kept for reuse.
    pub retained_bytes: u64,
}

/// The work of tenure in a process since that started, or since it was forked:
/// a child counts from zero.
///
/// A call counts as the verb that the program called, whatever that uses
/// internally: [`LazilyFreed::reuse`](crate::lazy_free::LazilyFreed::reuse) is
/// a `populate`, dropping a [`Mapping`](crate::Mapping) a `munmap`, and a
/// [`SecretBuffer`](crate::SecretBuffer) a `lock` and a `munmap`.
///
/// Each figure is exact. If other threads work while they are read, two figures
/// may be from two moments. Another process sees the calls of a
/// [`VolatileBuffer`](crate::VolatileBuffer) with a delay of about a second.
///
/// The heap's figures are those of the moment at which the process reads them itself.
/// Another process sees those that the heap's decay thread has published: they are a tenth
/// of a second old at most while the process frees memory, and zeros as long as the heap
/// has less than about 8 MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[repr(C)]
// The order is the layout that other processes and C programs rely on: new
// figures are added at the end.
pub struct Stats {
    /// Calls that populated their range completely, and its bytes.
    pub populate: Count,
    /// Calls that locked a range, in either mode, and its bytes.
    pub lock: Count,
    /// Calls that unlocked a range, and its bytes; for `unlock` by mode, the
    /// bytes that had such a lock.
    pub unlock: Count,
    /// Calls of [`lock_all`](crate::lock::lock_all).
    pub lock_all_calls: u64,
    /// Calls of [`unlock_all`](crate::lock::unlock_all).
    pub unlock_all_calls: u64,
    /// Calls that freed a range lazily, and its bytes.
    pub lazy_free: Count,
    /// Calls that marked a range volatile, whether it was volatile or not, and
    /// its bytes.
    pub mark_volatile: Count,
    /// Calls that marked a range nonvolatile, and the bytes of it that were
    /// volatile.
    pub mark_nonvolatile: Count,
    /// Bytes of volatile pages that the kernel purged, counted when tenure
    /// detects it: when they are marked nonvolatile.
    pub purged_by_kernel_bytes: u64,
    /// Bytes of volatile pages purged by [`purge`](crate::PageRange::purge).
    pub purged_on_request_bytes: u64,
    /// Bytes of volatile memory that count as purged because their protection
    /// ended without tenure: the program mapped something else there, or closed
    /// the userfaultfd, and tenure could not start the thread `tenure-files`.
    pub unprotected_bytes: u64,
    /// Bytes that are volatile now.
    pub volatile_bytes: u64,
    /// Calls that unmapped a range (`munmap`, `munmap_sync`, dropped mappings),
    /// and its bytes, holes included.
    pub munmap: Count,
    /// Calls that discarded the contents of a range, and its bytes.
    pub discard: Count,
    /// Calls that punched a range out of shared memory, and its bytes.
    pub punch: Count,
    /// Calls of `munmap` and `discard` that moved memory away for workers to
    /// free, and the bytes moved.
    pub deferred_free: Count,
    /// Bytes that callers of `munmap` and `discard` freed themselves.
    pub freed_by_caller_bytes: u64,
    /// Worker threads that were started to free memory.
    pub workers_started: u64,
    /// Bytes that are pending now: moved away and not freed yet.
    pub pending_release_bytes: u64,
    /// Calls of a [`FreePolicy`](crate::lazy_free::FreePolicy) that freed a
    /// range at once, and its bytes.
    pub eager_free: Count,
    /// Ranges that
    /// [`FreePolicy::Adaptive`](crate::lazy_free::FreePolicy::Adaptive) freed
    /// lazily and had the kernel reclaim under severe pressure, and their
    /// bytes, including pages that the program had reused.
    pub freed_under_pressure: Count,
    /// Bytes of volatile pages that tenure purged under memory pressure.
    pub purged_under_pressure_bytes: u64,
    /// Bytes of volatile memory that are offered to the kernel now.
    pub offered_bytes: u64,
    /// Bytes of volatile memory whose offer failed when it was due (locked,
    /// replaced without tenure, shared with another process since a fork, or at
    /// `vm.max_map_count`). They stay resident. tenure retries a range when it is
    /// marked again, and a buffer and what was shared after some seconds.
    pub offer_failed_bytes: u64,
    /// Bytes of volatile memory that cannot be offered now because userfaultfd
    /// or MADV_POPULATE_WRITE is unavailable: all of it, or 0. Only tenure
    /// purges it, under memory pressure.
    pub unofferable_bytes: u64,
    /// Lookups that found their value, in all
    /// [`VolatileCache`](crate::VolatileCache)s of the process.
    pub cache_hits: u64,
    /// Lookups that did not.
    pub cache_misses: u64,
    /// Values that caches have evicted to insert others, and their bytes.
    pub cache_evicted: Count,
    /// Values of caches that were found purged, and their bytes.
    pub cache_purged: Count,
    /// Bytes of the values in caches now.
    pub cache_bytes: u64,
    /// Bytes that the page [pool](crate::pool) holds now.
    pub pool_bytes: u64,
    /// Bytes of these that are lazily free: the kernel may have taken them.
    pub pool_lazily_free_bytes: u64,
    /// Recycled bytes that the pool has kept.
    pub pool_recycled_bytes: u64,
    /// Bytes that the pool has taken from the kernel ahead of need.
    pub pool_prefilled_bytes: u64,
    /// Calls that the pool has given pages to, and their bytes: a populate may take several.
    pub pool_given: Count,
    /// Bytes that the pool has returned to the kernel.
    pub pool_returned_bytes: u64,
    /// Pages that SQLite's page cache (the crate tenure-sqlite) has now.
    pub sqlite_pages: u64,
    /// Pages of SQLite that were found purged, and their bytes.
    pub sqlite_purged: Count,
    /// Pages of SQLite that were found intact after the kernel had been offered them.
    pub sqlite_offered_hits: u64,
    /// Buffers that this process has allocated in [`SharedArena`](crate::SharedArena)s, and
    /// their bytes in whole pages.
    pub shared_allocated: Count,
    /// Buffers of [`SharedArena`](crate::SharedArena)s that this process has purged, on request
    /// or under pressure, and their bytes in whole pages.
    pub shared_purged: Count,
    /// The heap's memory (the crate tenure-heap) now, for blocks of up to 28 KiB (with
    /// jemalloc's pages of 8 KiB), those included that threads keep for themselves.
    pub heap_small: HeapGroup,
    /// The heap's memory now, for larger blocks of up to 4 MiB.
    pub heap_medium: HeapGroup,
    /// The heap's memory now, for blocks of more than 4 MiB.
    pub heap_large: HeapGroup,
    /// Bytes of pages that hold the heap's blocks now.
    pub heap_active_bytes: u64,
    /// Bytes of freed blocks that threads keep for themselves now.
    pub heap_cached_bytes: u64,
    /// The most bytes of dirty pages that the heap keeps at present: an eighth of the
    /// headroom, or less.
    pub heap_max_dirty_bytes: u64,
    /// Bytes of free pages that the heap's decay thread is about to return.
    pub heap_pending_bytes: u64,
    /// Bytes that the heap has returned to the kernel.
    pub heap_returned_bytes: u64,
    /// The times that memory pressure had the heap return free pages early, and the bytes
    /// that it returned under pressure.
    pub heap_returned_under_pressure: Count,
}

/// Flushes local counts, which modules keep where counting in the page would
/// cost too much.
///
/// Not a `OnceLock`: a child forked while another thread sets it would wait for ever.
static BEFORE_READING: AtomicPtr<fn()> = AtomicPtr::new(ptr::null_mut());

/// Registers a function to call before this process reads its figures: one, because
/// only one module keeps local counts.
pub(crate) fn before_reading(flush: &'static fn()) {
    BEFORE_READING.store(ptr::from_ref(flush).cast_mut(), Ordering::Release);
}

/// As [`BEFORE_READING`], for the heap, whose figures nobody computes until they are read.
static PUBLISH_HEAP: AtomicPtr<fn()> = AtomicPtr::new(ptr::null_mut());

/// Registers a function that publishes the heap's figures.
fn publish_heap_with(publish: &'static fn()) {
    PUBLISH_HEAP.store(ptr::from_ref(publish).cast_mut(), Ordering::Release);
}

/// Returns what tenure has done in this process.
///
/// Counting is always on. The counters are in a page of memory, created when it
/// is first needed, that other processes can read: [`Stats::of_process`].
///
/// ```standalone_crate
/// use tenure::{Access, Mapping, stats};
///
/// let memory = Mapping::anonymous(1 << 20).map()?;
/// let before = stats();
/// memory.populate(.., Access::Write)?;
/// let after = stats();
/// assert_eq!(after.populate.calls - before.populate.calls, 1);
/// assert_eq!(after.populate.bytes - before.populate.bytes, 1 << 20);
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn stats() -> Stats {
    call(&PUBLISH_HEAP);
    stats_as_published()
}

/// Calls the function, if one is registered.
fn call(registered: &AtomicPtr<fn()>) {
    // SAFETY: pointers to functions that live for ever are stored there.
    if let Some(function) = unsafe { registered.load(Ordering::Acquire).as_ref() } {
        function();
    }
}

/// As [`stats()`], with the heap's figures as they were last published: for a signal handler,
/// whose thread may hold a lock of the heap.
#[doc(hidden)]
pub fn stats_as_published() -> Stats {
    call(&BEFORE_READING);
    let counters = counters::counters();
    Stats::from(&std::array::from_fn(|index| {
        counters[index].load(Ordering::Relaxed)
    }))
}

impl Stats {
    /// Reads what tenure has done in another process: `/proc/PID/mem`. If
    /// several copies of tenure are linked into it, returns their sum. `None`
    /// for a process that has not used tenure yet, and for one that could not
    /// create the page of counters (RLIMIT_AS, RLIMIT_FSIZE, seccomp).
    ///
    /// # Errors
    ///
    /// * [`Error::NoProcess`] when there is no such process,
    /// * [`Error::PermissionDenied`] without permission to trace it,
    /// * [`Error::IncompatibleLayout`] when its counters have another version's
    ///   layout,
    /// * [`Error::System`] for any other failure.
    ///
    /// ```
    /// use tenure::Stats;
    ///
    /// match Stats::of_process(std::process::id()) {
    ///     Ok(Some(stats)) => println!("{} bytes populated", stats.populate.bytes),
    ///     Ok(None) => println!("it has not used tenure"),
    ///     Err(error) => println!("{error}"),
    /// }
    /// ```
    pub fn of_process(pid: u32) -> Result<Option<Self>> {
        let found = counters::of_process(pid).map_err(|errno| explain(pid, errno))?;
        match found {
            Found::Counters(counters) => Ok(Some(Self::from(&*counters))),
            Found::IncompatibleLayout(layout) => Err(Error::IncompatibleLayout { pid, layout }),
            Found::None => Ok(None),
        }
    }
}

fn explain(pid: u32, errno: Errno) -> Error {
    match errno {
        Errno::NOENT | Errno::SRCH => Error::NoProcess { pid },
        Errno::ACCESS | Errno::PERM => Error::PermissionDenied { pid, answer: errno },
        errno => Error::System {
            call: "reading /proc/PID/maps and /proc/PID/mem",
            errno,
        },
    }
}

impl From<&[u64; COUNTER_CAPACITY]> for Stats {
    fn from(counters: &[u64; COUNTER_CAPACITY]) -> Self {
        // SAFETY: the structure consists of u64 only, in the order of the
        // counters (`repr(C)`), and is no longer than the array (`count`
        // asserts that).
        let mut stats = unsafe { counters.as_ptr().cast::<Self>().read() };
        let [hits, misses] = count::sum_of_lookups(counters);
        stats.cache_hits = stats.cache_hits.wrapping_add(hits);
        stats.cache_misses = stats.cache_misses.wrapping_add(misses);
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_from_counters_assigns_each_field() {
        let numbered: [u64; COUNTER_CAPACITY] = std::array::from_fn(|index| index as u64);
        let stats = Stats::from(&numbered);
        assert_eq!(stats.populate, Count { calls: 0, bytes: 1 });
        assert_eq!(stats.lock_all_calls, 6);
        assert_eq!(stats.purged_by_kernel_bytes, 14);
        assert_eq!(stats.munmap.bytes, 19);
        assert_eq!(stats.pending_release_bytes, 28);
        assert_eq!(stats.offer_failed_bytes, 35);
        assert_eq!(stats.unofferable_bytes, 36);
        assert_eq!(stats.cache_bytes, 43);
        assert_eq!(stats.pool_bytes, 44);
        assert_eq!(
            stats.pool_given,
            Count {
                calls: 48,
                bytes: 49
            }
        );
        assert_eq!(stats.pool_returned_bytes, 50);
        assert_eq!(stats.sqlite_pages, 51);
        assert_eq!(stats.sqlite_offered_hits, 54);
        let allocated = Count {
            calls: 55,
            bytes: 56,
        };
        assert_eq!(stats.shared_allocated, allocated);
        assert_eq!(stats.shared_purged.bytes, 58);
        assert_eq!(stats.heap_small.in_use_bytes, 59);
        assert_eq!(stats.heap_large.retained_bytes, 70);
        assert_eq!(stats.heap_max_dirty_bytes, 73);
        assert_eq!(stats.heap_returned_under_pressure.bytes, 77);
        assert_eq!(size_of::<Stats>(), 78 * size_of::<u64>());
    }
}
