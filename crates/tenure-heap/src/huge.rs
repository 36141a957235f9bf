//! Where a block has huge pages: in the part that it fills.
//!
//! From 2 MiB on whole ranges ask for them. A block whose last huge page it would
//! use only a little of has base pages there: its place is cut, and the kernel keeps
//! two mappings for it. Their number is limited.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use crate::class::Class;
use crate::classes::{HUGE_BYTES, bytes_of};
use crate::options::HeapOptions;
use crate::slot::Slot;
use crate::space::{Place, SPACE};
use crate::{seams, sys};

/// Places that are cut, at most: a process may have 65,530 mappings by default.
const MOST_CUT: usize = 8 << 10;

static CUT: AtomicUsize = AtomicUsize::new(0);

static WANTED: AtomicBool = AtomicBool::new(false);

/// Does as the options say.
pub(crate) fn start(options: &HeapOptions) {
    // Where pages are larger, huge ones are too large for the blocks there are.
    let is_usual = sys::page_bytes() == 4 << 10;
    WANTED.store(options.huge_pages && is_usual, Relaxed);
}

/// Whether blocks are to have huge pages.
pub(crate) fn are_wanted() -> bool {
    WANTED.load(Relaxed)
}

/// Sees to it that the place has huge pages where the block fills them.
#[inline]
pub(crate) fn fit(place: Place, slot: &Slot, pages: usize) {
    if place.class.is_huge() && are_wanted() {
        set(
            place,
            slot,
            base_pages_from(place.class, pages * SPACE.page_bytes()),
        );
    }
}

/// Has huge pages behind where base pages began, for a block that grows past that.
/// What was filled separately stays two mappings.
pub(crate) fn grow(place: Place, slot: &Slot, pages: usize) {
    let Some(cut) = slot.base_from.get().checked_sub(1) else {
        return;
    };
    if pages >= cut + HUGE_BYTES / SPACE.page_bytes() && seams::add(slot, cut) {
        set(place, slot, None);
    }
}

/// Has huge pages in what was moved to the place from one that had none.
pub(crate) fn want(place: Place, pages: usize) {
    if are_wanted() {
        let part = (place.address(), pages * SPACE.page_bytes());
        // SAFETY: a part of the place, which is in this thread's hands. Without them
        // it is slower.
        let _ = unsafe { sys::want_huge_pages(part, true) };
    }
}

/// Has the place, which was mapped anew, be like its neighbours.
pub(crate) fn made_anew(place: Place, slot: &Slot) {
    if slot.base_from.get() > 0 {
        slot.base_from.set(0);
        CUT.fetch_sub(1, Relaxed);
    }
    place
        .class
        .choose_pages((place.address(), place.class.pitch()));
}

/// Where base pages begin, in bytes, if they do. For all usual blocks of a class it is
/// the same, so that their places stay as they are.
fn base_pages_from(class: &Class, bytes: usize) -> Option<usize> {
    let number = class.number();
    let is_usual = number > 0 && bytes > bytes_of(number - 1);
    let bytes = if is_usual { bytes_of(number) } else { bytes };
    let filled = bytes / HUGE_BYTES * HUGE_BYTES;
    let wasted = bytes.next_multiple_of(HUGE_BYTES) - bytes;
    (wasted > bytes / 8).then_some(filled)
}

fn set(place: Place, slot: &Slot, wanted: Option<usize>) {
    let page_bytes = SPACE.page_bytes();
    let pitch = place.class.pitch();
    // The number that is kept is one more: 0 is none.
    let has = slot
        .base_from
        .get()
        .checked_sub(1)
        .map(|pages| pages * page_bytes);
    if has == wanted {
        return;
    }
    if has.is_none() && CUT.load(Relaxed) >= MOST_CUT {
        return;
    }
    let (old, new) = (has.unwrap_or(pitch), wanted.unwrap_or(pitch));
    let part = (place.address() + old.min(new), old.abs_diff(new));
    // SAFETY: a part of the place, which is in this thread's hands.
    if unsafe { sys::want_huge_pages(part, new > old) }.is_err() {
        return;
    }
    match (has, wanted) {
        (None, _) => CUT.fetch_add(1, Relaxed),
        (_, None) => CUT.fetch_sub(1, Relaxed),
        _ => 0,
    };
    slot.base_from
        .set(wanted.map_or(0, |bytes| bytes / page_bytes + 1));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classes::class_of;

    #[test]
    fn base_pages_where_a_huge_one_would_be_mostly_empty() {
        let class = |bytes: usize| {
            let class = Box::leak(Box::new(Class::new()));
            class.lay_out(class_of(bytes), 0, 1 << 33, 4096);
            base_pages_from(class, bytes)
        };
        const MIB: usize = 1 << 20;
        assert_eq!(class(2 * MIB), None);
        assert_eq!(class(2 * MIB - 1), None);
        assert_eq!(class(2 * MIB + 1), Some(2 * MIB));
        assert_eq!(class(3 * MIB), Some(2 * MIB));
        assert_eq!(class(4 * MIB), None);
        assert_eq!(class(9 * MIB), None, "a seventh more fills the tenth");
        assert_eq!(class(100 * MIB + 1), None);
    }
}
