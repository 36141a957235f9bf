//! Counters and gauges: each update is one atomic addition or store to the page
//! of counters.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use super::{Count, HeapGroup, Stats};
use crate::ground::sys::counters::{COUNTER_CAPACITY, KEPT_IN_CHILD, counters};
use crate::ground::sys::shard::{LEASES, Lease};

const _: () = assert!(size_of::<Stats>() <= FIRST_LOOKUP * size_of::<u64>());

/// A figure that only grows.
#[derive(Clone, Copy)]
pub(crate) struct Counter(usize);

/// The lookups in caches: a counter that many threads increment all the time, in shards
/// behind the figures of [`Stats`], each on a cache line of its own.
#[derive(Clone, Copy)]
pub(crate) struct Lookups(usize);

/// The counters of a cache line.
const LINE: usize = 8;
/// The first counter of the shards, which leave a line at the end of the page.
const FIRST_LOOKUP: usize = COUNTER_CAPACITY - (LEASES + 1) * LINE;

pub(crate) const CACHE_HITS: Lookups = Lookups(0);
pub(crate) const CACHE_MISSES: Lookups = Lookups(1);

impl Lookups {
    #[inline]
    pub(crate) fn count(self) {
        self.count_with(Lease::of_thread());
    }

    /// Does what [`count`](Self::count) does, with the thread's lease.
    #[inline]
    pub(crate) fn count_with(self, lease: Lease) {
        lease.add(&counters()[FIRST_LOOKUP + lease.shard() * LINE + self.0], 1);
    }
}

/// Returns the hits and the misses of all shards.
pub(super) fn sum_of_lookups(counters: &[u64; COUNTER_CAPACITY]) -> [u64; 2] {
    let shards = counters[FIRST_LOOKUP..].chunks_exact(LINE);
    let add = |[hits, misses]: [u64; 2], shard: &[u64]| {
        [hits.wrapping_add(shard[0]), misses.wrapping_add(shard[1])]
    };
    shards.take(LEASES).fold([0; 2], add)
}

/// A [`Count`]: calls and bytes.
#[derive(Clone, Copy)]
pub(crate) struct Verb(usize);

/// A figure that describes the current state. The module that keeps the state
/// sets it, with the state locked.
#[derive(Clone, Copy)]
pub(crate) struct Gauge(usize);

/// The gauges of a [`HeapGroup`].
#[derive(Clone, Copy)]
struct HeapGauges(usize);

impl HeapGauges {
    fn set(self, group: &HeapGroup) {
        let HeapGroup {
            in_use_bytes,
            dirty_bytes,
            muzzy_bytes,
            retained_bytes,
        } = *group;
        let figures = [in_use_bytes, dirty_bytes, muzzy_bytes, retained_bytes];
        for (counter, figure) in counters()[self.0..].iter().zip(figures) {
            counter.store(figure, Ordering::Relaxed);
        }
    }
}

impl Counter {
    pub(crate) fn add(self, more: usize) {
        counters()[self.0].fetch_add(more as u64, Ordering::Relaxed);
    }
}

impl Verb {
    /// Counts one successful call on `bytes` bytes.
    pub(crate) fn done(self, bytes: usize) {
        let counters = counters();
        counters[self.0].fetch_add(1, Ordering::Relaxed);
        counters[self.0 + 1].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Sets both figures, which another module counts.
    fn set(self, count: Count) {
        let counters = counters();
        counters[self.0].store(count.calls, Ordering::Relaxed);
        counters[self.0 + 1].store(count.bytes, Ordering::Relaxed);
    }

    /// Counts `calls` successful calls on `bytes` bytes in all.
    pub(crate) fn add(self, calls: u64, bytes: u64) {
        let counters = counters();
        counters[self.0].fetch_add(calls, Ordering::Relaxed);
        counters[self.0 + 1].fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Gauge {
    pub(crate) fn set(self, now: usize) {
        counters()[self.0].store(now as u64, Ordering::Relaxed);
    }

    pub(crate) fn add(self, more: usize) {
        counters()[self.0].fetch_add(more as u64, Ordering::Relaxed);
    }

    pub(crate) fn sub(self, less: usize) {
        counters()[self.0].fetch_sub(less as u64, Ordering::Relaxed);
    }
}

/// Creates the page of counters, unless that exists.
pub(crate) fn prepare() {
    counters();
}

macro_rules! at {
    ($kind:ident, $field:ident) => {
        $kind(offset_of!(Stats, $field) / size_of::<u64>())
    };
}

pub(crate) const POPULATE: Verb = at!(Verb, populate);
pub(crate) const LOCK: Verb = at!(Verb, lock);
pub(crate) const UNLOCK: Verb = at!(Verb, unlock);
pub(crate) const LOCK_ALL_CALLS: Counter = at!(Counter, lock_all_calls);
pub(crate) const UNLOCK_ALL_CALLS: Counter = at!(Counter, unlock_all_calls);
pub(crate) const LAZY_FREE: Verb = at!(Verb, lazy_free);
pub(crate) const MARK_VOLATILE: Verb = at!(Verb, mark_volatile);
pub(crate) const MARK_NONVOLATILE: Verb = at!(Verb, mark_nonvolatile);
pub(crate) const PURGED_BY_KERNEL_BYTES: Counter = at!(Counter, purged_by_kernel_bytes);
pub(crate) const PURGED_ON_REQUEST_BYTES: Counter = at!(Counter, purged_on_request_bytes);
pub(crate) const UNPROTECTED_BYTES: Counter = at!(Counter, unprotected_bytes);
pub(crate) const VOLATILE_BYTES: Gauge = at!(Gauge, volatile_bytes);
pub(crate) const MUNMAP: Verb = at!(Verb, munmap);
pub(crate) const DISCARD: Verb = at!(Verb, discard);
pub(crate) const PUNCH: Verb = at!(Verb, punch);
pub(crate) const DEFERRED_FREE: Verb = at!(Verb, deferred_free);
pub(crate) const FREED_BY_CALLER_BYTES: Counter = at!(Counter, freed_by_caller_bytes);
pub(crate) const WORKERS_STARTED: Counter = at!(Counter, workers_started);
pub(crate) const PURGED_UNDER_PRESSURE_BYTES: Counter = at!(Counter, purged_under_pressure_bytes);
pub(crate) const OFFERED_BYTES: Gauge = at!(Gauge, offered_bytes);
pub(crate) const OFFER_FAILED_BYTES: Counter = at!(Counter, offer_failed_bytes);
pub(crate) const UNOFFERABLE_BYTES: Gauge = at!(Gauge, unofferable_bytes);
pub(crate) const PENDING_RELEASE_BYTES: Gauge = at!(Gauge, pending_release_bytes);
pub(crate) const EAGER_FREE: Verb = at!(Verb, eager_free);
pub(crate) const FREED_UNDER_PRESSURE: Verb = at!(Verb, freed_under_pressure);
pub(crate) const CACHE_EVICTED: Verb = at!(Verb, cache_evicted);
pub(crate) const CACHE_PURGED: Verb = at!(Verb, cache_purged);
pub(crate) const CACHE_BYTES: Gauge = at!(Gauge, cache_bytes);
pub(crate) const POOL_BYTES: Gauge = at!(Gauge, pool_bytes);
pub(crate) const POOL_LAZILY_FREE_BYTES: Gauge = at!(Gauge, pool_lazily_free_bytes);
pub(crate) const POOL_RECYCLED_BYTES: Counter = at!(Counter, pool_recycled_bytes);
pub(crate) const POOL_PREFILLED_BYTES: Counter = at!(Counter, pool_prefilled_bytes);
pub(crate) const POOL_GIVEN: Verb = at!(Verb, pool_given);
pub(crate) const POOL_RETURNED_BYTES: Counter = at!(Counter, pool_returned_bytes);
pub(crate) const SHARED_ALLOCATED: Verb = at!(Verb, shared_allocated);
pub(crate) const SHARED_PURGED: Verb = at!(Verb, shared_purged);
const SQLITE_PAGES: Gauge = at!(Gauge, sqlite_pages);
const SQLITE_PURGED: Verb = at!(Verb, sqlite_purged);
const SQLITE_OFFERED_HITS: Counter = at!(Counter, sqlite_offered_hits);
const HEAP_SMALL: HeapGauges = at!(HeapGauges, heap_small);
const HEAP_MEDIUM: HeapGauges = at!(HeapGauges, heap_medium);
const HEAP_LARGE: HeapGauges = at!(HeapGauges, heap_large);
const HEAP_ACTIVE_BYTES: Gauge = at!(Gauge, heap_active_bytes);
const HEAP_CACHED_BYTES: Gauge = at!(Gauge, heap_cached_bytes);
const HEAP_MAX_DIRTY_BYTES: Gauge = at!(Gauge, heap_max_dirty_bytes);
const HEAP_PENDING_BYTES: Gauge = at!(Gauge, heap_pending_bytes);
const HEAP_RETURNED_BYTES: Gauge = at!(Gauge, heap_returned_bytes);
const HEAP_RETURNED_UNDER_PRESSURE: Verb = at!(Verb, heap_returned_under_pressure);

/// A child has the heap's blocks and pages, and its gauges until it publishes its own.
const _: () = assert!(
    offset_of!(Stats, heap_small) == KEPT_IN_CHILD.start * size_of::<u64>()
        && offset_of!(Stats, heap_pending_bytes) == KEPT_IN_CHILD.end * size_of::<u64>()
);

/// The figures of the crate tenure-sqlite, which counts them itself.
#[doc(hidden)]
pub mod sqlite {
    /// Counts pages that a page cache has taken.
    pub fn add_pages(pages: usize) {
        super::SQLITE_PAGES.add(pages);
    }

    /// Counts pages that a page cache of this process has dropped.
    pub fn subtract_pages(pages: usize) {
        super::SQLITE_PAGES.sub(pages);
    }

    /// Counts a page that was found purged.
    pub fn add_purged(bytes: usize) {
        super::SQLITE_PURGED.done(bytes);
    }

    /// Counts a page that was found intact after the kernel had been offered it.
    pub fn add_offered_hit() {
        super::SQLITE_OFFERED_HITS.add(1);
    }
}

/// The figures of the crate tenure-heap, which counts them itself.
#[doc(hidden)]
pub mod heap {
    use super::{Count, HeapGroup};
    use super::{
        HEAP_ACTIVE_BYTES, HEAP_CACHED_BYTES, HEAP_LARGE, HEAP_MAX_DIRTY_BYTES, HEAP_MEDIUM,
        HEAP_PENDING_BYTES, HEAP_RETURNED_BYTES, HEAP_RETURNED_UNDER_PRESSURE, HEAP_SMALL,
    };

    /// The figures of [`Stats`](crate::Stats) with these names.
    #[derive(Clone, Copy, Debug)]
    pub struct Figures {
        pub small: HeapGroup,
        pub medium: HeapGroup,
        pub large: HeapGroup,
        pub active_bytes: usize,
        pub cached_bytes: usize,
        pub max_dirty_bytes: usize,
        pub pending_bytes: usize,
        pub returned_bytes: usize,
        pub pressure_purges: usize,
        pub pressure_returned_bytes: usize,
    }

    /// Publishes the figures.
    pub fn set(figures: &Figures) {
        HEAP_SMALL.set(&figures.small);
        HEAP_MEDIUM.set(&figures.medium);
        HEAP_LARGE.set(&figures.large);
        HEAP_ACTIVE_BYTES.set(figures.active_bytes);
        HEAP_CACHED_BYTES.set(figures.cached_bytes);
        HEAP_MAX_DIRTY_BYTES.set(figures.max_dirty_bytes);
        HEAP_PENDING_BYTES.set(figures.pending_bytes);
        HEAP_RETURNED_BYTES.set(figures.returned_bytes);
        HEAP_RETURNED_UNDER_PRESSURE.set(Count {
            calls: figures.pressure_purges as u64,
            bytes: figures.pressure_returned_bytes as u64,
        });
    }

    /// Creates the page of counters, and has this process publish the heap's figures before
    /// it reads its counters.
    pub fn prepare(publish: &'static fn()) {
        super::prepare();
        super::super::publish_heap_with(publish);
    }

    /// Returns a group.
    pub fn group(bytes: [usize; 4]) -> HeapGroup {
        let [in_use_bytes, dirty_bytes, muzzy_bytes, retained_bytes] =
            bytes.map(|bytes| bytes as u64);
        HeapGroup {
            in_use_bytes,
            dirty_bytes,
            muzzy_bytes,
            retained_bytes,
        }
    }
}
