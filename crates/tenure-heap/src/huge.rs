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
use crate::sys;

/// Places that are cut, at most: a process may have 65,530 mappings by default.
const MOST_CUT: usize = 8 << 10;

static CUT: AtomicUsize = AtomicUsize::new(0);

static WANTED: AtomicBool = AtomicBool::new(false);

/// Whether the kernel puts huge pages also where nobody asks for them.
static ANYWHERE: AtomicBool = AtomicBool::new(false);

/// Does as the options say.
pub(crate) fn start(options: &HeapOptions) {
    // Where pages are larger, huge ones are too large for the blocks there are.
    let is_usual = sys::page_bytes() == 4 << 10;
    WANTED.store(options.huge_pages && is_usual, Relaxed);
    ANYWHERE.store(sys::puts_huge_pages_anywhere(), Relaxed);
}

/// Whether blocks are to have huge pages.
fn are_wanted() -> bool {
    WANTED.load(Relaxed)
}

/// Says of a part of a class's places, which no block is in, whether huge pages are
/// wanted there. Small blocks must have none: a huge page would be several blocks.
pub(crate) fn choose(class: &Class, part: sys::Part) {
    let wanted = class.is_huge() && are_wanted();
    if wanted || ANYWHERE.load(Relaxed) {
        // SAFETY: the caller says what it is. If it is refused, there are no huge pages
        // at all.
        let _ = unsafe { sys::want_huge_pages(part, wanted) };
    }
}

/// Sees to it that the place has huge pages where the block fills them.
///
/// One that is zeros without having been written may be an array that little is put
/// into, here and there: a huge page for each would be 512 times the memory, and the
/// time to clear it. It has none, unless the kernel puts them everywhere.
#[inline]
pub(crate) fn fit(place: Place, slot: &Slot, pages: usize, is_unwritten: bool) {
    if !place.class.is_huge() || !are_wanted() {
        return;
    }
    // Most places stay as they are: the cut is the same for all usual blocks.
    let bytes = pages * SPACE.page_bytes();
    let cut = if is_unwritten && !ANYWHERE.load(Relaxed) {
        1
    } else if bytes > bytes_of(place.class.number() - 1) {
        place.class.usual_cut()
    } else {
        cut_of(bytes, SPACE.page_bytes())
    };
    if slot.base_from.get() != cut {
        set(place, slot, cut);
    }
}

/// Where base pages begin in the usual blocks of a class.
pub(crate) fn usual_cut(number: usize, page_bytes: usize) -> usize {
    cut_of(bytes_of(number), page_bytes)
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
    choose(place.class, (place.address(), place.class.pitch()));
}

/// One more than the page from which a block has base pages; 0 if it has none.
fn cut_of(bytes: usize, page_bytes: usize) -> usize {
    let wasted = bytes.next_multiple_of(HUGE_BYTES) - bytes;
    if wasted > bytes / 8 {
        bytes / HUGE_BYTES * HUGE_BYTES / page_bytes + 1
    } else {
        0
    }
}

#[cold]
fn set(place: Place, slot: &Slot, cut: usize) {
    let before = slot.base_from.get();
    if before == 0 && CUT.load(Relaxed) >= MOST_CUT {
        return;
    }
    let pitch = place.class.pitch();
    let bytes = |cut: usize| {
        cut.checked_sub(1)
            .map_or(pitch, |pages| pages * SPACE.page_bytes())
    };
    let (old, new) = (bytes(before), bytes(cut));
    let part = (place.address() + old.min(new), old.abs_diff(new));
    // SAFETY: a part of the place, which is in this thread's hands.
    if unsafe { sys::want_huge_pages(part, new > old) }.is_err() {
        return;
    }
    match (before, cut) {
        (0, _) => CUT.fetch_add(1, Relaxed),
        (_, 0) => CUT.fetch_sub(1, Relaxed),
        _ => 0,
    };
    slot.base_from.set(cut);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classes::class_of;

    #[test]
    fn base_pages_where_a_huge_one_would_be_mostly_empty() {
        const MIB: usize = 1 << 20;
        let from = |bytes: usize| usual_cut(class_of(bytes), 4096).checked_sub(1);
        assert_eq!(from(2 * MIB), None);
        assert_eq!(from(2 * MIB - 1), None);
        assert_eq!(from(2 * MIB + 1), Some(512));
        assert_eq!(from(3 * MIB), Some(512));
        assert_eq!(from(4 * MIB), None);
        assert_eq!(from(5 * MIB), Some(1024));
        assert_eq!(from(9 * MIB), None, "a seventh more fills the tenth");
        assert_eq!(from(100 * MIB + 1), None);
        assert_eq!(cut_of(300 << 10, 4096), 1, "none at all");
    }

    #[test]
    fn the_cut_is_the_same_for_all_blocks_of_a_class() {
        for number in class_of(HUGE_BYTES) + 1..class_of(1 << 30) {
            let (least, most) = (bytes_of(number - 1) + 1, bytes_of(number));
            let (least, most) = (cut_of(least, 4096), cut_of(most, 4096));
            assert!(least == most || most == 0, "class {number}");
        }
    }
}
