//! Huge pages, in the part of a place that its block fills.
//!
//! From 2 MiB on whole ranges are MADV_HUGEPAGE. A block that would use only a little
//! of its last huge page has base pages there: its place is cut, and the kernel keeps
//! two mappings for it. Their number is limited.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use crate::class::Class;
use crate::classes::{HUGE_BYTES, bytes_of};
use crate::options::HeapOptions;
use crate::slot::Slot;
use crate::space::{Place, SPACE};
use crate::sys;

/// The most places that are cut: a process may have 65,530 mappings by default.
const MAX_CUT: usize = 8 << 10;

static CUT: AtomicUsize = AtomicUsize::new(0);

static WANTED: AtomicBool = AtomicBool::new(false);

/// Whether the kernel uses huge pages without MADV_HUGEPAGE.
static ALWAYS: AtomicBool = AtomicBool::new(false);

/// Applies the options.
pub(crate) fn start(options: &HeapOptions) {
    // With larger base pages, huge pages are too large for the blocks.
    let is_usual = sys::page_bytes() == 4 << 10;
    WANTED.store(options.huge_pages && is_usual, Relaxed);
    ALWAYS.store(sys::huge_pages_are_always(), Relaxed);
}

/// Returns whether blocks are to have huge pages.
fn are_wanted() -> bool {
    WANTED.load(Relaxed)
}

/// Advises the kernel whether to use huge pages in a part of a class without blocks.
/// Small blocks must have none: one huge page would hold several blocks.
pub(crate) fn choose(class: &Class, part: sys::Part) {
    let wanted = class.is_huge() && are_wanted();
    if wanted || ALWAYS.load(Relaxed) {
        // SAFETY: the caller passes addresses of the reservation. If the kernel
        // refuses, it has no huge pages at all.
        let _ = unsafe { sys::advise_huge_pages(part, wanted) };
    }
}

/// Advises huge pages for the part of the place that the block fills.
///
/// A zeroed block that is not written may be a sparse array: a huge page for each
/// touched page would take 512 times the memory, and the time to clear it. Such a block
/// has none, unless the kernel uses them everywhere.
#[inline]
pub(crate) fn fit(place: Place, slot: &Slot, pages: usize, is_unwritten: bool) {
    if !place.class.is_huge() || !are_wanted() {
        return;
    }
    // Most places stay as they are: all usual blocks of a class have the same cut.
    let bytes = pages * SPACE.page_bytes();
    let cut = if is_unwritten && !ALWAYS.load(Relaxed) {
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

/// Returns the cut of the usual blocks of a class.
pub(crate) fn usual_cut(number: usize, page_bytes: usize) -> usize {
    cut_of(bytes_of(number), page_bytes)
}

/// Advises huge pages for pages that were moved here from a place without them.
pub(crate) fn want(place: Place, pages: usize) {
    if are_wanted() {
        let part = (place.address(), pages * SPACE.page_bytes());
        // SAFETY: a part of a place that this thread has claimed. On failure the block
        // only lacks huge pages.
        let _ = unsafe { sys::advise_huge_pages(part, true) };
    }
}

/// Restores the class's advice on a place that was mapped anew.
pub(crate) fn remapped(place: Place, slot: &Slot) {
    if slot.base_from.get() > 0 {
        slot.base_from.set(0);
        CUT.fetch_sub(1, Relaxed);
    }
    choose(place.class, (place.address(), place.class.pitch()));
}

/// Returns the number of the first base page of a block, plus one; 0 if it has none.
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
    if before == 0 && CUT.load(Relaxed) >= MAX_CUT {
        return;
    }
    let pitch = place.class.pitch();
    let bytes = |cut: usize| {
        cut.checked_sub(1)
            .map_or(pitch, |pages| pages * SPACE.page_bytes())
    };
    let (old, new) = (bytes(before), bytes(cut));
    let part = (place.address() + old.min(new), old.abs_diff(new));
    // SAFETY: a part of a place that this thread has claimed.
    if unsafe { sys::advise_huge_pages(part, new > old) }.is_err() {
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
    fn usual_cut_is_where_huge_page_would_be_mostly_empty() {
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
    fn cut_is_same_for_all_sizes_of_class() {
        for number in class_of(HUGE_BYTES) + 1..class_of(1 << 30) {
            let (least, most) = (bytes_of(number - 1) + 1, bytes_of(number));
            let (least, most) = (cut_of(least, 4096), cut_of(most, 4096));
            assert!(least == most || most == 0, "class {number}");
        }
    }
}
