//! Per-object counters of marks and unmarks, to keep marking free of contention.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts that only the object's owner adds to. The process's counters are memory that
/// all threads write: marking a buffer takes several times as long while another thread
/// adds to them. The ENGINE lock holder flushes the delta to them.
#[derive(Debug)]
pub(crate) struct LocalCounts {
    marks: AtomicU64,
    unmarks: AtomicU64,
    /// The part that has been flushed; changed by the ENGINE lock holder.
    flushed_marks: AtomicU64,
    flushed_unmarks: AtomicU64,
}

impl LocalCounts {
    pub(super) const fn new() -> Self {
        Self {
            marks: AtomicU64::new(0),
            unmarks: AtomicU64::new(0),
            flushed_marks: AtomicU64::new(0),
            flushed_unmarks: AtomicU64::new(0),
        }
    }

    /// Counts a mark. Only the owner may call this.
    pub(crate) fn add_mark(&self) {
        add_one(&self.marks);
    }

    /// Counts an unmark. Only the owner may call this.
    pub(crate) fn add_unmark(&self) {
        add_one(&self.unmarks);
    }

    /// Returns the marks and unmarks since the last call. The caller holds ENGINE.
    pub(super) fn take_delta(&self) -> (u64, u64) {
        (
            take_delta(&self.marks, &self.flushed_marks),
            take_delta(&self.unmarks, &self.flushed_unmarks),
        )
    }
}

/// Adds one without an atomic addition, because only one thread adds.
fn add_one(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Writes only a delta that is not zero: after fork each write copies a page.
fn take_delta(count: &AtomicU64, flushed: &AtomicU64) -> u64 {
    let (now, before) = (
        count.load(Ordering::Relaxed),
        flushed.load(Ordering::Relaxed),
    );
    if now != before {
        flushed.store(now, Ordering::Relaxed);
    }
    now - before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delta_is_taken_once() {
        let local_counts = LocalCounts::new();
        local_counts.add_mark();
        local_counts.add_mark();
        local_counts.add_unmark();
        assert_eq!(local_counts.take_delta(), (2, 1));
        assert_eq!(local_counts.take_delta(), (0, 0));
        local_counts.add_unmark();
        assert_eq!(local_counts.take_delta(), (0, 1));
    }
}
