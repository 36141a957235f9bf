//! Resizes blocks.

use std::ffi::c_void;
use std::ptr;

use tikv_jemalloc_sys as je;

use crate::allocate::aligned_for_huge_pages;
use crate::{deallocate, decay_thread, huge, late, misuse, moves, pages, start, sys, usable_size};

/// Smaller blocks are cheaper to copy than to move.
const MIN_MOVED_BYTES: usize = 1 << 20;

/// A block that was moved is given addresses to grow by an eighth again.
const GROWTH: usize = 8;

/// Resizes a block, in place, by moving its pages, or by copying: `realloc(3)`. Returns its
/// address.
///
/// Returns null if there is no memory, or if the new size is below half of the
/// [threshold](crate::threshold_bytes): the block is unchanged, and the caller allocates
/// another one, copies and frees.
///
/// # Safety
///
/// - `ptr` must be a block of this heap that is not freed.
/// - If another address is returned, nothing may use `ptr` afterwards.
/// - An alignment greater than 16 may be lost.
///
/// ```
/// let block = tenure_heap::allocate(4 << 20, 8);
/// if !block.is_null() {
///     // SAFETY: a block of 4 MiB; what it is afterwards is used.
///     unsafe {
///         block.write(7);
///         let larger = tenure_heap::reallocate(block, 400 << 20);
///         let block = if larger.is_null() { block } else { larger };
///         assert_eq!(block.read(), 7);
///         tenure_heap::deallocate(block);
///     }
/// }
/// ```
#[inline]
#[must_use = "the block may have moved"]
pub unsafe fn reallocate(ptr: *mut u8, new_size: usize) -> *mut u8 {
    let is_simple = !misuse::may_be_large(ptr) && !decay_thread::is_wanted();
    if is_simple && new_size < start::small_limit() {
        // SAFETY: a live block, as the caller ensures, and a size that is not 0.
        let block: *mut u8 = unsafe { je::realloc(ptr.cast(), new_size.max(16)).cast() };
        if misuse::may_be_large(block) {
            // Without memory the block stays where it is.
            misuse::note_allocated(block, new_size);
        }
        return block;
    }
    // SAFETY: the caller's conditions are the same.
    unsafe { reallocate_any(ptr, new_size) }
}

/// # Safety
///
/// The conditions of [`reallocate`] hold.
unsafe fn reallocate_any(ptr: *mut u8, new_size: usize) -> *mut u8 {
    // A block that shrinks to just below the threshold stays, because copying it gains
    // little.
    if new_size < start::threshold_bytes() / 2 || new_size > isize::MAX as usize {
        return ptr::null_mut();
    }
    misuse::expect_live(ptr, "realloc");
    let new_size = new_size.max(16);
    decay_thread::ensure_running(|| true);
    if new_size >= MIN_MOVED_BYTES {
        // SAFETY: the caller's conditions are the same.
        return unsafe { resize_large(ptr, new_size) };
    }
    if new_size >= late::MIN_COUNTED_BYTES {
        late::note_allocation(new_size);
    }
    misuse::note_freed(ptr);
    // SAFETY: a live block, as the caller ensures, and a size that is not 0.
    let block: *mut u8 = unsafe { je::realloc(ptr.cast(), new_size).cast() };
    misuse::note_allocated(if block.is_null() { ptr } else { block }, new_size);
    block
}

/// # Safety
///
/// The conditions of [`reallocate`] hold.
#[cold]
unsafe fn resize_large(ptr: *mut u8, new_size: usize) -> *mut u8 {
    let block: *mut c_void = ptr.cast();
    // SAFETY: a live block, as the caller ensures; so also below.
    let old_size = unsafe { usable_size(ptr) };
    // SAFETY: as above; a size that is not 0.
    let usable = unsafe { je::xallocx(block, new_size, 0, 0) };
    let is_in_place = usable >= new_size && usable / 2 <= new_size;
    if is_in_place {
        huge::advise(ptr.expose_provenance(), usable);
        return ptr;
    }
    if new_size > old_size && old_size >= MIN_MOVED_BYTES {
        // SAFETY: as above.
        let moved = unsafe { move_pages(ptr, old_size, new_size) };
        if !moved.is_null() {
            return moved;
        }
    }
    let other = aligned_for_huge_pages(new_size, 16);
    if other.is_null() {
        return other;
    }
    huge::advise(other.expose_provenance(), new_size);
    // SAFETY: two live blocks of at least this size; the old one is given up.
    unsafe {
        other.copy_from_nonoverlapping(ptr, old_size.min(new_size));
        deallocate(ptr);
    }
    other
}

/// Moves a block's pages to a new one. Returns null if the kernel cannot.
///
/// # Safety
///
/// `ptr` must be a live block with so many usable bytes.
unsafe fn move_pages(ptr: *mut u8, old_size: usize, new_size: usize) -> *mut u8 {
    let from = ptr.expose_provenance();
    let has_whole_pages = |number: usize| number.is_multiple_of(sys::page_bytes());
    if !has_whole_pages(from) || !has_whole_pages(old_size) {
        return ptr::null_mut();
    }
    if !moves::has_capacity() || !moves::may_try() {
        return ptr::null_mut();
    }
    let Some(parts) = Parts::of((from, old_size)) else {
        return ptr::null_mut();
    };
    let larger = new_size.saturating_add(new_size / GROWTH);
    let mut target = aligned_for_huge_pages(larger, sys::page_bytes());
    if target.is_null() {
        target = aligned_for_huge_pages(new_size, sys::page_bytes());
    }
    if target.is_null() {
        return target;
    }
    let to = target.expose_provenance();
    for (offset, bytes) in parts.iter() {
        // SAFETY: the block is the caller's, and the target was allocated above.
        if unsafe { sys::move_pages((from + offset, bytes), to + offset) }.is_err() {
            // There are too many mappings. The target is never used again: the kernel may
            // have unmapped it, and another mapping may lie there.
            moves::record_refusal();
            // SAFETY: what precedes the part was moved to the target, and the block has its
            // addresses.
            unsafe {
                ptr.copy_from_nonoverlapping(target, offset);
                // If the kernel refuses, the memory stays in use.
                let _ = sys::discard((to, offset));
            }
            let _ = sys::map_hole((to + offset, bytes));
            return ptr::null_mut();
        }
    }
    moves::record(to);
    // SAFETY: a live block, allocated above.
    huge::advise(to, unsafe { usable_size(target) });
    // Advice of the program's, as MADV_WIPEONFORK, has moved with the pages, but stays at the
    // old addresses as well: other blocks come to lie there.
    // SAFETY: the old block is given up. Its pages are gone, its addresses are not.
    unsafe {
        pages::remap((from, old_size));
        deallocate(ptr);
    }
    target
}

/// The parts of a block that are one mapping each, as offsets and lengths.
struct Parts {
    parts: [(usize, usize); Self::MAX],
    count: usize,
}

impl Parts {
    /// A block that has grown by being moved, with huge pages and others, has a few.
    const MAX: usize = 16;

    /// Returns `None` if there are too many, or the block cannot be moved.
    fn of((at, bytes): sys::Part) -> Option<Self> {
        let mut parts = Self {
            parts: [(0, 0); Self::MAX],
            count: 0,
        };
        let mut offset = 0;
        while offset < bytes {
            let rest = (at + offset, bytes - offset);
            let part = sys::bytes_of_mapping(rest);
            if part == 0 || parts.count == Self::MAX || !sys::can_move((rest.0, part)) {
                return None;
            }
            parts.parts[parts.count] = (offset, part);
            parts.count += 1;
            offset += part;
        }
        Some(parts)
    }

    fn iter(&self) -> impl Iterator<Item = (usize, usize)> {
        self.parts[..self.count].iter().copied()
    }
}
