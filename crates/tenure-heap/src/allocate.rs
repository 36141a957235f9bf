//! Taking blocks and freeing them.

use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::blunder::{expect_live, place_of};
use crate::class::Class;
use crate::slot::{LIVE, free_in};
use crate::space::{PLACES_AT, Place, SPACE};
use crate::{classes, fork, huge, limits, shard, spare, start, sys};

/// Larger blocks that must be zeros are new ones: a program that asks for them may
/// touch little of them.
const CLEARED_BYTES: usize = 2 << 20;

/// How many classes further up a place is looked for where a range is full, or for one
/// that is aligned.
const CLASSES_UP: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Contents {
    Any,
    Zeros,
}

/// Allocates a block of `size` bytes on a multiple of `align`, which is a power of
/// two: `malloc(3)`. What it holds is undefined.
///
/// Null if the heap does not serve it: it is smaller than
/// [`threshold_bytes`](crate::threshold_bytes), larger or more aligned than any
/// range has places for, there is no room, or the heap is off. The caller then goes
/// to another allocator. The first call reserves the heap's addresses.
///
/// Never allocates elsewhere, and calls nothing that may be replaced.
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
    serve(size, align, Contents::Any)
}

/// Allocates a block of zeros: `calloc(3)`. What is known to be zeros is not cleared.
///
/// As [`allocate`] otherwise.
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
    serve(size, align, Contents::Zeros)
}

/// Whether the address lies in the heap: in a block, or where there might be one.
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
    SPACE.owns(ptr.addr())
}

/// Frees a block: `free(3)`. It is kept warm for whoever asks for such a block next,
/// and the memory is given back when nobody does.
///
/// Takes the same time for all sizes. Aborts, with a line on standard error, if no
/// block begins there or it has been freed already.
///
/// # Safety
///
/// `ptr` must have come from this heap, [owned](owns) by it, and nothing may use the
/// block any more.
#[inline]
pub unsafe fn deallocate(ptr: *mut u8) {
    let place = place_of(ptr, "free");
    let slot = place.slot();
    let state = slot.state.swap(free_in(fork::generation()), AcqRel);
    expect_live(state, ptr, "free");
    spare::release(slot);
    if shard::put(place, slot) {
        limits::keep();
    }
}

/// How many bytes of a block may be used: as many as asked for, rounded up to whole
/// pages. `malloc_usable_size(3)`.
///
/// Aborts as [`deallocate`] does.
///
/// # Safety
///
/// As for [`deallocate`], but the block may be used.
#[must_use]
pub unsafe fn usable_size(ptr: *mut u8) -> usize {
    let place = place_of(ptr, "the size");
    let slot = place.slot();
    expect_live(slot.state.load(Relaxed), ptr, "the size");
    slot.pages.get() * SPACE.page_bytes()
}

#[inline]
fn serve(size: usize, align: usize, contents: Contents) -> *mut u8 {
    if size < start::threshold_bytes() || !start::is_ready() {
        return ptr::null_mut();
    }
    let Some(class) = class_for(size, align) else {
        return ptr::null_mut();
    };
    let pages = size.div_ceil(SPACE.page_bytes());
    let warm = || shard::take(class, largest_for(class, align), pages);
    let place = if contents == Contents::Zeros && size > CLEARED_BYTES {
        fresh(class, align, pages).or_else(warm)
    } else {
        warm().or_else(|| fetch(class, align, pages))
    };
    place.map_or(ptr::null_mut(), |place| {
        hand_out(place, size, pages, contents)
    })
}

/// The largest class whose warm blocks may serve requests of this one.
#[inline]
fn largest_for(class: &Class, align: usize) -> usize {
    let number = class.number();
    if align <= SPACE.page_bytes() && spare::is_allowed() {
        number.max(classes::LAST_SMALL)
    } else {
        number
    }
}

/// The class for blocks of such a size whose places are aligned as wanted.
#[inline]
fn class_for(size: usize, align: usize) -> Option<&'static Class> {
    let page_bytes = SPACE.page_bytes();
    if align <= page_bytes {
        return SPACE.classes().get(classes::class_of(size));
    }
    let first = SPACE.class_for(size.max(align))?;
    let mut classes = SPACE.classes()[first..].iter().take(CLASSES_UP);
    classes.find(|class| is_aligned(class, align))
}

/// Whether all places of the class are aligned as wanted.
fn is_aligned(class: &Class, align: usize) -> bool {
    align <= PLACES_AT && class.pitch().is_multiple_of(align)
}

/// Takes a place that is not warm.
#[cold]
fn fetch(class: &'static Class, align: usize, pages: usize) -> Option<Place> {
    if !class.lazy.is_empty()
        && let Some(held) = class.lock.lock_soon()
        && let Some(index) = class.take_lazy(&held, pages * SPACE.page_bytes())
    {
        return Some(Place { class, index });
    }
    fresh(class, align, pages)
}

/// Takes a place without memory, for contents that are new.
#[cold]
fn fresh(class: &'static Class, align: usize, pages: usize) -> Option<Place> {
    limits::make_room(pages * SPACE.page_bytes());
    empty(class, align, pages)
}

/// Takes a place without memory, of a class further up if need be.
pub(crate) fn empty(class: &'static Class, align: usize, pages: usize) -> Option<Place> {
    let mut classes = SPACE.classes()[class.number()..].iter().take(CLASSES_UP);
    classes.find_map(|class| {
        if !is_aligned(class, align) {
            return None;
        }
        let held = class.lock.lock_soon()?;
        let index = class.take_empty(&held, pages * SPACE.page_bytes())?;
        Some(Place { class, index })
    })
}

/// Makes a place that is in this thread's hands a block.
#[inline]
fn hand_out(place: Place, size: usize, pages: usize, contents: Contents) -> *mut u8 {
    let slot = place.slot();
    let at: *mut u8 = ptr::with_exposed_provenance_mut(place.address());
    let mut touched = slot.touched.get();
    let rest = touched.saturating_sub(pages);
    let is_too_much = rest > pages / 8 && (place.class.is_huge() || !spare::keep(slot, rest));
    if is_too_much {
        touched = cut_off(place, touched, pages);
    }
    if contents == Contents::Zeros && touched > 0 {
        touched = clear(place, touched, size);
    }
    let is_unwritten = contents == Contents::Zeros && touched == 0;
    huge::fit(place, slot, pages, is_unwritten);
    slot.pages.set(pages);
    slot.touched.set(touched.max(pages));
    slot.set_state(LIVE);
    at
}

/// Gives up what is touched behind the block. Returns how many pages are touched.
#[cold]
fn cut_off(place: Place, touched: usize, pages: usize) -> usize {
    let bytes = |pages: usize| pages * SPACE.page_bytes();
    let rest = (place.address() + bytes(pages), bytes(touched - pages));
    // SAFETY: a part of a place that is in this thread's hands.
    match unsafe { sys::give_back(rest) } {
        Ok(()) => pages,
        Err(_) => touched,
    }
}

/// Clears the block. Returns how many pages are touched.
#[cold]
fn clear(place: Place, touched: usize, size: usize) -> usize {
    let bytes = touched * SPACE.page_bytes();
    if size > CLEARED_BYTES {
        // SAFETY: a part of a place that is in this thread's hands.
        if unsafe { sys::give_back((place.address(), bytes)) }.is_ok() {
            return 0;
        }
    }
    let at: *mut u8 = ptr::with_exposed_provenance_mut(place.address());
    // SAFETY: the place is in this thread's hands and has as many bytes.
    unsafe { at.write_bytes(0, size.min(bytes)) };
    touched
}
