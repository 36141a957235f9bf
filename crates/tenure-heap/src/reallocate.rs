//! Making blocks larger and smaller.

use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use crate::allocate::empty;
use crate::blunder::{expect_live, place_of};
use crate::seams::{Parts, bytes};
use crate::slot::{LIVE, Slot, free_in};
use crate::space::{Place, SPACE};
use crate::stats::RESIZED;
use crate::{aging, fork, huge, limits, seams, spare, start, sys};

/// What costs less to be copied than to be moved.
const COPIED_BYTES: usize = 1 << 20;

/// What has grown grows again: the addresses for that cost nothing.
const HEADROOM: usize = 4;

/// Makes a block larger or smaller, where it is or by moving its pages to another
/// place: `realloc(3)`. Returns where it is then.
///
/// Null if neither is to be had, or another allocator should have a block as small:
/// the block is as it was, and the caller allocates another one, copies and frees.
///
/// Aborts as [`deallocate`](crate::deallocate) does.
///
/// # Safety
///
/// `ptr` must have come from this heap, and is not a block any more if another one is
/// returned. A block larger than a page in alignment may lose that.
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
#[must_use = "the block may be elsewhere"]
pub unsafe fn reallocate(ptr: *mut u8, new_size: usize) -> *mut u8 {
    let place = place_of(ptr, "realloc");
    let slot = place.slot();
    expect_live(slot.state.load(Relaxed), ptr, "realloc");
    // A block that shrinks a little below the threshold would be copied for nothing.
    if new_size < start::threshold_bytes() / 2 {
        return ptr::null_mut();
    }
    let page_bytes = SPACE.page_bytes();
    let pages = new_size.div_ceil(page_bytes);
    if pages <= place.class.pitch() / page_bytes {
        in_place(place, slot, pages);
        return ptr;
    }
    elsewhere(place, slot, new_size, pages).unwrap_or(ptr::null_mut())
}

fn in_place(place: Place, slot: &Slot, pages: usize) {
    let before = slot.pages.get();
    let touched = slot.touched.get();
    if pages < before && touched - pages > pages / 8 {
        let rest = (place.address() + bytes(pages), bytes(touched - pages));
        // SAFETY: a part of the block that its user has just given up.
        if unsafe { sys::give_back(rest) }.is_ok() {
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
fn elsewhere(from: Place, slot: &Slot, size: usize, pages: usize) -> Option<*mut u8> {
    let (before, touched) = (slot.pages.get(), slot.touched.get());
    if bytes(touched) < COPIED_BYTES || !seams::has_room() {
        return None;
    }
    let parts = Parts::of(slot)?;
    let at = |place: Place, (from, to): (usize, usize)| {
        (place.address() + bytes(from), bytes(to - from))
    };
    if !parts.iter().all(|part| sys::can_move(at(from, part))) {
        return None;
    }
    limits::make_room(bytes(pages - before));
    let to = place_for(size, pages)?;
    let new = to.slot();
    if new.base_from.get() > 0 {
        seams::make_anew(to);
    }
    // Before anything is moved: the child of a fork must not take it for zeros.
    new.touched.set(touched);
    for (number, part) in parts.iter().enumerate() {
        let target = at(to, part).0;
        // SAFETY: the block and the new place are both in this thread's hands.
        if unsafe { sys::move_pages(at(from, part), target) }.is_err() {
            take_back(from, to, parts.iter().take(number), at(to, part));
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

    // What is left are addresses without memory.
    spare::release(slot);
    slot.set_state(free_in(fork::generation()));
    slot.touched.set(0);
    aging::give_back(from);
    Some(ptr::with_exposed_provenance_mut(to.address()))
}

/// A place without memory, with room for more than is asked for if there is.
fn place_for(size: usize, pages: usize) -> Option<Place> {
    let page_bytes = SPACE.page_bytes();
    [HEADROOM, 1].into_iter().find_map(|factor| {
        let class = SPACE.class_for(size.checked_mul(factor)?)?;
        let class = &SPACE.classes()[class];
        empty(class, page_bytes, pages)
    })
}

/// After the kernel has refused, which it does not after `can_move`: copies back what
/// was moved. The new place is nobody's from now on: whatever the kernel has unmapped
/// of it may be another mapping by now.
#[cold]
fn take_back(
    from: Place,
    to: Place,
    parts: impl Iterator<Item = (usize, usize)>,
    refused: sys::Part,
) {
    for (start, end) in parts {
        let source = ptr::with_exposed_provenance::<u8>(to.address() + bytes(start));
        let target = ptr::with_exposed_provenance_mut::<u8>(from.address() + bytes(start));
        // SAFETY: both places are in this thread's hands, and mapped in these parts.
        unsafe { target.copy_from_nonoverlapping(source, bytes(end - start)) };
    }
    // So that no mapping of another comes to lie there.
    let _ = sys::mend(refused);
    to.slot().pages.set(0);
    to.slot().set_state(LIVE);
}
