//! Allocates and frees blocks.

use std::ptr;

use tikv_jemalloc_sys as je;

use crate::table;
use crate::{cache, decay_thread, huge, late, misuse, pool, start, sys};

/// The alignment of every block of this many bytes or more.
const MIN_ALIGN: usize = 16;

/// Zeroed blocks from this size on are not cleared, because the program may touch little
/// of them: their pages are discarded.
const MIN_DISCARDED_BYTES: usize = huge::MIN_BYTES;

/// Smaller blocks are always cleared: jemalloc's `malloc` has a shorter way for them than its
/// `calloc`, which clears them as well.
const MIN_UNCLEARED_BYTES: usize = 4 << 10;

/// Allocates a block of `size` bytes on a multiple of `align`, which is a power of two:
/// `malloc(3)`. Its contents are undefined.
///
/// Returns null if the heap does not serve the request: `size` is below
/// [`threshold_bytes`](crate::threshold_bytes), there is no memory, or the heap is off.
/// The caller then asks another allocator.
///
/// The call never allocates from another allocator.
///
/// ```
/// let block = tenure_heap::allocate(1 << 20, 4096);
/// if !block.is_null() {
///     // SAFETY: a block of a mebibyte that is not used afterwards.
///     unsafe {
///         block.write_bytes(7, 1 << 20);
///         tenure_heap::deallocate(block);
///     }
/// }
/// ```
#[inline]
#[must_use = "the block stays allocated until it is given to `deallocate`"]
pub fn allocate(size: usize, align: usize) -> *mut u8 {
    if align <= MIN_ALIGN && size < start::small_limit() {
        return allocate_small(size);
    }
    allocate_any(size, align)
}

/// Allocates a block below [`small_limit`](crate::small_limit), with an alignment of 16. Returns
/// null if there is no memory.
///
/// The call adds one check to jemalloc's: most programs make hundreds of small blocks for each
/// large one.
#[doc(hidden)]
#[inline]
pub fn allocate_small(size: usize) -> *mut u8 {
    // SAFETY: `malloc` has no preconditions.
    let block = unsafe { je::malloc(size.max(MIN_ALIGN)) }.cast();
    if misuse::may_be_large(block) {
        return note_small(block, size);
    }
    block
}

#[cold]
extern "C" fn note_small(block: *mut u8, size: usize) -> *mut u8 {
    misuse::note_allocated(block, size);
    block
}

fn allocate_any(size: usize, align: usize) -> *mut u8 {
    let mut bytes = size.max(align);
    if !start::is_served(size) {
        return ptr::null_mut();
    }
    if align > MIN_ALIGN {
        return aligned(size, align);
    }
    if size >= late::MIN_COUNTED_BYTES {
        if size >= huge::MIN_BYTES {
            return aligned(size, align);
        }
        bytes = match cache::take(size) {
            Ok(block) => return block.as_ptr(),
            Err(bytes) => bytes,
        };
        late::note_allocation(bytes);
    }
    // SAFETY: `malloc` has no preconditions.
    let request = |bytes| unsafe { je::malloc(bytes) }.cast();
    let block = request_twice(bytes, size.max(align), request);
    if size >= late::MIN_COUNTED_BYTES {
        cache::note_requested(block);
    }
    misuse::note_allocated(block, size);
    block
}

/// Allocates a block of zeros: `calloc(3)`. Memory that is known to be zero is not
/// cleared.
///
/// The conditions are those of [`allocate`].
///
/// ```
/// let block = tenure_heap::allocate_zeroed(64 << 20, 8);
/// if !block.is_null() {
///     // SAFETY: a block of 64 MiB that is not used afterwards.
///     unsafe {
///         assert_eq!(*block.add((64 << 20) - 1), 0);
///         tenure_heap::deallocate(block);
///     }
/// }
/// ```
#[inline]
#[must_use = "the block stays allocated until it is given to `deallocate`"]
pub fn allocate_zeroed(size: usize, align: usize) -> *mut u8 {
    if align <= MIN_ALIGN && size < start::small_limit().min(MIN_UNCLEARED_BYTES) {
        let block = allocate_small(size);
        if !block.is_null() {
            // SAFETY: a new block of this size.
            unsafe { block.write_bytes(0, size) };
        }
        return block;
    }
    allocate_zeroed_any(size, align)
}

fn allocate_zeroed_any(size: usize, align: usize) -> *mut u8 {
    let mut bytes = size.max(align);
    if !start::is_served(size) {
        return ptr::null_mut();
    }
    if size >= MIN_DISCARDED_BYTES {
        return large_zeroed(size, align);
    }
    if size >= late::MIN_COUNTED_BYTES {
        if align <= MIN_ALIGN {
            bytes = match cache::take(size) {
                Ok(block) => {
                    // SAFETY: a block of this size.
                    unsafe { block.write_bytes(0, size) };
                    return block.as_ptr();
                }
                Err(bytes) => bytes,
            };
        }
        late::note_allocation(bytes);
    }
    let request = |bytes| {
        if align <= MIN_ALIGN {
            // SAFETY: `calloc` has no preconditions.
            unsafe { je::calloc(1, bytes) }.cast()
        } else {
            // SAFETY: the size is not 0, and the flags hold an alignment.
            unsafe { je::mallocx(size.max(1), je::MALLOCX_ALIGN(align) | je::MALLOCX_ZERO) }.cast()
        }
    };
    let block = request_twice(bytes, size.max(align), request);
    if size >= late::MIN_COUNTED_BYTES {
        cache::note_requested(block);
    }
    misuse::note_allocated(block, size);
    block
}

/// Requests a block of `bytes`. If there is no memory, frees the blocks that are kept, and requests
/// one of no more than it must have.
#[inline]
fn request_twice(bytes: usize, least: usize, request: impl Fn(usize) -> *mut u8) -> *mut u8 {
    let block = request(bytes);
    if !block.is_null() {
        return block;
    }
    cache::free_all();
    request(least)
}

/// Allocates a large block, or one with an alignment that is not usual.
#[cold]
fn aligned(size: usize, align: usize) -> *mut u8 {
    let block = aligned_for_huge_pages(size, align);
    if !block.is_null() && size >= huge::MIN_BYTES {
        huge::advise(block.expose_provenance(), size);
        pool::fill(block.expose_provenance(), size);
    }
    block
}

/// As [`aligned`], without advice for huge pages.
pub(crate) fn aligned_for_huge_pages(size: usize, align: usize) -> *mut u8 {
    let align = if size >= huge::MIN_BYTES {
        align.max(table::UNIT_BYTES)
    } else {
        align
    };
    // jemalloc refuses larger ones, but its sizes must not overflow.
    if size > isize::MAX as usize || align > isize::MAX as usize / 2 {
        return ptr::null_mut();
    }
    late::note_allocation(size);
    // SAFETY: the size is not 0, and the flags hold an alignment.
    let block = unsafe { je::mallocx(size.max(1), je::MALLOCX_ALIGN(align)) }.cast();
    misuse::note_allocated(block, size);
    block
}

#[cold]
fn large_zeroed(size: usize, align: usize) -> *mut u8 {
    let block = aligned_for_huge_pages(size, align);
    if block.is_null() {
        return block;
    }
    let pages = size / sys::page_bytes() * sys::page_bytes();
    // SAFETY: a new block of this size, which begins on a boundary of a huge page.
    unsafe {
        if sys::discard((block.expose_provenance(), pages)).is_ok() {
            block.add(pages).write_bytes(0, size - pages);
            pool::fill(block.expose_provenance(), size);
        } else {
            block.write_bytes(0, size);
        }
    }
    block
}

/// Returns whether the address lies in the heap, whether or not a block is there.
///
/// ```
/// let block = tenure_heap::allocate(1 << 20, 8);
/// assert_eq!(tenure_heap::owns(block), !block.is_null());
/// assert!(!tenure_heap::owns([1, 2, 3].as_ptr()));
/// # // SAFETY: a block that nothing uses.
/// # if !block.is_null() { unsafe { tenure_heap::deallocate(block) } }
/// ```
#[inline]
#[must_use]
pub fn owns(ptr: *const u8) -> bool {
    table::owns(ptr.addr())
}

/// Frees a block: `free(3)`. Its pages stay dirty for the next requests; then they decay
/// and are returned to the kernel. The call does not wait for that, whatever the size.
///
/// # Safety
///
/// - `ptr` must be a block of this heap ([`owns`] is true for it) that is not freed.
/// - Nothing may use the block afterwards.
#[inline]
pub unsafe fn deallocate(ptr: *mut u8) {
    // SAFETY: the caller's conditions are the same.
    unsafe { deallocate_with(ptr, || true) };
}

/// Frees a block as [`deallocate`] does, and asks before it starts the decay thread: the
/// caller may hold a lock that pthread_create(3) takes. A later call starts it.
///
/// # Safety
///
/// The conditions are those of [`deallocate`].
#[doc(hidden)]
#[inline]
pub unsafe fn deallocate_with(ptr: *mut u8, may_start_thread: impl FnOnce() -> bool) {
    misuse::note_freed(ptr);
    decay_thread::ensure_running(may_start_thread);
    let mut freed = ptr;
    if cache::is_looked_at(ptr) {
        // SAFETY: a live block, which the caller gives up.
        freed = unsafe { cache::put(ptr) };
    }
    // SAFETY: null, or a live block, which the caller or an earlier one has given up.
    unsafe { je::free(freed.cast()) };
}

/// Frees a block of the heap if nothing but jemalloc need know of that. Returns false if the
/// block is not freed: the caller then asks [`owns`], and frees it by [`deallocate`].
///
/// # Safety
///
/// The conditions are those of [`deallocate`], but that the block may be another allocator's.
#[doc(hidden)]
#[inline]
#[must_use = "the block may not be freed"]
pub unsafe fn deallocate_simple(ptr: *mut u8) -> bool {
    let is_simple = table::is_in_span(ptr.addr()) && !cache::is_looked_at(ptr);
    if is_simple {
        // SAFETY: a live block of the heap, which the caller gives up.
        unsafe { je::free(ptr.cast()) };
    }
    is_simple
}

/// Returns how many bytes of a block may be used, at least as many as were requested:
/// `malloc_usable_size(3)`.
///
/// # Safety
///
/// `ptr` must be a block of this heap that is not freed.
#[inline]
#[must_use]
pub unsafe fn usable_size(ptr: *const u8) -> usize {
    misuse::expect_live(ptr, "the size");
    // SAFETY: a live block, as the caller ensures.
    unsafe { je::malloc_usable_size(ptr.cast()) }
}
