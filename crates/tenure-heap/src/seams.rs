//! Places that the kernel has in several mappings for good, because page tables were
//! moved there. A process may not have too many mappings.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::slot::{MOST_SEAMS, Slot};
use crate::space::{Place, SPACE};
use crate::{huge, sys};

/// Places with seams, at most; each is a few mappings.
const MOST_SEAMED: usize = 4 << 10;

static SEAMED: AtomicUsize = AtomicUsize::new(0);

/// Parts of a place that are one mapping each: the pages at which they end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    ends: [usize; MOST_SEAMS],
    count: usize,
}

impl Parts {
    /// Those of what is touched. `None` if there are too many for another move.
    pub(crate) fn of(slot: &Slot) -> Option<Self> {
        let touched = slot.touched.get();
        let mut parts = Self::default();
        let seams = slot.seams.iter().map(super::slot::Pages::get);
        let mut ends: [usize; MOST_SEAMS + 2] = [0; MOST_SEAMS + 2];
        let all = seams.chain([slot.base_from.get().saturating_sub(1), touched]);
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

    /// From which page to which each goes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, usize)> {
        let ends = self.ends[..self.count].iter();
        let starts = [0].iter().chain(&self.ends);
        starts.zip(ends).map(|(&from, &to)| (from, to))
    }

    /// Notes that they lie in this place now, which had no seams.
    pub(crate) fn note(&self, slot: &Slot) {
        for (seam, &end) in slot.seams.iter().zip(&self.ends[..self.count]) {
            seam.set(end);
        }
        SEAMED.fetch_add(1, Relaxed);
    }
}

/// Whether one more place may have seams.
pub(crate) fn has_room() -> bool {
    SEAMED.load(Relaxed) < MOST_SEAMED
}

pub(crate) fn has_any(slot: &Slot) -> bool {
    slot.seams[0].get() > 0
}

/// Makes the place, which is in this thread's hands, one mapping with its neighbours
/// again, and gives its memory back; if the kernel has no room for it, it stays as it
/// is.
pub(crate) fn make_anew(place: Place) {
    let slot = place.slot();
    // SAFETY: nobody else has the place.
    if unsafe { sys::make_anew((place.address(), place.class.pitch())) }.is_err() {
        return;
    }
    if has_any(slot) {
        SEAMED.fetch_sub(1, Relaxed);
    }
    for seam in &slot.seams {
        seam.set(0);
    }
    slot.touched.set(0);
    huge::made_anew(place, slot);
}

/// How many bytes so many pages are.
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
    fn parts_end_at_seams_and_where_base_pages_begin() {
        let slot = Slot::default();
        slot.touched.set(100);
        assert_eq!(parts(&slot), [(0, 100)]);
        slot.base_from.set(41);
        let two = [(0, 40), (40, 100)];
        assert_eq!(parts(&slot), two);
        // Moved, it grows and is moved again.
        let other = Slot::default();
        Parts::of(&slot).unwrap().note(&other);
        other.touched.set(120);
        let three = [(0, 40), (40, 100), (100, 120)];
        assert_eq!(parts(&other), three);
        // What has been given up is not moved.
        other.touched.set(70);
        assert_eq!(parts(&other), [(0, 40), (40, 70)]);
        other.touched.set(40);
        assert_eq!(parts(&other), [(0, 40)]);
    }

    #[test]
    fn there_can_be_too_many_parts() {
        let slot = Slot::default();
        for (seam, number) in slot.seams.iter().zip(1..) {
            seam.set(10 * number);
        }
        slot.touched.set(10 * MOST_SEAMS);
        assert_eq!(parts(&slot).len(), MOST_SEAMS);
        slot.touched.set(10 * MOST_SEAMS + 1);
        assert_eq!(Parts::of(&slot), None);
    }
}
