//! Lists of free places, newest first, linked by number beside the blocks.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::class::Class;
use crate::lock::Held;

/// Places of one class. Changed under a lock, whose [`Held`] the caller shows.
#[derive(Debug)]
pub(crate) struct List {
    newest: AtomicU32,
    oldest: AtomicU32,
}

/// A place's number and one; none is 0.
#[inline]
fn link(index: Option<u32>) -> u32 {
    index.map_or(0, |index| index + 1)
}

#[inline]
fn index(link: u32) -> Option<u32> {
    link.checked_sub(1)
}

impl List {
    pub(crate) const fn new() -> Self {
        Self {
            newest: AtomicU32::new(0),
            oldest: AtomicU32::new(0),
        }
    }

    /// Whether there is none; without the lock, whether there was none just now.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.newest.load(Relaxed) == 0
    }

    #[inline]
    pub(crate) fn push(&self, _held: &Held<'_>, class: &Class, place: u32) {
        let slot = class.slot(place);
        let next = self.newest.load(Relaxed);
        slot.older.store(next, Relaxed);
        slot.newer.store(0, Relaxed);
        match index(next) {
            Some(next) => class.slot(next).newer.store(link(Some(place)), Relaxed),
            None => self.oldest.store(link(Some(place)), Relaxed),
        }
        self.newest.store(link(Some(place)), Relaxed);
    }

    /// Takes the newest.
    #[inline]
    pub(crate) fn pop(&self, _held: &Held<'_>, class: &Class) -> Option<u32> {
        let place = index(self.newest.load(Relaxed))?;
        let next = class.slot(place).older.load(Relaxed);
        self.newest.store(next, Relaxed);
        match index(next) {
            Some(next) => class.slot(next).newer.store(0, Relaxed),
            None => self.oldest.store(0, Relaxed),
        }
        Some(place)
    }

    /// Takes the oldest, if `wanted` says so of its stamp.
    pub(crate) fn pop_oldest(
        &self,
        _held: &Held<'_>,
        class: &Class,
        wanted: impl FnOnce(u32) -> bool,
    ) -> Option<u32> {
        let place = index(self.oldest.load(Relaxed))?;
        let slot = class.slot(place);
        if !wanted(slot.stamp.load(Relaxed)) {
            return None;
        }
        let next = slot.newer.load(Relaxed);
        self.oldest.store(next, Relaxed);
        match index(next) {
            Some(next) => class.slot(next).older.store(0, Relaxed),
            None => self.newest.store(0, Relaxed),
        }
        Some(place)
    }

    /// Forgets all, in the child of a fork.
    pub(crate) fn reset(&self) {
        // One is changed after the other.
        for end in [&self.newest, &self.oldest] {
            if end.load(Relaxed) != 0 {
                end.store(0, Relaxed);
            }
        }
    }
}
