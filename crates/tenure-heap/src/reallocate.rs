//! Resizes blocks.

use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use crate::allocate::take_empty_place;
use crate::misuse::{expect_live, place_of};
use crate::slot::{LIVE, Slot, free_in};
use crate::space::{Place, SPACE};
use crate::stats::RESIZED;
use crate::vma_splits::{Parts, bytes};
use crate::{decay, fork, huge, limits, slack, start, sys, vma_splits};

/// Smaller blocks are cheaper to copy than to move.
const MIN_MOVED_BYTES: usize = 1 << 20;

/// A block that has grown is given addresses to grow again, which cost nothing.
const GROWTH_FACTOR: usize = 4;

/// Resizes a block, in place or by moving its pages to another place: `realloc(3)`.
/// Returns its address.
///
/// Returns null if neither is possible, or if the new size is below half of the
/// threshold: the block is unchanged, and the caller allocates another one, copies and
/// frees.
///
/// The call aborts as [`deallocate`](crate::deallocate) does.
///
/// # Safety
///
/// - `ptr` must have come from this heap and must not have been freed.
/// - If another address is returned, nothing may use `ptr` afterwards.
/// - An alignment greater than a page may be lost.
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
#[must_use = "the block may have moved"]
pub unsafe fn reallocate(ptr: *mut u8, new_size: usize) -> *mut u8 {
    let place = place_of(ptr, "realloc");
    let slot = place.slot();
    expect_live(slot.state.load(Relaxed), ptr, "realloc");
    // A block that shrinks to just below the threshold stays, because copying it gains
    // little.
    if new_size < start::threshold_bytes() / 2 {
        return ptr::null_mut();
    }
    let page_bytes = SPACE.page_bytes();
    let pages = new_size.div_ceil(page_bytes);
    if pages <= place.class.pitch() / page_bytes {
        in_place(place, slot, pages);
        return ptr;
    }
    relocate(place, slot, new_size, pages).unwrap_or(ptr::null_mut())
}

fn in_place(place: Place, slot: &Slot, pages: usize) {
    let before = slot.pages.get();
    let touched = slot.touched.get();
    if pages < before && touched - pages > pages / 8 {
        let rest = (place.address() + bytes(pages), bytes(touched - pages));
        // SAFETY: a part of the block that its user has just given up.
        if unsafe { sys::discard(rest) }.is_ok() {
            slot.touched.set(pages);
        }
    }
    if pages > before {
        slot.touched.set(slot.touched.get().max(pages));
    }
    slot.pages.set(pages);
    RESIZED.in_place.fetch_add(1, Relaxed);
    RESIZED
        .bytes
        .fetch_add(bytes(pages).wrapping_sub(bytes(before)), Relaxed);
}

/// Moves the block to a place that is large enough.
#[cold]
fn relocate(from: Place, slot: &Slot, size: usize, pages: usize) -> Option<*mut u8> {
    fork::generation();
    let (before, touched) = (slot.pages.get(), slot.touched.get());
    if bytes(touched) < MIN_MOVED_BYTES || !vma_splits::has_capacity() {
        return None;
    }
    let parts = Parts::of(slot)?;
    let at = |place: Place, (from, to): (usize, usize)| {
        (place.address() + bytes(from), bytes(to - from))
    };
    if !parts.iter().all(|part| sys::can_move(at(from, part))) {
        return None;
    }
    limits::reserve_headroom(bytes(pages - before));
    let to = place_for(size, pages)?;
    let new = to.slot();
    if new.base_from.get() > 0 {
        vma_splits::remap(to);
    }
    // Set before anything is moved: the child of a fork must not take the place for
    // zeros.
    new.touched.set(touched);
    for (number, part) in parts.iter().enumerate() {
        let target = at(to, part).0;
        // SAFETY: this thread owns the block and has claimed the new place.
        if unsafe { sys::move_pages(at(from, part), target) }.is_err() {
            move_back(from, to, parts.iter().take(number), at(to, part));
            return None;
        }
    }
    parts.note(new);
    if to.class.is_huge() {
        huge::want(to, touched);
    }
    new.pages.set(pages);
    new.touched.set(touched.max(pages));
    new.set_state(LIVE);
    RESIZED.moved.fetch_add(1, Relaxed);
    RESIZED.bytes.fetch_sub(bytes(before), Relaxed);

    // The old place has addresses but no memory.
    slack::remove(slot);
    slot.set_state(free_in(fork::generation()));
    slot.touched.set(0);
    decay::return_to_kernel(from);
    Some(ptr::with_exposed_provenance_mut(to.address()))
}

/// Takes a place without memory, with addresses for further growth if possible.
fn place_for(size: usize, pages: usize) -> Option<Place> {
    let page_bytes = SPACE.page_bytes();
    [GROWTH_FACTOR, 1].into_iter().find_map(|factor| {
        let class = SPACE.class_for(size.checked_mul(factor)?)?;
        let class = &SPACE.classes()[class];
        take_empty_place(class, page_bytes, pages)
    })
}

/// Copies the moved parts back after a failed move, which does not happen after
/// `can_move`. The new place is never used again: another mapping may lie where the
/// kernel has unmapped it.
#[cold]
fn move_back(
    from: Place,
    to: Place,
    parts: impl Iterator<Item = (usize, usize)>,
    refused: sys::Part,
) {
    for (start, end) in parts {
        let source = ptr::with_exposed_provenance::<u8>(to.address() + bytes(start));
        let target = ptr::with_exposed_provenance_mut::<u8>(from.address() + bytes(start));
        // SAFETY: this thread has claimed both places, and these parts of both are
        // mapped.
        unsafe { target.copy_from_nonoverlapping(source, bytes(end - start)) };
    }
    // Mapped, so that no mapping of the program comes to lie there.
    let _ = sys::map_hole(refused);
    to.slot().pages.set(0);
    to.slot().set_state(LIVE);
}
