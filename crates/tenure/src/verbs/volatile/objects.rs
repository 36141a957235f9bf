//! The volatile objects that have a word of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::patience::Patience;
use super::tally::Tally;
use super::word::{State, Word};
use crate::ground::range::PageRange;
use crate::observation::stats;

/// Memory that is volatile as a whole, or not at all.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) range: PageRange,
    pub(super) word: Word,
    pub(super) tally: Tally,
    pub(super) patience: Patience,
    /// Where it stands in the list; changed by who holds the engine.
    place: AtomicUsize,
}

impl Object {
    /// Adds the news of the tally to the process's counters. By who holds the
    /// engine.
    pub(super) fn count(&self) {
        let (marks, unmarks) = self.tally.news();
        if (marks, unmarks) != (0, 0) {
            stats::MARK_VOLATILE.done_often(marks, self.range.len());
            stats::MARK_NONVOLATILE.done_often(unmarks, self.range.len());
        }
    }
}

/// All objects of the process, for the keeper to look through.
#[derive(Debug)]
pub(super) struct Objects(Vec<Arc<Object>>);

impl Objects {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn add(&mut self, range: PageRange) -> Arc<Object> {
        let object = Arc::new(Object {
            range,
            word: Word::nonvolatile(),
            tally: Tally::new(),
            patience: Patience::none(),
            place: AtomicUsize::new(self.0.len()),
        });
        self.0.push(object.clone());
        object
    }

    pub(super) fn remove(&mut self, object: &Arc<Object>) {
        let place = object.place.load(Ordering::Relaxed);
        if self
            .0
            .get(place)
            .is_some_and(|found| Arc::ptr_eq(found, object))
        {
            self.0.swap_remove(place);
            if let Some(moved) = self.0.get(place) {
                moved.place.store(place, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn all(&self) -> &[Arc<Object>] {
        &self.0
    }

    /// Those that are volatile.
    pub(super) fn volatile(&self) -> impl Iterator<Item = &Arc<Object>> {
        let is_volatile = |object: &&Arc<Object>| object.word.read().state() != State::Nonvolatile;
        self.0.iter().filter(is_volatile)
    }

    /// Whether an object waits to be offered.
    pub(super) fn has_marked(&self) -> bool {
        let is_marked = |object: &Arc<Object>| object.word.read().state() == State::Marked;
        self.0.iter().any(is_marked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::sys::page_size;

    #[test]
    fn an_object_is_found_where_others_have_left() {
        let mut objects = Objects::new();
        let range = |at| PageRange::between(at * page_size(), (at + 1) * page_size());
        let all: Vec<_> = (0..4).map(|at| objects.add(range(at))).collect();
        objects.remove(&all[0]);
        objects.remove(&all[3]);
        objects.remove(&all[0]);
        let mut left: Vec<_> = objects.0.iter().map(|object| object.range).collect();
        left.sort_unstable_by_key(|range| range.start());
        assert_eq!(left, [range(1), range(2)]);
        objects.remove(&all[1]);
        objects.remove(&all[2]);
        assert!(objects.0.is_empty());
    }
}
