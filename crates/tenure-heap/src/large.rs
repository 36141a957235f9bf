//! The heap as Rust's global allocator.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

use crate::{allocate, allocate_zeroed, deallocate, owns, reallocate, threshold_bytes};

/// Serves large requests from the heap, and all others from another allocator.
///
/// ```
/// use std::alloc::System;
/// use tenure_heap::Large;
///
/// #[global_allocator]
/// static ALLOCATOR: Large<System> = Large(System);
///
/// let mut numbers = vec![0_u64; 1 << 20];
/// numbers[0] = 1;
/// assert!(tenure_heap::owns(numbers.as_ptr().cast()) || tenure_heap::threshold_bytes() == usize::MAX);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Large<A>(pub A);

// SAFETY: a block of the heap has the layout's size and alignment, is no other block,
// and its address tells it from blocks of `A`.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Large<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = if is_large(layout.size()) {
            allocate(layout.size(), layout.align())
        } else {
            ptr::null_mut()
        };
        if block.is_null() {
            // SAFETY: the caller keeps `alloc`'s contract, which is the same for `A`.
            return unsafe { self.0.alloc(layout) };
        }
        block
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let block = if is_large(layout.size()) {
            allocate_zeroed(layout.size(), layout.align())
        } else {
            ptr::null_mut()
        };
        if block.is_null() {
            // SAFETY: the caller keeps `alloc_zeroed`'s contract, which is the same for
            // `A`.
            return unsafe { self.0.alloc_zeroed(layout) };
        }
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if owns(block) {
            // SAFETY: `owns` is true, and the caller frees a live block.
            unsafe { deallocate(block) }
        } else {
            // SAFETY: not the heap's, so a block of `A`, with the layout that it was
            // made with.
            unsafe { self.0.dealloc(block, layout) }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let is_ours = owns(block);
        if is_ours && layout.align() <= crate::sys::page_bytes() {
            // SAFETY: `owns` is true, and the caller resizes a live block.
            let resized = unsafe { reallocate(block, new_size) };
            if !resized.is_null() {
                return resized;
            }
        } else if !is_ours && (is_large(layout.size()) || !is_large(new_size)) {
            // SAFETY: not the heap's, so a block of `A`, with the layout that it was
            // made with.
            return unsafe { self.0.realloc(block, layout, new_size) };
        }
        // SAFETY: the caller ensures that the new size is valid for the layout's
        // alignment; both blocks have as many bytes as are copied, and the old one is
        // freed once.
        unsafe {
            let other = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
            if !other.is_null() {
                other.copy_from_nonoverlapping(block, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
            other
        }
    }
}

#[inline]
fn is_large(size: usize) -> bool {
    size >= threshold_bytes()
}
