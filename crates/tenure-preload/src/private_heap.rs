//! A heap of the library's own, beside the program's allocators: for tenure itself, and
//! for requests that arrive while the real allocator is being resolved.
//!
//! A verb may be called from inside an allocator: by a signal handler that has
//! interrupted it, or by the allocator itself. It must not ask that allocator for
//! memory there: it would wait for a lock of its own thread, or find lists half
//! changed.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::ptr::{copy_nonoverlapping, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use dlmalloc::Dlmalloc;
use tenure::HeapLock;

use crate::sys;

/// The most memory in use at a time: the largest blocks are lists of mappings, which `map`
/// bounds.
const CAPACITY_BYTES: usize = 64 << 20;

/// How much more memory each step makes usable.
const STEP_BYTES: usize = 256 << 10;

/// The header before each block, with its length.
const HEADER_BYTES: usize = 16;

/// The start of the reservation; before it is made, an address that no pointer of a
/// program has.
static START: AtomicUsize = AtomicUsize::new(UNRESERVED);
const UNRESERVED: usize = 1 << (usize::BITS - 1);

/// How much of the reservation is usable.
static USED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Returns whether the block belongs to this heap.
#[inline]
pub(crate) fn owns(ptr: *const u8) -> bool {
    ptr.addr().wrapping_sub(START.load(Ordering::Relaxed)) < CAPACITY_BYTES
}

/// Returns whether the heap has its addresses, which RLIMIT_AS can prevent.
pub(crate) fn is_available() -> bool {
    let block = allocate(1, 1);
    if block.is_null() {
        return false;
    }
    // SAFETY: just allocated, and not used.
    unsafe { free(block) };
    true
}

/// Allocates a block; null if the capacity is exhausted.
pub(crate) fn allocate(size: usize, align: usize) -> *mut u8 {
    let pad = align.max(HEADER_BYTES);
    let Some(whole) = size
        .checked_add(pad)
        .filter(|whole| *whole <= CAPACITY_BYTES)
    else {
        return null_mut();
    };
    // SAFETY: `pad` is a power of two, as every alignment is, and the source of memory, which
    // makes system calls only, allocates nothing.
    let start = unsafe { HEAP.with(|heap| heap.c_memalign(pad, whole)) };
    if start.is_null() {
        return null_mut();
    }
    // SAFETY: the allocation has `pad` bytes, at least a header, before the block.
    unsafe {
        let block = start.add(pad);
        block
            .sub(HEADER_BYTES)
            .cast::<[usize; 2]>()
            .write([size, pad]);
        block
    }
}

/// Returns the size that was requested for a block.
///
/// # Safety
///
/// [`allocate`] must have returned `block`, and it must not have been freed.
pub(crate) unsafe fn size_of_block(block: *const u8) -> usize {
    // SAFETY: `block` is a live block, as the caller ensures.
    let [size, _] = unsafe { header(block) };
    size
}

/// Returns the size that was requested for a block, and its padding.
///
/// # Safety
///
/// [`allocate`] must have returned `block`, and it must not have been freed.
unsafe fn header(block: *const u8) -> [usize; 2] {
    // SAFETY: `allocate` has written the header before the block.
    unsafe { block.sub(HEADER_BYTES).cast::<[usize; 2]>().read() }
}

/// Frees a block.
///
/// # Safety
///
/// - [`allocate`] must have returned `block`, and it must not have been freed.
/// - Nothing may use it afterwards.
pub(crate) unsafe fn free(block: *mut u8) {
    // SAFETY: `block` is a live block, as the caller ensures.
    let [_, pad] = unsafe { header(block) };
    // SAFETY: `c_memalign` returned this address; as above, it does not lock again.
    unsafe { HEAP.with(|heap| heap.c_free(block.sub(pad))) };
}

/// Runs before tenure's own entry in `.init_array`, which has no number.
#[used]
#[unsafe(link_section = ".init_array.00200")]
static AT_LOAD: extern "C" fn() = register_atfork;

/// Registers fork handlers that hold the lock during a fork, so that the child's copy
/// of the heap is consistent. It must be registered before all others of this library:
/// the locks of later handlers are taken first, and their holders may allocate.
extern "C" fn register_atfork() {
    extern "C" fn prepare() {
        HEAP.hold();
    }
    extern "C" fn after() {
        // SAFETY: `prepare` has run before, in this thread or the one that it is a copy of.
        unsafe { HEAP.let_go() };
    }
    // SAFETY: this library is never unloaded. The registration fails only without
    // memory, early in the process, where nothing can be done about it.
    unsafe { libc::pthread_atfork(Some(prepare), Some(after), Some(after)) };
}

static HEAP: HeapLock<Dlmalloc<Reservation>> =
    HeapLock::new(Dlmalloc::new_with_allocator(Reservation));

/// The reserved addresses, made usable step by step.
struct Reservation;

// SAFETY: `alloc` returns fresh memory that was not returned before; none of it goes
// back to the system.
unsafe impl dlmalloc::Allocator for Reservation {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let none = (null_mut(), 0, 0);
        let used = USED_BYTES.load(Ordering::Relaxed);
        let size = size.next_multiple_of(STEP_BYTES);
        if size > CAPACITY_BYTES - used {
            return none;
        }
        if START.load(Ordering::Relaxed) == UNRESERVED {
            let Some(start) = sys::reserve(CAPACITY_BYTES) else {
                return none;
            };
            START.store(start.expose_provenance(), Ordering::Relaxed);
        }
        let start = START.load(Ordering::Relaxed) + used;
        let start = std::ptr::with_exposed_provenance_mut::<c_void>(start);
        // SAFETY: a part of the reservation that has not been in use.
        if !unsafe { sys::make_usable(start, size) } {
            return none;
        }
        USED_BYTES.store(used + size, Ordering::Relaxed);
        (start.cast(), size, 0)
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        tenure::page_size()
    }
}

/// The global allocator of the Rust code in this library.
struct PrivateAllocator;

// SAFETY: blocks have the requested size and alignment, and each is allocated once.
unsafe impl GlobalAlloc for PrivateAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocate(layout.size(), layout.align())
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the caller frees a live block of this allocator.
        unsafe { free(block) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let new = allocate(new_size, layout.align());
        if !new.is_null() {
            // SAFETY: two live blocks of these sizes; the caller gives the old one up.
            unsafe {
                copy_nonoverlapping(block, new, layout.size().min(new_size));
                free(block);
            }
        }
        new
    }
}

#[cfg(not(test))]
#[global_allocator]
static PRIVATE_ALLOCATOR: PrivateAllocator = PrivateAllocator;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_disjoint_aligned_and_sized() {
        assert!(!owns(std::ptr::null()));
        let mut blocks = Vec::new();
        for (size, align) in [(1, 1), (0, 16), (100, 64), (5000, 4096), (3 << 20, 8)] {
            let block = allocate(size, align);
            assert!(!block.is_null() && owns(block));
            assert!(block.addr().is_multiple_of(align.max(16)));
            // SAFETY: just allocated with this size.
            unsafe {
                block.write_bytes(size as u8, size);
                assert_eq!(size_of_block(block), size);
            }
            blocks.push((block, size));
        }
        for &(block, size) in &blocks {
            // SAFETY: allocated and written above.
            let bytes = unsafe { std::slice::from_raw_parts(block, size) };
            assert!(bytes.iter().all(|byte| *byte == size as u8));
        }
        for (block, _) in blocks {
            // SAFETY: allocated above, and not used afterwards.
            unsafe { free(block) };
        }
        assert!(allocate(CAPACITY_BYTES, 16).is_null());
        assert!(allocate(usize::MAX, 16).is_null());
        assert!(!owns((&raw const OUTSIDE).cast()));
        assert!(!owns(std::ptr::null()));
    }

    static OUTSIDE: u8 = 0;

    #[test]
    fn freed_blocks_are_reused() {
        let most = USED_BYTES.load(Ordering::Relaxed);
        for size in (0..10_000).map(|round| round * 7919 % 100_000) {
            let block = allocate(size, 8);
            assert!(!block.is_null());
            // SAFETY: just allocated, and not used.
            unsafe { free(block) };
        }
        assert!(USED_BYTES.load(Ordering::Relaxed) <= most + (8 << 20));
    }
}
