//! Blocks whose page tables were moved here: the kernel keeps them apart from what
//! lies beside them, as mappings of their own, of which a process may not have too
//! many.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::slot::{MOST_MOVED, Slot};
use crate::space::{Place, SPACE};
use crate::{huge, sys};

/// Places that are apart, at most; each is a few mappings.
const MOST_APART: usize = 4 << 10;

static APART: AtomicUsize = AtomicUsize::new(0);

/// Whether one more place may be apart.
pub(crate) fn has_room() -> bool {
    APART.load(Relaxed) < MOST_APART
}

/// Whether the place has parts that the kernel keeps apart.
pub(crate) fn is_apart(slot: &Slot) -> bool {
    slot.moved[0].get() > 0
}

/// The parts of what is touched that are one mapping each, in pages: from where, and
/// to where. `None` if there are too many for another move.
pub(crate) fn parts(slot: &Slot) -> Option<impl Iterator<Item = (usize, usize)> + Clone> {
    if slot.moved[MOST_MOVED - 1].get() > 0 {
        return None;
    }
    let touched = slot.touched.get();
    let inner = slot.moved.iter().map(|end| end.get().min(touched));
    let mut ends = [0; MOST_MOVED + 1];
    let mut from = 0;
    for (end, part) in ends.iter_mut().zip(inner.chain([touched])) {
        *end = part;
    }
    // What has no end yet ends where the last part does.
    ends.iter_mut()
        .filter(|end| **end == 0)
        .for_each(|end| *end = touched);
    Some(ends.into_iter().filter_map(move |to| {
        let part = (from, to);
        from = to;
        (part.0 < part.1).then_some(part)
    }))
}

/// Notes that the parts lie here now.
pub(crate) fn note(slot: &Slot, parts: impl Iterator<Item = (usize, usize)>) {
    for (end, (_, to)) in slot.moved.iter().zip(parts) {
        end.set(to);
    }
    APART.fetch_add(1, Relaxed);
}

/// Makes the place, which is in this thread's hands, like its neighbours again, and
/// gives its memory back; if the kernel has no room for it, it stays as it is.
pub(crate) fn make_anew(place: Place) {
    let slot = place.slot();
    // SAFETY: nobody else has the place.
    if unsafe { sys::make_anew((place.address(), place.class.pitch())) }.is_err() {
        return;
    }
    for end in &slot.moved {
        end.set(0);
    }
    slot.touched.set(0);
    APART.fetch_sub(1, Relaxed);
    huge::made_anew(place, slot);
}

/// How many bytes so many pages are.
pub(crate) fn bytes(pages: usize) -> usize {
    pages * SPACE.page_bytes()
}
