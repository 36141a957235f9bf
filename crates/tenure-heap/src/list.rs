//! Lists of free places, newest first, linked by index in the slots.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::class::Class;
use crate::lock::LockGuard;

/// Places of one class. A lock guards it, whose [`LockGuard`] the caller passes.
#[derive(Debug)]
pub(crate) struct List {
    newest: AtomicU32,
    oldest: AtomicU32,
}

/// Returns the link to a place: its index plus one, 0 for none.
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

    /// Returns whether the list is empty; without the lock, whether it was just now.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.newest.load(Relaxed) == 0
    }

    #[inline]
    pub(crate) fn push(&self, _held: &LockGuard<'_>, class: &Class, place: u32) {
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

    /// Takes the newest place.
    #[inline]
    pub(crate) fn pop(&self, _held: &LockGuard<'_>, class: &Class) -> Option<u32> {
        let place = index(self.newest.load(Relaxed))?;
        let next = class.slot(place).older.load(Relaxed);
        self.newest.store(next, Relaxed);
        match index(next) {
            Some(next) => class.slot(next).newer.store(0, Relaxed),
            None => self.oldest.store(0, Relaxed),
        }
        Some(place)
    }

    /// Takes the oldest place, if `wanted` accepts its timestamp.
    pub(crate) fn pop_oldest(
        &self,
        _held: &LockGuard<'_>,
        class: &Class,
        wanted: impl FnOnce(u32) -> bool,
    ) -> Option<u32> {
        let place = index(self.oldest.load(Relaxed))?;
        let slot = class.slot(place);
        if !wanted(slot.timestamp.load(Relaxed)) {
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

    /// Drops all places, in the child of a fork.
    pub(crate) fn reset(&self) {
        // An unchanged page stays shared with the parent.
        for end in [&self.newest, &self.oldest] {
            if end.load(Relaxed) != 0 {
                end.store(0, Relaxed);
            }
        }
    }
}
