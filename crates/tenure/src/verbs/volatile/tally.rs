//! How often an object has been marked and unmarked.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counted beside the word, by the object's owner alone. The counters of the
/// process are memory that all threads would write to: a transition through a
/// handle would take several times as long while another thread makes its own.
/// Whoever holds the engine adds the news to them.
#[derive(Debug)]
pub(super) struct Tally {
    marks: AtomicU64,
    unmarks: AtomicU64,
    /// What of them is no news any more; changed by who holds the engine.
    told_marks: AtomicU64,
    told_unmarks: AtomicU64,
}

impl Tally {
    pub(super) const fn new() -> Self {
        Self {
            marks: AtomicU64::new(0),
            unmarks: AtomicU64::new(0),
            told_marks: AtomicU64::new(0),
            told_unmarks: AtomicU64::new(0),
        }
    }

    /// Counts a marking. By the owner.
    pub(super) fn marked(&self) {
        add_one(&self.marks);
    }

    /// Counts an unmarking. By the owner.
    pub(super) fn unmarked(&self) {
        add_one(&self.unmarks);
    }

    /// How many markings and unmarkings there have been since this was asked
    /// last. By who holds the engine.
    pub(super) fn news(&self) -> (u64, u64) {
        (
            news(&self.marks, &self.told_marks),
            news(&self.unmarks, &self.told_unmarks),
        )
    }
}

/// Without an atomic addition, for nobody else adds.
fn add_one(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Writes only if there are some: after fork each page written is copied.
fn news(count: &AtomicU64, told: &AtomicU64) -> u64 {
    let (now, before) = (count.load(Ordering::Relaxed), told.load(Ordering::Relaxed));
    if now != before {
        told.store(now, Ordering::Relaxed);
    }
    now - before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_are_told_once() {
        let tally = Tally::new();
        tally.marked();
        tally.marked();
        tally.unmarked();
        assert_eq!(tally.news(), (2, 1));
        assert_eq!(tally.news(), (0, 0));
        tally.unmarked();
        assert_eq!(tally.news(), (0, 1));
    }
}
