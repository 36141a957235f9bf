//! Places that the kernel keeps in several mappings for good, because page tables were
//! moved there. The number of a process's mappings is limited.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::slot::{MAX_VMA_SPLITS, Slot};
use crate::space::{Place, SPACE};
use crate::{huge, sys};

/// The most places with splits; each has a few mappings.
const MAX_SPLIT_PLACES: usize = 4 << 10;

static SPLIT_PLACES: AtomicUsize = AtomicUsize::new(0);

/// The parts of a place that are one mapping each, by the pages at which they end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    ends: [usize; MAX_VMA_SPLITS],
    count: usize,
}

impl Parts {
    /// Returns the parts of the touched pages. `None` if there are too many for another
    /// move.
    pub(crate) fn of(slot: &Slot) -> Option<Self> {
        let touched = slot.touched.get();
        let mut parts = Self::default();
        let vma_splits = slot.vma_splits.iter().map(super::slot::Pages::get);
        let mut ends: [usize; MAX_VMA_SPLITS + 2] = [0; MAX_VMA_SPLITS + 2];
        let all = vma_splits.chain([slot.base_from.get().saturating_sub(1), touched]);
        for (end, place) in all.zip(&mut ends) {
            *place = end.min(touched);
        }
        ends.sort_unstable();
        let mut last = 0;
        for end in ends.into_iter().filter(|&end| end > 0) {
            if end == last {
                continue;
            }
            *parts.ends.get_mut(parts.count)? = end;
            parts.count += 1;
            last = end;
        }
        Some(parts)
    }

    /// Returns each part as its first page and the page behind its last.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, usize)> {
        let ends = self.ends[..self.count].iter();
        let starts = [0].iter().chain(&self.ends);
        starts.zip(ends).map(|(&from, &to)| (from, to))
    }

    /// Records the parts in the slot of the place to which they were moved.
    pub(crate) fn note(&self, slot: &Slot) {
        for (split, &end) in slot.vma_splits.iter().zip(&self.ends[..self.count]) {
            split.set(end);
        }
        SPLIT_PLACES.fetch_add(1, Relaxed);
    }
}

/// Returns whether one more place may have splits.
pub(crate) fn has_capacity() -> bool {
    SPLIT_PLACES.load(Relaxed) < MAX_SPLIT_PLACES
}

pub(crate) fn has_any(slot: &Slot) -> bool {
    slot.vma_splits[0].get() > 0
}

/// Merges a claimed place into one mapping with its neighbours, and returns its memory;
/// if the kernel has no memory for that, the place stays as it is.
pub(crate) fn remap(place: Place) {
    let slot = place.slot();
    // SAFETY: this thread has claimed the place.
    if unsafe { sys::remap((place.address(), place.class.pitch())) }.is_err() {
        return;
    }
    if has_any(slot) {
        SPLIT_PLACES.fetch_sub(1, Relaxed);
    }
    for split in &slot.vma_splits {
        split.set(0);
    }
    slot.touched.set(0);
    huge::remapped(place, slot);
}

/// Returns how many bytes so many pages are.
pub(crate) fn bytes(pages: usize) -> usize {
    pages * SPACE.page_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(slot: &Slot) -> Vec<(usize, usize)> {
        Parts::of(slot).map_or(vec![], |parts| parts.iter().collect())
    }

    #[test]
    fn parts_end_at_splits_and_base_pages() {
        let slot = Slot::default();
        slot.touched.set(100);
        assert_eq!(parts(&slot), [(0, 100)]);
        slot.base_from.set(41);
        let two = [(0, 40), (40, 100)];
        assert_eq!(parts(&slot), two);
        // A moved block grows and is moved again.
        let other = Slot::default();
        Parts::of(&slot).unwrap().note(&other);
        other.touched.set(120);
        let three = [(0, 40), (40, 100), (100, 120)];
        assert_eq!(parts(&other), three);
        // Discarded pages are not moved.
        other.touched.set(70);
        assert_eq!(parts(&other), [(0, 40), (40, 70)]);
        other.touched.set(40);
        assert_eq!(parts(&other), [(0, 40)]);
    }

    #[test]
    fn parts_past_maximum_are_none() {
        let slot = Slot::default();
        for (split, number) in slot.vma_splits.iter().zip(1..) {
            split.set(10 * number);
        }
        slot.touched.set(10 * MAX_VMA_SPLITS);
        assert_eq!(parts(&slot).len(), MAX_VMA_SPLITS);
        slot.touched.set(10 * MAX_VMA_SPLITS + 1);
        assert_eq!(Parts::of(&slot), None);
    }
}
