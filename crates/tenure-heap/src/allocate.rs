//! Allocates and frees blocks.

use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::class::Class;
use crate::misuse::{expect_live, place_of};
use crate::slot::{LIVE, free_in};
use crate::space::{PLACES_AT, Place, SPACE};
use crate::{classes, fork, huge, limits, shard, slack, start, sys};

/// Zeroed blocks larger than this take a new place: a program that asks for one may
/// touch little of it.
const MAX_CLEARED_BYTES: usize = 2 << 20;

/// How many larger classes are searched when a class is full, or when the places of a
/// class are not aligned.
const CLASSES_UP: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Contents {
    Any,
    Zeros,
}

/// Allocates a block of `size` bytes on a multiple of `align`, which is a power of two:
/// `malloc(3)`. Its contents are undefined.
///
/// Returns null if the heap does not serve the request: `size` is below
/// [`threshold_bytes`](crate::threshold_bytes), `size` or `align` exceeds every class,
/// all places are in use, or the heap is off. The caller then asks another allocator.
/// The first call reserves the heap's addresses.
///
/// The call never allocates from another allocator, and calls no function that a
/// program may have replaced.
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
    serve(size, align, Contents::Zeros)
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
    SPACE.owns(ptr.addr())
}

/// Frees a block: `free(3)`. The block stays dirty for the next request of its size; if
/// there is none, its memory decays and is returned to the kernel.
///
/// The call takes the same time for all sizes. It aborts, with a line on standard
/// error, if no block begins at `ptr` or the block has been freed already.
///
/// # Safety
///
/// - `ptr` must have come from this heap ([`owns`] is true for it).
/// - Nothing may use the block afterwards.
#[inline]
pub unsafe fn deallocate(ptr: *mut u8) {
    let place = place_of(ptr, "free");
    let slot = place.slot();
    let state = slot.state.swap(free_in(fork::generation()), AcqRel);
    expect_live(state, ptr, "free");
    slack::remove(slot);
    if shard::put(place, slot) {
        limits::enforce();
    }
}

/// Returns how many bytes of a block may be used, which is the requested size rounded
/// up to whole pages: `malloc_usable_size(3)`.
///
/// The call aborts as [`deallocate`] does.
///
/// # Safety
///
/// `ptr` must have come from this heap and must not have been freed.
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
    fork::generation();
    let pages = size.div_ceil(SPACE.page_bytes());
    let dirty = || shard::take(class, largest_for(class, align), pages);
    let place = if contents == Contents::Zeros && size > MAX_CLEARED_BYTES {
        take_within_headroom(class, align, pages).or_else(dirty)
    } else {
        dirty().or_else(|| take_not_dirty(class, align, pages))
    };
    place.map_or(ptr::null_mut(), |place| {
        make_live(place, size, pages, contents)
    })
}

/// Returns the largest class whose dirty blocks may serve requests of this one.
#[inline]
fn largest_for(class: &Class, align: usize) -> usize {
    let number = class.number();
    if align <= SPACE.page_bytes() && slack::is_allowed() {
        number.max(classes::LAST_SMALL)
    } else {
        number
    }
}

/// Returns the smallest class for `size` whose places are multiples of `align`.
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

/// Returns whether all places of the class are multiples of `align`.
fn is_aligned(class: &Class, align: usize) -> bool {
    align <= PLACES_AT && class.pitch().is_multiple_of(align)
}

/// Takes a muzzy place, or one without memory.
#[cold]
fn take_not_dirty(class: &'static Class, align: usize, pages: usize) -> Option<Place> {
    if !class.muzzy.is_empty()
        && let Some(held) = class.lock.lock_timeout()
        && let Some(index) = class.take_muzzy(&held, pages * SPACE.page_bytes())
    {
        return Some(Place { class, index });
    }
    take_within_headroom(class, align, pages)
}

/// Takes a place without memory, after reserving headroom for the pages that it will
/// need.
#[cold]
fn take_within_headroom(class: &'static Class, align: usize, pages: usize) -> Option<Place> {
    limits::reserve_headroom(pages * SPACE.page_bytes());
    take_empty_place(class, align, pages)
}

/// Takes a place without memory, of a larger class if this one is full.
pub(crate) fn take_empty_place(class: &'static Class, align: usize, pages: usize) -> Option<Place> {
    let mut classes = SPACE.classes()[class.number()..].iter().take(CLASSES_UP);
    classes.find_map(|class| {
        if !is_aligned(class, align) {
            return None;
        }
        let held = class.lock.lock_timeout()?;
        let index = class.take_empty(&held, pages * SPACE.page_bytes())?;
        Some(Place { class, index })
    })
}

/// Makes a place that this thread has claimed a live block.
#[inline]
fn make_live(place: Place, size: usize, pages: usize, contents: Contents) -> *mut u8 {
    let slot = place.slot();
    let at: *mut u8 = ptr::with_exposed_provenance_mut(place.address());
    let mut touched = slot.touched.get();
    let rest = touched.saturating_sub(pages);
    let is_too_much = rest > pages / 8 && (place.class.is_huge() || !slack::try_add(slot, rest));
    if is_too_much {
        touched = trim(place, touched, pages);
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

/// Discards the touched pages behind the block. Returns how many touched pages are
/// left.
#[cold]
fn trim(place: Place, touched: usize, pages: usize) -> usize {
    let bytes = |pages: usize| pages * SPACE.page_bytes();
    let rest = (place.address() + bytes(pages), bytes(touched - pages));
    // SAFETY: this thread has claimed the place, and the part lies behind the block.
    match unsafe { sys::discard(rest) } {
        Ok(()) => pages,
        Err(_) => touched,
    }
}

/// Clears the block. Returns how many of its pages are touched.
#[cold]
fn clear(place: Place, touched: usize, size: usize) -> usize {
    let bytes = touched * SPACE.page_bytes();
    if size > MAX_CLEARED_BYTES {
        // SAFETY: this thread has claimed the place, whose contents nobody needs.
        if unsafe { sys::discard((place.address(), bytes)) }.is_ok() {
            return 0;
        }
    }
    let at: *mut u8 = ptr::with_exposed_provenance_mut(place.address());
    // SAFETY: this thread has claimed the place, whose touched pages are mapped for
    // writing.
    unsafe { at.write_bytes(0, size.min(bytes)) };
    touched
}
