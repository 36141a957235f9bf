//! The volatile objects that have a word of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ground::range::PageRange;
use crate::verbs::volatile::word::{State, Word};

/// Memory that is volatile as a whole, or not at all.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) range: PageRange,
    pub(crate) word: Word,
    /// Its index in the list; changed by the ENGINE lock holder.
    index: AtomicUsize,
}

/// All objects of the process, which the offer thread searches.
#[derive(Debug)]
pub(crate) struct Objects(Vec<Arc<Object>>);

impl Objects {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn add(&mut self, range: PageRange) -> Arc<Object> {
        let object = Arc::new(Object {
            range,
            word: Word::nonvolatile(),
            index: AtomicUsize::new(self.0.len()),
        });
        self.0.push(object.clone());
        object
    }

    /// Removes the object; an object that is not in the list is ignored.
    pub(crate) fn remove(&mut self, object: &Arc<Object>) {
        let index = object.index.load(Ordering::Relaxed);
        if self
            .0
            .get(index)
            .is_some_and(|found| Arc::ptr_eq(found, object))
        {
            self.0.swap_remove(index);
            if let Some(moved) = self.0.get(index) {
                moved.index.store(index, Ordering::Relaxed);
            }
        }
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn all(&self) -> &[Arc<Object>] {
        &self.0
    }

    pub(crate) fn volatile(&self) -> impl Iterator<Item = &Arc<Object>> {
        let is_volatile = |object: &&Arc<Object>| object.word.read().state() != State::Nonvolatile;
        self.0.iter().filter(is_volatile)
    }

    /// Returns whether an object waits to be offered.
    pub(crate) fn has_marked(&self) -> bool {
        let is_marked = |object: &Arc<Object>| object.word.read().state() == State::Marked;
        self.0.iter().any(is_marked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::sys::page_size;

    #[test]
    fn object_moved_by_a_removal_is_still_removed() {
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
