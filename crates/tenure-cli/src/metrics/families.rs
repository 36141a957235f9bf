//! The metric families, a line for each sample. Lines of the same name follow each other:
//! they are one family, whose samples differ in a label.

use tenure::{Stats, pressure::Level};

use crate::stat::{GroupReport, ProcessReport};

/// One sample of each process or cgroup, and the family that it belongs to.
pub struct Row<T: 'static> {
    /// Without prefix, unit and `_total`.
    pub name: &'static str,
    pub help: &'static str,
    pub is_counter: bool,
    pub is_in_bytes: bool,
    /// The labels that tell the sample from others of its family.
    pub label: Option<(&'static str, &'static str)>,
    /// `None` where the figure is unknown, or does not apply: there is no sample then.
    pub value: fn(&T) -> Option<u64>,
}

impl<T> Row<T> {
    const fn gauge(name: &'static str, help: &'static str, value: fn(&T) -> Option<u64>) -> Self {
        Self {
            name,
            help,
            is_counter: false,
            is_in_bytes: false,
            label: None,
            value,
        }
    }

    const fn bytes(name: &'static str, help: &'static str, value: fn(&T) -> Option<u64>) -> Self {
        Self {
            is_in_bytes: true,
            ..Self::gauge(name, help, value)
        }
    }

    const fn total(name: &'static str, help: &'static str, value: fn(&T) -> Option<u64>) -> Self {
        Self {
            is_counter: true,
            ..Self::gauge(name, help, value)
        }
    }

    const fn bytes_total(
        name: &'static str,
        help: &'static str,
        value: fn(&T) -> Option<u64>,
    ) -> Self {
        Self {
            is_counter: true,
            ..Self::bytes(name, help, value)
        }
    }

    const fn with(self, label: &'static str, value: &'static str) -> Self {
        Self {
            label: Some((label, value)),
            ..self
        }
    }
}

fn some(bytes: usize) -> Option<u64> {
    Some(bytes as u64)
}

fn maybe(bytes: Option<usize>) -> Option<u64> {
    bytes.map(|bytes| bytes as u64)
}

/// The level as a number, which rises with the pressure.
pub fn level(level: Level) -> u64 {
    level as u64
}

fn flag(is_so: bool) -> Option<u64> {
    Some(u64::from(is_so))
}

/// Where this is 0, figures have no sample because they are unknown.
const READABLE: &str = "Whether the figures of a source could be read: 1 or 0.";
const PURGED: &str = "Volatile memory that was purged, by cause.";
const HEAP_IN_USE: &str = "Blocks of the heap, those included that threads keep, by size: small up to 28 KiB (224 KiB on aarch64), medium up to 4 MiB, large.";
const HEAP_DIRTY: &str = "Free pages that the heap keeps for reuse, by the size of their range.";
const HEAP_MUZZY: &str =
    "Free pages of the heap that the kernel may reclaim, by the size of their range.";
const HEAP_RETAINED: &str =
    "Addresses without memory that the heap keeps, by the size of their range.";
const CALLS: &str = "Successful calls of tenure, by operation.";
const CALL_BYTES: &str = "Memory of successful calls of tenure, by operation.";
pub const LEVEL: &str = "Memory pressure: 0 none, 1 some, 2 severe.";

/// Makes the rows of the calls and of the bytes of each operation.
macro_rules! operations {
    ($name:literal, $help:expr, $make:ident, $field:ident: $($operation:ident),*) => {
        [$(Row::$make($name, $help, |process: &ProcessReport| {
            Some(process.tenure.stats()?.$operation.$field)
        }).with("operation", stringify!($operation))),*]
    };
}

fn stats(process: &ProcessReport, figure: fn(&Stats) -> u64) -> Option<u64> {
    process.tenure.stats().map(figure)
}

/// Returns a figure of the heap; `None` where the process has published none.
fn heap(process: &ProcessReport, figure: fn(&Stats) -> u64) -> Option<u64> {
    let stats = process.tenure.stats()?;
    let is_published = stats.heap_active_bytes > 0 || stats.heap_max_dirty_bytes > 0;
    is_published.then(|| figure(stats))
}

/// The families of a process; those from its counters only where it uses tenure.
#[rustfmt::skip]
pub static PROCESS: &[Row<ProcessReport>] = &[
    Row::bytes("resident", "Resident memory (RSS), lazily free pages included.", |p| some(p.resident_bytes)),
    Row::bytes("lazily_free", "Resident memory that the kernel may reclaim because it was freed lazily (MADV_FREE).", |p| maybe(p.lazily_free_bytes)),
    Row::bytes("resident_without_lazily_free", "Resident memory without what is lazily free.", |p| maybe(p.resident_without_lazily_free_bytes)),
    Row::bytes("proportional", "Resident memory, shared pages divided among the processes that share them (PSS).", |p| maybe(p.proportional_bytes)),
    Row::bytes("swapped", "Memory in swap.", |p| maybe(p.swapped_bytes)),
    Row::bytes("locked", "Memory that counts against RLIMIT_MEMLOCK.", |p| some(p.locked_bytes)),
    Row::bytes("huge_page", "Memory in transparent huge pages.", |p| maybe(p.huge_page_bytes)),
    Row::bytes("hugetlb", "Memory in hugetlb pages, which resident memory leaves out.", |p| some(p.hugetlb_bytes)),
    Row::bytes("mapped", "Mapped addresses that some access is allowed to.", |p| some(p.mapped_bytes)),
    Row::bytes("reserved", "Mapped addresses without any access, which use no memory.", |p| some(p.reserved_bytes)),
    Row::gauge("pressure_level", LEVEL, |p| p.pressure.map(level)),
    Row::gauge("readable", READABLE, |p: &ProcessReport| flag(!p.tenure.is_unreadable())).with("source", "counters"),
    Row::gauge("readable", READABLE, |p: &ProcessReport| flag(p.preload.is_known())).with("source", "preload"),
    Row::gauge("readable", READABLE, |p: &ProcessReport| flag(p.pressure.is_some())).with("source", "pressure"),
    Row::gauge("preloaded", "Whether the library of tenure run is mapped: 1 or 0.", |p: &ProcessReport| flag(p.preload.mapped.is_some()).filter(|_| p.preload.is_known())),
    Row::bytes("volatile", "Memory that is volatile.", |p| stats(p, |s| s.volatile_bytes)),
    Row::bytes("offered", "Volatile memory that is offered to the kernel.", |p| stats(p, |s| s.offered_bytes)),
    Row::bytes("unofferable", "Volatile memory that only tenure can purge, because userfaultfd is unavailable.", |p| stats(p, |s| s.unofferable_bytes)),
    Row::bytes_total("offer_failed", "Volatile memory whose offer failed when it was due.", |p| stats(p, |s| s.offer_failed_bytes)),
    Row::bytes_total("purged", PURGED, |p| stats(p, |s| s.purged_by_kernel_bytes)).with("cause", "kernel"),
    Row::bytes_total("purged", PURGED, |p| stats(p, |s| s.purged_under_pressure_bytes)).with("cause", "pressure"),
    Row::bytes_total("purged", PURGED, |p| stats(p, |s| s.purged_on_request_bytes)).with("cause", "request"),
    Row::bytes_total("purged", PURGED, |p| stats(p, |s| s.unprotected_bytes)).with("cause", "unprotected"),
    Row::bytes("pending_release", "Released memory that workers have not freed yet.", |p| stats(p, |s| s.pending_release_bytes)),
    Row::bytes_total("freed_by_caller", "Released memory that callers freed themselves.", |p| stats(p, |s| s.freed_by_caller_bytes)),
    Row::total("workers_started", "Threads that were started to free memory.", |p| stats(p, |s| s.workers_started)),
    Row::total("cache_lookups", "Lookups in volatile caches, by result.", |p| stats(p, |s| s.cache_hits)).with("result", "hit"),
    Row::total("cache_lookups", "Lookups in volatile caches, by result.", |p| stats(p, |s| s.cache_misses)).with("result", "miss"),
    Row::total("cache_lost_values", "Values that left volatile caches by themselves, by cause.", |p| stats(p, |s| s.cache_evicted.calls)).with("cause", "evicted"),
    Row::total("cache_lost_values", "Values that left volatile caches by themselves, by cause.", |p| stats(p, |s| s.cache_purged.calls)).with("cause", "purged"),
    Row::bytes_total("cache_lost", "Memory of the values that left volatile caches by themselves, by cause.", |p| stats(p, |s| s.cache_evicted.bytes)).with("cause", "evicted"),
    Row::bytes_total("cache_lost", "Memory of the values that left volatile caches by themselves, by cause.", |p| stats(p, |s| s.cache_purged.bytes)).with("cause", "purged"),
    Row::bytes("cache", "Memory of the values in volatile caches.", |p| stats(p, |s| s.cache_bytes)),
    Row::bytes("pool", "Zeroed memory that the page pool keeps.", |p| stats(p, |s| s.pool_bytes)),
    Row::bytes("pool_lazily_free", "Memory of the page pool that the kernel may reclaim.", |p| stats(p, |s| s.pool_lazily_free_bytes)),
    Row::bytes_total("pool_given", "Memory that the page pool has given to populate.", |p| stats(p, |s| s.pool_given.bytes)),
    Row::gauge("sqlite_pages", "Pages in SQLite's page cache.", |p| stats(p, |s| s.sqlite_pages)),
    Row::total("sqlite_purged_pages", "Pages of SQLite that were found purged.", |p| stats(p, |s| s.sqlite_purged.calls)),
    Row::bytes_total("sqlite_purged", "Memory of pages of SQLite that were found purged.", |p| stats(p, |s| s.sqlite_purged.bytes)),
    Row::total("sqlite_offered_hits", "Pages of SQLite that were found intact after the kernel had been offered them.", |p| stats(p, |s| s.sqlite_offered_hits)),
    Row::bytes_total("shared_allocated", "Memory of the buffers that were allocated in shared arenas.", |p| stats(p, |s| s.shared_allocated.bytes)),
    Row::bytes_total("shared_purged", "Memory of the buffers of shared arenas that the process has purged.", |p| stats(p, |s| s.shared_purged.bytes)),
    Row::bytes("heap_in_use", HEAP_IN_USE, |p| heap(p, |s| s.heap_small.in_use_bytes)).with("size", "small"),
    Row::bytes("heap_in_use", HEAP_IN_USE, |p| heap(p, |s| s.heap_medium.in_use_bytes)).with("size", "medium"),
    Row::bytes("heap_in_use", HEAP_IN_USE, |p| heap(p, |s| s.heap_large.in_use_bytes)).with("size", "large"),
    Row::bytes("heap_dirty", HEAP_DIRTY, |p| heap(p, |s| s.heap_small.dirty_bytes)).with("size", "small"),
    Row::bytes("heap_dirty", HEAP_DIRTY, |p| heap(p, |s| s.heap_medium.dirty_bytes)).with("size", "medium"),
    Row::bytes("heap_dirty", HEAP_DIRTY, |p| heap(p, |s| s.heap_large.dirty_bytes)).with("size", "large"),
    Row::bytes("heap_muzzy", HEAP_MUZZY, |p| heap(p, |s| s.heap_small.muzzy_bytes)).with("size", "small"),
    Row::bytes("heap_muzzy", HEAP_MUZZY, |p| heap(p, |s| s.heap_medium.muzzy_bytes)).with("size", "medium"),
    Row::bytes("heap_muzzy", HEAP_MUZZY, |p| heap(p, |s| s.heap_large.muzzy_bytes)).with("size", "large"),
    Row::bytes("heap_retained", HEAP_RETAINED, |p| heap(p, |s| s.heap_small.retained_bytes)).with("size", "small"),
    Row::bytes("heap_retained", HEAP_RETAINED, |p| heap(p, |s| s.heap_medium.retained_bytes)).with("size", "medium"),
    Row::bytes("heap_retained", HEAP_RETAINED, |p| heap(p, |s| s.heap_large.retained_bytes)).with("size", "large"),
    Row::bytes("heap_active", "Pages that hold blocks of the heap.", |p| heap(p, |s| s.heap_active_bytes)),
    Row::bytes("heap_cached", "Freed blocks of the heap that threads keep for themselves.", |p| heap(p, |s| s.heap_cached_bytes)),
    Row::bytes("heap_max_dirty", "The most dirty memory that the heap keeps at present.", |p| heap(p, |s| s.heap_max_dirty_bytes)),
    Row::bytes("heap_pending", "Free memory that the heap's decay thread is about to return.", |p| heap(p, |s| s.heap_pending_bytes)),
    Row::bytes_total("heap_returned", "Memory that the heap has returned to the kernel.", |p| heap(p, |s| s.heap_returned_bytes)),
    Row::total("heap_pressure_purges", "Times that memory pressure had the heap return memory early.", |p| heap(p, |s| s.heap_returned_under_pressure.calls)),
    Row::bytes_total("heap_returned_under_pressure", "Memory that the heap has returned to the kernel under memory pressure.", |p| heap(p, |s| s.heap_returned_under_pressure.bytes)),
];

/// The families of the calls of each operation.
pub static OPERATION_CALLS: &[Row<ProcessReport>] = &operations!(
    "operation_calls", CALLS, total, calls: populate, lock, unlock, lazy_free, eager_free,
    freed_under_pressure, mark_volatile, mark_nonvolatile, munmap, discard, punch, deferred_free
);

/// The families of the memory of each operation.
pub static OPERATION_BYTES: &[Row<ProcessReport>] = &operations!(
    "operation", CALL_BYTES, bytes_total, bytes: populate, lock, unlock, lazy_free, eager_free,
    freed_under_pressure, mark_volatile, mark_nonvolatile, munmap, discard, punch, deferred_free
);

/// The families of a cgroup.
#[rustfmt::skip]
pub static GROUP: &[Row<GroupReport>] = &[
    Row::bytes("usage", "Memory that the group is charged for.", |g| Some(g.usage_bytes)),
    Row::bytes("limit", "The group's own limit; no sample where it has none.", |g| g.limit_bytes),
    Row::bytes("working_set", "Usage without the inactive file list, as kubelet computes it.", |g| g.working_set_bytes),
    Row::bytes("anonymous", "Anonymous memory, lazily free pages included: the group's RSS.", |g| g.anonymous_bytes),
    Row::bytes("page_cache", "Page cache, without shared memory.", |g| g.page_cache_bytes),
    Row::bytes("shared_memory", "Shared memory.", |g| g.shared_memory_bytes),
    Row::bytes("inactive_file", "Page cache not used lately, and lazily freed pages.", |g| g.inactive_file_bytes),
    Row::bytes("lazily_free", "Lazily free memory of the processes; no sample where one of them may not be read.", |g| g.lazily_free_bytes),
    Row::bytes("usage_without_lazily_free", "Usage without what is lazily free.", |g| g.usage_without_lazily_free_bytes),
    Row::gauge("unreadable_processes", "Processes of the group that may not be read.", |g| some(g.unreadable_processes)),
    Row::gauge("pressure_level", LEVEL, |g| g.pressure.map(level)),
];
