//! The heap as Rust's global allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;

use crate::{
    allocate, allocate_zeroed, deallocate, deallocate_simple, owns, reallocate, threshold_bytes,
};

/// Serves all requests from the heap; another allocator serves those below the
/// [threshold](crate::HeapOptions::threshold_bytes), and all if the heap is off.
///
/// ```
/// use tenure_heap::Heap;
///
/// #[global_allocator]
/// static ALLOCATOR: Heap = Heap::new();
///
/// let numbers = vec![1_u64; 100];
/// assert!(tenure_heap::owns(numbers.as_ptr().cast()));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap<A = System>(pub A);

impl Heap {
    /// The heap, with the system's allocator behind it.
    #[must_use]
    pub const fn new() -> Self {
        Self(System)
    }
}

// SAFETY: a block of the heap has the layout's size and alignment, is no other block,
// and its address tells it from blocks of `A`.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Heap<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = allocate(layout.size(), layout.align());
        if block.is_null() {
            // SAFETY: the caller keeps `alloc`'s contract, which is the same for `A`.
            return unsafe { self.0.alloc(layout) };
        }
        block
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let block = allocate_zeroed(layout.size(), layout.align());
        if block.is_null() {
            // SAFETY: the caller keeps `alloc_zeroed`'s contract, which is the same for
            // `A`.
            return unsafe { self.0.alloc_zeroed(layout) };
        }
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller frees a live block.
        if unsafe { deallocate_simple(block) } {
            return;
        }
        if owns(block) {
            // SAFETY: `owns` is true, and the caller frees a live block.
            unsafe { deallocate(block) }
        } else {
            // SAFETY: not the heap's, so a block of `A`, with the layout that it was
            // made with.
            unsafe { self.0.dealloc(block, layout) }
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if !owns(block) && new_size < threshold_bytes() {
            // SAFETY: not the heap's, so a block of `A`, with the layout that it was
            // made with.
            return unsafe { self.0.realloc(block, layout, new_size) };
        }
        if owns(block) && layout.align() <= MIN_ALIGN {
            // SAFETY: `owns` is true, and the caller resizes a live block.
            let resized = unsafe { reallocate(block, new_size) };
            if !resized.is_null() {
                return resized;
            }
        }
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { self.copy(block, layout, new_size) }
    }
}

/// [`reallocate()`] keeps alignments up to this one.
const MIN_ALIGN: usize = 16;

impl<A: GlobalAlloc> Heap<A> {
    /// Copies the contents to a new block, and frees the old one.
    ///
    /// # Safety
    ///
    /// The conditions are those of `realloc`.
    #[cold]
    unsafe fn copy(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller ensures that the new size is valid for the layout's
        // alignment; both blocks have as many bytes as are copied, and the old one is
        // freed once.
        unsafe {
            let other = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
            if other.is_null() {
                return ptr::null_mut();
            }
            other.copy_from_nonoverlapping(block, layout.size().min(new_size));
            self.dealloc(block, layout);
            other
        }
    }
}
