//! The pages under jemalloc: its extent hooks.
//!
//! No hook allocates, takes a lock or calls a verb of tenure: jemalloc calls `alloc` with
//! a lock held, and the others from any thread that allocates or frees.
//!
//! jemalloc asks for addresses in steps that grow with what it has, and keeps them: what
//! it does not need any more it purges. A thread of the program that purges a large range
//! does not wait for the kernel to free it: the pages are [moved away](crate::deferred).

use std::ffi::{c_uint, c_void};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tenure::PageRange;
use tikv_jemalloc_sys::extent_hooks_t;

use crate::table::{self, MOVED, OWNED, UNIT_BYTES};
use crate::{decay_thread, deferred, jemalloc, moves, start, stats, sys};

/// Ranges from this size on are moved away, and not purged, by threads of the program.
const MIN_DEFERRED_BYTES: usize = 4 << 20;

/// The addresses of the latest mapping: the next one goes below it, so that both are one.
static LATEST: AtomicUsize = AtomicUsize::new(0);

/// The first mapping goes so far below the latest of others, which grow downwards as well: the
/// heap's stay together, and most look-ups need only the ends of one range.
const DISTANCE_BYTES: usize = 256 << 30;

/// The addresses that the heap has mapped.
static MAPPED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The bytes that jemalloc has requested, without those that it has returned. The first ones that
/// it returns it had before it had these hooks: only differences say something.
static COMMITTED_BYTES: AtomicUsize = AtomicUsize::new(0);

struct Hooks(extent_hooks_t);

// SAFETY: functions that any thread may call.
unsafe impl Sync for Hooks {}

static HOOKS: Hooks = Hooks(extent_hooks_t {
    alloc: Some(alloc),
    dalloc: Some(dalloc),
    // jemalloc destroys no arena that it has made itself.
    destroy: None,
    commit: Some(commit),
    decommit: Some(decommit),
    purge_lazy: Some(purge_lazy),
    purge_forced: Some(purge_forced),
    split: Some(split),
    merge: Some(merge),
});

pub(crate) fn hooks() -> *const extent_hooks_t {
    &raw const HOOKS.0
}

pub(crate) fn mapped_bytes() -> usize {
    MAPPED_BYTES.load(Relaxed)
}

/// Returns a number that grows by as many bytes as the blocks, the dirty and the muzzy pages have
/// more together, and wraps around.
#[inline]
pub(crate) fn committed_bytes() -> usize {
    COMMITTED_BYTES.load(Relaxed)
}

unsafe extern "C" fn alloc(
    _: *mut extent_hooks_t,
    wanted: *mut c_void,
    bytes: usize,
    align: usize,
    is_zero: *mut bool,
    is_committed: *mut bool,
    _: c_uint,
) -> *mut c_void {
    // Neighbouring mappings belong to others or to jemalloc already.
    if !wanted.is_null() {
        return null_mut();
    }
    // SAFETY: jemalloc passes pointers to two flags.
    let is_metadata = align >= UNIT_BYTES && unsafe { *is_zero && *is_committed };
    let align = align.max(UNIT_BYTES);
    let Some(bytes) = bytes.checked_next_multiple_of(UNIT_BYTES) else {
        return null_mut();
    };
    let Some(at) = map_aligned(bytes, align) else {
        // SAFETY: jemalloc passes pointers to two flags.
        return unsafe { from_reserve(bytes, align, is_zero, is_committed) };
    };
    let is_added = match is_metadata {
        true => table::add_metadata(at, bytes),
        false => table::add(at, bytes),
    };
    if !is_added {
        // SAFETY: mapped above, and no other code knows the address.
        unsafe { sys::unmap((at, bytes)) };
        return null_mut();
    }
    LATEST.store(at, Relaxed);
    // An arena needs a few KiB of its first metadata. What it asks for later it uses.
    if is_metadata && bytes <= UNIT_BYTES {
        // SAFETY: mapped above. If the kernel refuses, more is in memory.
        let _ = unsafe { sys::advise_base_pages((at, bytes)) };
    }
    // SAFETY: jemalloc's pointers.
    unsafe { give(at, bytes, is_zero, is_committed) }
}

/// Counts pages that come to hold a block. Returns whether they cannot.
///
/// Memory from [`alloc`] is accessible. Memory that jemalloc mapped itself, before it had these
/// hooks, is not where vm.overcommit_memory is 2 or cannot be read.
unsafe extern "C" fn commit(
    _: *mut extent_hooks_t,
    at: *mut c_void,
    _: usize,
    offset: usize,
    bytes: usize,
    _: c_uint,
) -> bool {
    let part = (at.expose_provenance() + offset, bytes);
    // SAFETY: pages of jemalloc's that nobody uses.
    let has_failed = !table::has(part.0, OWNED) && unsafe { sys::make_accessible(part) }.is_err();
    if !has_failed {
        COMMITTED_BYTES.fetch_add(bytes, Relaxed);
    }
    has_failed
}

/// Gives jemalloc memory that nobody has touched: by itself addresses, which [`commit`] counts, or
/// what it uses at once.
///
/// # Safety
///
/// The pointers must be those of two flags.
unsafe fn give(
    at: usize,
    bytes: usize,
    is_zero: *mut bool,
    is_committed: *mut bool,
) -> *mut c_void {
    let mapped_bytes = MAPPED_BYTES.fetch_add(bytes, Relaxed) + bytes;
    decay_thread::note_growth(mapped_bytes);
    // SAFETY: two flags, as the caller ensures.
    unsafe {
        *is_zero = true;
        if *is_committed {
            COMMITTED_BYTES.fetch_add(bytes, Relaxed);
        }
    }
    with_exposed_provenance_mut(at)
}

/// The reserve's units, of which so many are left, and where they are.
static RESERVE_UNITS: AtomicUsize = AtomicUsize::new(0);
static RESERVE: AtomicUsize = AtomicUsize::new(0);
const MAX_RESERVE_UNITS: usize = 2;

/// Maps a reserve. malloc's short way does not ask another allocator when jemalloc has no
/// memory; it is closed when the first unit of the reserve is used. Returns false if there is
/// no memory for that.
pub(crate) fn prepare_reserve() -> bool {
    if RESERVE.load(Relaxed) != 0 {
        return true;
    }
    let bytes = MAX_RESERVE_UNITS * UNIT_BYTES;
    let Some(at) = map_aligned(bytes, UNIT_BYTES) else {
        return false;
    };
    if !table::add(at, bytes) {
        // SAFETY: mapped above, and no other code knows the address.
        unsafe { sys::unmap((at, bytes)) };
        return false;
    }
    LATEST.store(at, Relaxed);
    RESERVE.store(at, Relaxed);
    RESERVE_UNITS.store(MAX_RESERVE_UNITS, Relaxed);
    true
}

/// Gives jemalloc a part of the reserve, if it asks for no more.
///
/// # Safety
///
/// The pointers must be those of two flags.
unsafe fn from_reserve(
    bytes: usize,
    align: usize,
    is_zero: *mut bool,
    is_committed: *mut bool,
) -> *mut c_void {
    let units = bytes / UNIT_BYTES;
    if units > MAX_RESERVE_UNITS || align > UNIT_BYTES {
        return null_mut();
    }
    start::note_end_of_memory();
    let take = |left: usize| left.checked_sub(units);
    let Ok(left) = RESERVE_UNITS.fetch_update(Relaxed, Relaxed, take) else {
        return null_mut();
    };
    let at = RESERVE.load(Relaxed) + (left - units) * UNIT_BYTES;
    // SAFETY: jemalloc's pointers; nobody else has this part.
    unsafe { give(at, bytes, is_zero, is_committed) }
}

fn map_aligned(bytes: usize, align: usize) -> Option<usize> {
    let latest = match LATEST.load(Relaxed) {
        0 => first_place()?,
        latest => latest,
    };
    let hint = latest.saturating_sub(bytes) / align * align;
    let at = sys::map(with_exposed_provenance_mut(hint), bytes).ok()?;
    if at.is_multiple_of(align) {
        return Some(at);
    }
    // SAFETY: mapped above, and no other code knows the address.
    unsafe { sys::unmap((at, bytes)) };
    let whole = bytes.checked_add(align)?;
    let start = sys::map(null_mut(), whole).ok()?;
    let at = start.next_multiple_of(align);
    let end = at + bytes;
    for part in [(start, at - start), (end, start + whole - end)] {
        if part.1 > 0 {
            // SAFETY: as above.
            unsafe { sys::unmap(part) };
        }
    }
    Some(at)
}

/// Returns an address below which nothing is, mostly. The kernel need not follow.
fn first_place() -> Option<usize> {
    let at = sys::map(null_mut(), UNIT_BYTES).ok()?;
    // SAFETY: mapped above, and no other code knows the address.
    unsafe { sys::unmap((at, UNIT_BYTES)) };
    Some(at.saturating_sub(DISTANCE_BYTES))
}

/// Refuses: jemalloc then purges the range, and keeps its addresses.
unsafe extern "C" fn dalloc(
    _: *mut extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: bool,
    _: c_uint,
) -> bool {
    true
}

/// Has the kernel reclaim the pages when it needs them. Returns whether that failed:
/// then jemalloc calls [`purge_forced`].
unsafe extern "C" fn purge_lazy(
    _: *mut extent_hooks_t,
    at: *mut c_void,
    _: usize,
    offset: usize,
    bytes: usize,
    _: c_uint,
) -> bool {
    // With a background thread nobody else calls this.
    let may_wait = jemalloc::has_background_thread() || decay_thread::may_wait();
    if bytes >= MIN_DEFERRED_BYTES && !may_wait {
        return true;
    }
    let part = (at.expose_provenance() + offset, bytes);
    // Linux may discard a page that is freed lazily also where another process has it in use.
    let range = PageRange::new(part.0, part.1);
    if range.is_ok_and(tenure::may_be_shared) {
        return true;
    }
    // SAFETY: free pages of jemalloc's, whose contents it gives up.
    unsafe { sys::free_lazily(part) }.is_err()
}

/// Returns pages to the kernel that [`commit`] has counted. Returns whether that failed: then
/// jemalloc calls [`purge_forced`].
unsafe extern "C" fn decommit(
    hooks: *mut extent_hooks_t,
    at: *mut c_void,
    all_bytes: usize,
    offset: usize,
    bytes: usize,
    arena: c_uint,
) -> bool {
    // SAFETY: jemalloc calls both for the same pages.
    let has_failed = unsafe { purge_forced(hooks, at, all_bytes, offset, bytes, arena) };
    if !has_failed {
        COMMITTED_BYTES.fetch_sub(bytes, Relaxed);
    }
    has_failed
}

/// Returns the pages to the kernel. Returns whether that failed.
unsafe extern "C" fn purge_forced(
    _: *mut extent_hooks_t,
    at: *mut c_void,
    _: usize,
    offset: usize,
    bytes: usize,
    _: c_uint,
) -> bool {
    let part = (at.expose_provenance() + offset, bytes);
    // SAFETY: free pages of jemalloc's, whose contents it gives up; so also below.
    let is_returned = unsafe {
        bytes >= MIN_DEFERRED_BYTES && !decay_thread::may_wait() && deferred::move_away(part)
            || moves::any() && remap_moved(part)
            || sys::discard_locked(part).is_ok()
    };
    if is_returned {
        stats::note_returned(bytes);
    }
    !is_returned
}

/// Maps a range anew if page tables were moved there, so that it forms one mapping with
/// its neighbours again.
///
/// # Safety
///
/// Nobody may use the range's contents.
unsafe fn remap_moved(part: sys::Part) -> bool {
    // SAFETY: nobody uses the contents, as the caller ensures.
    units(part).any(|unit| table::has(unit, MOVED)) && unsafe { remap(part) }
}

/// Maps a range anew, without the advice and the access that a program has given it. Returns
/// false if the kernel refuses.
///
/// # Safety
///
/// Nobody may use the range's contents.
pub(crate) unsafe fn remap(part: sys::Part) -> bool {
    // SAFETY: nobody uses the contents, as the caller ensures.
    if unsafe { sys::remap(part) }.is_err() {
        return false;
    }
    for unit in units(part) {
        table::clear(unit, table::HUGE);
    }
    moves::forget(
        units(part)
            .filter(|unit| table::clear(*unit, MOVED))
            .count(),
    );
    true
}

fn units((at, bytes): sys::Part) -> impl Iterator<Item = usize> {
    (at / UNIT_BYTES * UNIT_BYTES..at + bytes).step_by(UNIT_BYTES)
}

/// Two parts of a range need no more than their addresses.
unsafe extern "C" fn split(
    _: *mut extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: usize,
    _: usize,
    _: bool,
    _: c_uint,
) -> bool {
    false
}

/// As for [`split`]: advice and unmapping may cross mappings.
unsafe extern "C" fn merge(
    _: *mut extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
    _: usize,
    _: bool,
    _: c_uint,
) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_bytes_differ_by_what_blocks_and_free_pages_have() {
        const BYTES: usize = 64 << 20;
        // jemalloc gets memory for itself in such steps.
        const MAX_METADATA_BYTES: usize = 2 * UNIT_BYTES;
        crate::start(crate::HeapOptions::default()).unwrap();
        let other_bytes = || {
            jemalloc::refresh();
            let (dirty_bytes, muzzy_bytes) = jemalloc::free_bytes();
            let counted_bytes = jemalloc::active_bytes() + dirty_bytes + muzzy_bytes;
            committed_bytes().wrapping_sub(counted_bytes)
        };
        let before = other_bytes();
        // The decay thread may purge between two figures.
        let is_same = || {
            let one = || other_bytes().wrapping_sub(before) <= MAX_METADATA_BYTES;
            (0..100).any(|_| one())
        };
        for block_bytes in [64 << 10, 300 << 10, 3 << 20, 32 << 20] {
            let allocate = |_| crate::allocate(block_bytes, 16);
            let blocks: Vec<_> = (0..BYTES / block_bytes).map(allocate).collect();
            assert!(is_same(), "{block_bytes} allocated");
            for block in blocks {
                // SAFETY: a block of the heap.
                unsafe { crate::deallocate(block) };
            }
            assert!(is_same(), "{block_bytes} freed");
            crate::trim();
            assert!(is_same(), "{block_bytes} returned");
        }
    }
}
