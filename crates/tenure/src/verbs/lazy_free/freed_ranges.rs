//! Records of the ranges that were freed with `FreePolicy::Adaptive`.

use std::sync::atomic::{AtomicBool, Ordering};

use rangemap::RangeSet;

use crate::ground::range::PageRange;
use crate::ground::sys::Errno;
use crate::ground::sys::exclusive::may_share_pages_since;
use crate::ground::sys::fork::{self, ForkMutex};

/// The most ranges that each set records, which takes about 1 MiB. Neighbours are
/// merged. Ranges beyond that are freed eagerly.
const MAX_RANGES: usize = 1 << 14;

pub(super) struct FreedRanges {
    /// Ranges that a check found to be private anonymous memory, and that have not
    /// been unmapped through tenure since.
    validated: RangeSet<usize>,
    /// Ranges that were freed lazily and not reported as reused since.
    lazily_free: RangeSet<usize>,
    /// Validated ranges in which no other process has a page, as long as there is no further
    /// fork after so many.
    own: RangeSet<usize>,
    own_fork_count: usize,
}

static FREED: ForkMutex<FreedRanges> = ForkMutex::new(FreedRanges::new(), |freed| {
    // Leaked, not freed: the child of a threaded program must not call the allocator here.
    std::mem::forget(std::mem::replace(freed, FreedRanges::new()));
});

/// Whether any range was ever recorded: a process that never frees adaptively does
/// not take the lock.
static HAS_RECORDS: AtomicBool = AtomicBool::new(false);

/// The result of [`record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FreeRecord {
    /// The range is private anonymous memory, unless other code has mapped
    /// something over it.
    pub(super) is_validated: bool,
    /// The range may be freed lazily: under severe pressure it will be reclaimed.
    pub(super) is_lazy: bool,
    /// No other process has a page of the range.
    pub(super) is_own: bool,
}

/// Records that a range is about to be freed, lazily if the caller wants that and one
/// more range can be recorded.
pub(super) fn record(range: PageRange, wants_lazy: bool) -> FreeRecord {
    HAS_RECORDS.store(true, Ordering::Relaxed);
    FREED.lock().record(range, wants_lazy)
}

/// Records that a range is private anonymous memory.
pub(super) fn record_validated(range: PageRange) {
    FREED.lock().record_validated(range);
}

/// Records that no other process has had a page of a validated range since so many forks.
pub(super) fn record_own(range: PageRange, fork_count: usize) {
    FREED.lock().record_own(range, fork_count);
}

fn contains(set: &RangeSet<usize>, range: PageRange) -> bool {
    set.get(&range.start())
        .is_some_and(|found| range.end() <= found.end)
}

/// Forgets that a range is lazily free, because it is in use again.
pub(in crate::verbs) fn forget_freed(range: PageRange) {
    if HAS_RECORDS.load(Ordering::Relaxed) {
        FREED.lock().forget_freed(range);
    }
}

/// Forgets all records of a range, because it is being unmapped or has changed.
pub(in crate::verbs) fn forget(range: PageRange) {
    if HAS_RECORDS.load(Ordering::Relaxed) {
        FREED.lock().forget(range);
    }
}

/// Removes and returns a range that is recorded as lazily free.
pub(super) fn pop_lazily_free() -> Option<PageRange> {
    FREED.lock().pop_lazily_free()
}

impl FreedRanges {
    pub(super) const fn new() -> Self {
        Self {
            validated: RangeSet::new(),
            lazily_free: RangeSet::new(),
            own: RangeSet::new(),
            own_fork_count: 0,
        }
    }

    pub(super) fn record(&mut self, range: PageRange, wants_lazy: bool) -> FreeRecord {
        let is_validated = contains(&self.validated, range);
        let is_recorded = contains(&self.lazily_free, range);
        let is_lazy = wants_lazy && (is_recorded || self.lazily_free.len() < MAX_RANGES);
        if is_lazy && !is_recorded {
            self.lazily_free.insert(range.as_std());
        } else if !is_lazy && !self.lazily_free.is_empty() {
            self.lazily_free.remove(range.as_std());
        }
        let is_own = !may_share_pages_since(self.own_fork_count) && contains(&self.own, range);
        FreeRecord {
            is_validated,
            is_lazy,
            is_own,
        }
    }

    pub(super) fn record_own(&mut self, range: PageRange, fork_count_then: usize) {
        if self.own_fork_count != fork_count_then {
            (self.own, self.own_fork_count) = (RangeSet::new(), fork_count_then);
        }
        if self.own.len() < MAX_RANGES && contains(&self.validated, range) {
            self.own.insert(range.as_std());
        }
    }

    pub(super) fn record_validated(&mut self, range: PageRange) {
        if self.validated.len() < MAX_RANGES {
            self.validated.insert(range.as_std());
        }
    }

    pub(super) fn forget_freed(&mut self, range: PageRange) {
        self.lazily_free.remove(range.as_std());
    }

    pub(super) fn forget(&mut self, range: PageRange) {
        self.validated.remove(range.as_std());
        self.own.remove(range.as_std());
        self.lazily_free.remove(range.as_std());
    }

    pub(super) fn pop_lazily_free(&mut self) -> Option<PageRange> {
        let range = self.lazily_free.first()?.clone();
        self.lazily_free.remove(range.clone());
        Some(range.into())
    }
}

/// Has forks empty the records in children: a child shares its pages with the parent, so
/// reclaiming them would free nothing.
pub(crate) fn register_fork_handlers() -> Result<(), Errno> {
    static ENTRY: fork::Entry = fork::Entry::new(&FREED);
    fork::register(&ENTRY)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::ground::mapping::Mapping;
    use crate::ground::sys::features::Features;
    use crate::ground::sys::page_size;

    fn pages(first: usize, count: usize) -> PageRange {
        // No mapping has these addresses.
        PageRange::new((1 << 30) + first * page_size(), count * page_size()).unwrap()
    }

    /// One test, because the records belong to the whole process.
    #[test]
    fn records_are_bounded_and_forgotten() {
        let _serial = super::super::adaptive::tests::SERIAL.lock();
        assert_eq!(pop_lazily_free(), None);
        let expected = |is_validated, is_lazy| FreeRecord {
            is_validated,
            is_lazy,
            is_own: false,
        };
        assert_eq!(record(pages(0, 4), true), expected(false, true));
        record_validated(pages(0, 4));
        assert_eq!(record(pages(1, 2), true), expected(true, true));
        assert_eq!(record(pages(1, 1), false), expected(true, false));
        forget_freed(pages(3, 1));
        assert_eq!(pop_lazily_free(), Some(pages(0, 1)));
        forget(pages(0, 2));
        assert_eq!(record(pages(1, 1), false), expected(false, false));
        assert_eq!(record(pages(2, 1), false), expected(true, false));
        assert_eq!(pop_lazily_free(), None);

        for index in 0..MAX_RANGES {
            assert!(record(pages(2 * index, 1), true).is_lazy);
        }
        assert!(!record(pages(2 * MAX_RANGES, 1), true).is_lazy);
        assert!(record(pages(0, 1), true).is_lazy, "recorded already");
        forget(pages(0, 2 * MAX_RANGES));
        assert_eq!(pop_lazily_free(), None);
    }

    #[test]
    fn offered_range_is_not_recorded_as_lazily_free() {
        let features = Features::get();
        if !features.sigbus_on_missing() || features.madv_populate.is_err() {
            return;
        }
        let _serial = super::super::adaptive::tests::SERIAL.lock();
        let memory = Mapping::anonymous(4 * page_size()).map().unwrap();
        let range = memory.range();
        assert!(record(range, true).is_lazy);
        // SAFETY: no reference to its bytes exists.
        unsafe { range.mark_volatile() }.unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while contains(&FREED.lock().lazily_free, range) {
            assert!(
                Instant::now() < end,
                "the offer thread has not forgotten it"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
