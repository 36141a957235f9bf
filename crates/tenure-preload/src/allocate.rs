//! malloc and its kin: what is large is tenure's heap's, the rest the next
//! allocator's.
//!
//! For a small size that is a load, a comparison and a jump.

use std::ffi::{c_int, c_void};
use std::ptr::{copy_nonoverlapping, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use tenure_heap as heap;

use crate::aside;
use crate::next::NEXT;
use crate::quiet::{inside, keep_errno};

/// What every block is aligned to, whatever its size.
const ALIGN: usize = 16;

/// From this size on requests are the heap's; larger than every size until it is on.
static LARGE_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Has the heap serve what is large enough for it, from now on.
pub(crate) fn turn_on() {
    LARGE_BYTES.store(heap::threshold_bytes(), Ordering::Relaxed);
}

/// Takes a large block; null where the next allocator is to be asked.
#[cold]
fn large(size: usize, align: usize) -> *mut c_void {
    keep_errno(|| heap::allocate(size, align)).cast()
}

#[inline]
fn is_large(size: usize) -> bool {
    size >= LARGE_BYTES.load(Ordering::Relaxed)
}

/// `malloc(3)`
///
/// # Safety
///
/// As C has it, here and below.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    if is_large(size) {
        let block = large(size, ALIGN);
        if !block.is_null() {
            return block;
        }
    }
    // SAFETY: handed on to the caller; so below.
    unsafe { NEXT.malloc.get()(size) }
}

/// `calloc(3)`
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    // What overflows is the next allocator's to refuse.
    if count.checked_mul(size).is_some_and(is_large) {
        let block = keep_errno(|| heap::allocate_zeroed(count * size, ALIGN));
        if !block.is_null() {
            return block.cast();
        }
    }
    // SAFETY: handed on to the caller.
    unsafe { NEXT.calloc.get()(count, size) }
}

/// `free(3)`
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free(ptr: *mut c_void) {
    if heap::owns(ptr.cast()) {
        // SAFETY: the heap's own block, which the caller gives up.
        return keep_errno(|| unsafe { heap::deallocate(ptr.cast()) });
    }
    if aside::owns(ptr.cast()) {
        // SAFETY: taken there, and the caller gives it up.
        return inside(|| unsafe { aside::free(ptr.cast()) });
    }
    // SAFETY: handed on to the caller.
    unsafe { NEXT.free.get()(ptr) }
}

/// `realloc(3)`
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn realloc(ptr: *mut c_void, size: usize) -> *mut c_void {
    if ptr.is_null() {
        // SAFETY: handed on to the caller.
        return unsafe { malloc(size) };
    }
    if heap::owns(ptr.cast()) {
        // SAFETY: the heap's own block.
        return unsafe { realloc_large(ptr, size) };
    }
    if aside::owns(ptr.cast()) {
        // SAFETY: taken there.
        let old_size = unsafe { aside::size_of_block(ptr.cast()) };
        // SAFETY: as many bytes as it has.
        return unsafe { move_to(malloc(size), size, ptr, old_size) };
    }
    if is_large(size) {
        let block = large(size, ALIGN);
        if !block.is_null() {
            // SAFETY: the block is the next allocator's.
            let old_size = unsafe { NEXT.malloc_usable_size.get()(ptr) };
            // SAFETY: as many bytes as it has.
            return unsafe { move_to(block, size, ptr, old_size) };
        }
    }
    // SAFETY: handed on to the caller.
    unsafe { NEXT.realloc.get()(ptr, size) }
}

/// # Safety
///
/// A block of the heap's.
#[cold]
unsafe fn realloc_large(ptr: *mut c_void, size: usize) -> *mut c_void {
    if size == 0 {
        // As the GNU C library does.
        // SAFETY: handed on to the caller.
        unsafe { free(ptr) };
        return null_mut();
    }
    // SAFETY: as above.
    let block = keep_errno(|| unsafe { heap::reallocate(ptr.cast(), size) });
    if !block.is_null() {
        return block.cast();
    }
    // SAFETY: as above.
    let old_size = unsafe { heap::usable_size(ptr.cast()) };
    // SAFETY: as many bytes as it has.
    let moved = unsafe { move_to(malloc(size), size, ptr, old_size) };
    if moved.is_null() && size <= old_size {
        // It need not move.
        return ptr;
    }
    moved
}

/// Moves the contents to a new block, unless there is none, and frees the old one.
///
/// # Safety
///
/// The blocks must have so many bytes.
unsafe fn move_to(
    block: *mut c_void,
    size: usize,
    old: *mut c_void,
    old_size: usize,
) -> *mut c_void {
    if !block.is_null() {
        // SAFETY: two blocks in use at the same time; the caller knows their sizes,
        // and gives the old one up.
        unsafe {
            copy_nonoverlapping(old.cast::<u8>(), block.cast::<u8>(), size.min(old_size));
            free(old);
        }
    }
    block
}

/// `reallocarray(3)`
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn reallocarray(ptr: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: handed on to the caller.
        Some(bytes) => unsafe { realloc(ptr, bytes) },
        None => no_memory(),
    }
}

fn no_memory() -> *mut c_void {
    // SAFETY: always points to this thread's `errno`.
    unsafe { *libc::__errno_location() = libc::ENOMEM };
    null_mut()
}

/// `posix_memalign(3)`
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if is_large(size) && align.is_power_of_two() && align >= size_of::<*const c_void>() {
        let block = large(size, align);
        if !block.is_null() {
            // SAFETY: the caller's.
            unsafe { *out = block };
            return 0;
        }
    }
    // SAFETY: handed on to the caller.
    unsafe { NEXT.posix_memalign.get()(out, align, size) }
}

/// `aligned_alloc(3)`
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if is_large(size) && align.is_power_of_two() {
        let block = large(size, align);
        if !block.is_null() {
            return block;
        }
    }
    // SAFETY: handed on to the caller.
    unsafe { NEXT.aligned_alloc.get()(align, size) }
}

/// `memalign(3)`
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    if is_large(size) && align.is_power_of_two() {
        let block = large(size, align);
        if !block.is_null() {
            return block;
        }
    }
    // SAFETY: handed on to the caller.
    unsafe { NEXT.memalign.get()(align, size) }
}

/// `valloc(3)`. Not every allocator has it and `pvalloc`: the C library's own, asked
/// in its stead, would answer blocks that the allocator cannot free.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    // SAFETY: handed on to the caller.
    unsafe { memalign(tenure::page_size(), size) }
}

/// `pvalloc(3)`
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.checked_next_multiple_of(tenure::page_size()) {
        // SAFETY: handed on to the caller.
        Some(bytes) => unsafe { valloc(bytes) },
        None => no_memory(),
    }
}

/// `malloc_usable_size(3)`
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc_usable_size(ptr: *mut c_void) -> usize {
    if heap::owns(ptr.cast()) {
        // SAFETY: the heap's own block.
        return unsafe { heap::usable_size(ptr.cast()) };
    }
    if aside::owns(ptr.cast()) {
        // SAFETY: taken there.
        return unsafe { aside::size_of_block(ptr.cast()) };
    }
    // SAFETY: handed on to the caller.
    unsafe { NEXT.malloc_usable_size.get()(ptr) }
}

/// `free_sized`, of C23: a C library that has it would free the block itself.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free_sized(ptr: *mut c_void, _: usize) {
    // SAFETY: handed on to the caller.
    unsafe { free(ptr) }
}

/// `free_aligned_sized`, of C23.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free_aligned_sized(ptr: *mut c_void, _: usize, _: usize) {
    // SAFETY: handed on to the caller.
    unsafe { free(ptr) }
}
