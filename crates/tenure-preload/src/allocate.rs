//! malloc and its relatives: tenure's heap serves them from its threshold on, by default
//! all, and the real allocator the others.
//!
//! C++'s operators new and delete are the C++ library's, in all their forms, unless a
//! program has its own: those of the C++ library call these functions. The library defines
//! none: a program that replaces some of the forms counts on the others calling them.

use std::ffi::{c_int, c_void};
use std::ptr::{copy_nonoverlapping, null_mut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tenure_heap as heap;

pub(crate) use crate::entry::{free, malloc};
use crate::real::REAL;
use crate::reentrancy::{is_inside_tenure, preserve_errno, run_inside};
use crate::{allocators, c_library, private_heap};

/// The alignment of every block, whatever its size.
pub(crate) const ALIGN: usize = 16;

/// The heap serves requests from this size on; larger than every size until it is on, and
/// while a thread is inside tenure.
static MIN_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Whether the heap is on.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// Has the heap serve requests from its threshold on.
pub(crate) fn turn_on() {
    IS_ON.store(true, Ordering::Relaxed);
}

pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Has every request check whether its thread is inside tenure, or not.
pub(crate) fn set_checks(are_needed: bool) {
    let bytes = match is_on() && !are_needed {
        true => heap::threshold_bytes(),
        false => usize::MAX,
    };
    MIN_BYTES.store(bytes, Ordering::SeqCst);
    heap::close_short_way(bytes == usize::MAX, allocators::has_real());
}

/// Allocates a block; null if the real allocator must be asked. Only failures change `errno`.
#[inline]
fn from_heap(size: usize, align: usize) -> *mut c_void {
    heap::allocate(size, align).cast()
}

#[inline]
fn is_served(size: usize) -> bool {
    size >= MIN_BYTES.load(Ordering::Relaxed) || (is_on() && is_served_after_check(size))
}

/// A thread inside tenure may have been interrupted in the heap, or be what the heap waits
/// for: its requests go to the private heap.
#[cold]
fn is_served_after_check(size: usize) -> bool {
    size >= heap::threshold_bytes() && !is_inside_tenure()
}

/// As [`malloc`], for every size. Like each C function it does not unwind, so its callers can
/// jump to it.
#[inline(never)]
pub(crate) extern "C" fn malloc_any(size: usize, caller: usize) -> *mut c_void {
    if is_served(size) && !allocators::is_real(caller) {
        let block = from_heap(size, ALIGN);
        if !block.is_null() {
            return block;
        }
    }
    // SAFETY: `malloc` has no preconditions.
    unsafe { REAL.malloc.get()(size) }
}

/// `calloc(3)`
pub(crate) extern "C" fn calloc_for(count: usize, size: usize, caller: usize) -> *mut c_void {
    // The real allocator refuses a product that overflows.
    if count.checked_mul(size).is_some_and(is_served) && !allocators::is_real(caller) {
        let block = heap::allocate_zeroed(count * size, ALIGN);
        if !block.is_null() {
            return block.cast();
        }
    }
    // SAFETY: `calloc` has no preconditions.
    unsafe { REAL.calloc.get()(count, size) }
}

/// As [`free`], for every block. The C library frees blocks while it holds a lock that
/// starting a thread takes. So those calls start none.
///
/// # Safety
///
/// The conditions are those of `free`.
#[cold]
pub(crate) unsafe extern "C" fn free_any(ptr: *mut c_void, caller: usize) {
    if heap::owns(ptr.cast()) {
        let may_start_thread = || !c_library::contains(caller);
        // SAFETY: a block of the heap, which the caller gives up. Nothing behind this changes
        // `errno`.
        return unsafe { heap::deallocate_with(ptr.cast(), may_start_thread) };
    }
    if private_heap::owns(ptr.cast()) {
        // SAFETY: a block of the private heap, which the caller gives up.
        return run_inside(|| unsafe { private_heap::free(ptr.cast()) });
    }
    // SAFETY: null, or a block of the real allocator, which the caller gives up.
    unsafe { REAL.free.get()(ptr) }
}

/// `realloc(3)`
///
/// # Safety
///
/// The conditions are those of `realloc`.
pub(crate) unsafe extern "C" fn realloc_for(
    ptr: *mut c_void,
    size: usize,
    caller: usize,
) -> *mut c_void {
    if ptr.is_null() {
        return malloc_any(size, caller);
    }
    if heap::owns(ptr.cast()) {
        // SAFETY: a live block of the heap, as `realloc` demands.
        return unsafe { realloc_ours(ptr, size) };
    }
    if private_heap::owns(ptr.cast()) {
        // SAFETY: a live block of the private heap.
        let old_size = unsafe { private_heap::size_of_block(ptr.cast()) };
        // SAFETY: the sizes are those of the two blocks.
        return unsafe { move_to(malloc(size), size, ptr, old_size) };
    }
    if is_served(size) && allocators::has_sizes() && !allocators::is_real(caller) {
        let block = from_heap(size, ALIGN);
        if !block.is_null() {
            // SAFETY: a live block of the real allocator.
            let old_size = unsafe { REAL.malloc_usable_size.get()(ptr) };
            // SAFETY: the sizes are those of the two blocks.
            return unsafe { move_to(block, size, ptr, old_size) };
        }
    }
    // SAFETY: a live block of the real allocator.
    unsafe { REAL.realloc.get()(ptr, size) }
}

/// # Safety
///
/// `ptr` must be a live block of the heap.
#[inline(never)]
unsafe extern "C" fn realloc_ours(ptr: *mut c_void, size: usize) -> *mut c_void {
    if size == 0 {
        // The GNU C library does the same.
        // SAFETY: the caller gives the block up.
        unsafe { free(ptr) };
        return null_mut();
    }
    // SAFETY: `ptr` is a live block of the heap, as the caller ensures.
    let block = preserve_errno(|| unsafe { heap::reallocate(ptr.cast(), size) });
    if !block.is_null() {
        return block.cast();
    }
    // SAFETY: the block could not be resized, and is still live.
    let old_size = unsafe { heap::usable_size(ptr.cast()) };
    // SAFETY: the sizes are those of the two blocks.
    let moved = unsafe { move_to(malloc(size), size, ptr, old_size) };
    if moved.is_null() && size <= old_size {
        // The block fits where it is.
        return ptr;
    }
    moved
}

/// Copies the contents to a new block, unless that is null, and frees the old one.
///
/// # Safety
///
/// - `block` must be null or have `size` bytes; `old` must be live and have `old_size`.
/// - Nothing may use `old` afterwards if `block` is not null.
unsafe fn move_to(
    block: *mut c_void,
    size: usize,
    old: *mut c_void,
    old_size: usize,
) -> *mut c_void {
    if !block.is_null() {
        // SAFETY: two live blocks of these sizes; the caller gives the old one up.
        unsafe {
            copy_nonoverlapping(old.cast::<u8>(), block.cast::<u8>(), size.min(old_size));
            free(old);
        }
    }
    block
}

/// `reallocarray(3)`
///
/// # Safety
///
/// The conditions are those of `reallocarray`.
pub(crate) unsafe extern "C" fn reallocarray_for(
    ptr: *mut c_void,
    count: usize,
    size: usize,
    caller: usize,
) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else {
        return no_memory();
    };
    if is_on() {
        // SAFETY: the conditions of `reallocarray` are those of `realloc`.
        return unsafe { realloc_for(ptr, bytes, caller) };
    }
    // The program, or a library ahead, may have a `realloc` of its own, which alone knows the
    // block. The name stands for that one then, as in the C library's `reallocarray`.
    // SAFETY: as above.
    unsafe { crate::entry::realloc(ptr, bytes) }
}

fn no_memory() -> *mut c_void {
    // SAFETY: `__errno_location` always points to this thread's `errno`.
    unsafe { *libc::__errno_location() = libc::ENOMEM };
    null_mut()
}

/// `posix_memalign(3)`
///
/// # Safety
///
/// The conditions are those of `posix_memalign`.
pub(crate) unsafe extern "C" fn posix_memalign_for(
    out: *mut *mut c_void,
    align: usize,
    size: usize,
    caller: usize,
) -> c_int {
    if align >= size_of::<*const c_void>() {
        let block = aligned_from_heap(align, size, caller);
        if !block.is_null() {
            // SAFETY: `out` is valid for a pointer, as `posix_memalign` demands.
            unsafe { *out = block };
            return 0;
        }
    }
    // SAFETY: the conditions are those of the function of the same name.
    unsafe { REAL.posix_memalign.get()(out, align, size) }
}

/// `aligned_alloc(3)`
pub(crate) extern "C" fn aligned_alloc_for(
    align: usize,
    size: usize,
    caller: usize,
) -> *mut c_void {
    let block = aligned_from_heap(align, size, caller);
    if !block.is_null() {
        return block;
    }
    // SAFETY: the function has no preconditions.
    unsafe { REAL.aligned_alloc.get()(align, size) }
}

/// `memalign(3)`
pub(crate) extern "C" fn memalign_for(align: usize, size: usize, caller: usize) -> *mut c_void {
    let block = aligned_from_heap(align, size, caller);
    if !block.is_null() {
        return block;
    }
    // SAFETY: the function has no preconditions.
    unsafe { REAL.memalign.get()(align, size) }
}

/// Allocates an aligned block; null if the real allocator must be asked, as when that asks itself:
/// jemalloc's operators new call its `aligned_alloc` by name, or its `malloc` once the new handler
/// has found memory, and its operators delete know no other blocks.
fn aligned_from_heap(align: usize, size: usize, caller: usize) -> *mut c_void {
    let is_ours = is_served(size) && align.is_power_of_two() && !allocators::is_real(caller);
    match is_ours {
        true => from_heap(size, align),
        false => null_mut(),
    }
}

/// `valloc(3)`. Not every allocator has `valloc` and `pvalloc`; the C library's own
/// would answer blocks that another allocator cannot free.
pub(crate) extern "C" fn valloc_for(size: usize, caller: usize) -> *mut c_void {
    memalign_for(tenure::page_size(), size, caller)
}

/// `pvalloc(3)`
pub(crate) extern "C" fn pvalloc_for(size: usize, caller: usize) -> *mut c_void {
    match size.checked_next_multiple_of(tenure::page_size()) {
        Some(bytes) => valloc_for(bytes, caller),
        None => no_memory(),
    }
}

/// `malloc_usable_size(3)`
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc_usable_size(ptr: *mut c_void) -> usize {
    if heap::owns(ptr.cast()) {
        // SAFETY: a live block of the heap.
        return unsafe { heap::usable_size(ptr.cast()) };
    }
    if private_heap::owns(ptr.cast()) {
        // SAFETY: a live block of the private heap.
        return unsafe { private_heap::size_of_block(ptr.cast()) };
    }
    // SAFETY: null, or a live block of the real allocator.
    unsafe { REAL.malloc_usable_size.get()(ptr) }
}

/// `cfree`, the old name of `free` with which programs from before glibc 2.26 may be linked.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn cfree(ptr: *mut c_void) {
    // SAFETY: the conditions of `cfree` are those of `free`.
    unsafe { free(ptr) }
}

/// `free_sized`, of C23; hooked because a C library that has it would free the block
/// itself.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free_sized(ptr: *mut c_void, _: usize) {
    // SAFETY: the conditions of `free_sized` include those of `free`.
    unsafe { free(ptr) }
}

/// `free_aligned_sized`, of C23.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free_aligned_sized(ptr: *mut c_void, _: usize, _: usize) {
    // SAFETY: the conditions of `free_aligned_sized` include those of `free`.
    unsafe { free(ptr) }
}
