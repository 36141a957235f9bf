//! The marks on plain ranges: which are volatile, and which have been validated.

use std::cell::Cell;

use rangemap::RangeMap;

use super::state::MAX_RECORDS;
use crate::ground::range::PageRange;
use crate::verbs::volatile::priority::{Priority, Timestamp};
use crate::verbs::volatile::word::Unmarked;

/// The state of a range that was marked at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Not volatile. The engine has found that it can be.
    Validated,
    /// Volatile.
    Volatile {
        /// The kernel may purge pages of it.
        offered: bool,
        /// It waits to be offered, or offered again.
        due: bool,
        priority: Priority,
        timestamp: Timestamp,
    },
}

impl Mark {
    fn is_volatile(self) -> bool {
        self != Self::Validated
    }

    fn is_offered(self) -> bool {
        matches!(self, Self::Volatile { offered: true, .. })
    }

    fn is_due(self) -> bool {
        matches!(self, Self::Volatile { due: true, .. })
    }

    fn marked(self, priority: Priority, timestamp: Timestamp) -> Self {
        Self::Volatile {
            offered: self.is_offered(),
            due: true,
            priority,
            timestamp,
        }
    }
}

/// The ranges, none overlapping another. Marking and unmarking exactly an existing
/// range changes its mark in place.
#[derive(Debug)]
pub(crate) struct Marks {
    map: RangeMap<usize, Cell<Mark>>,
    volatile_bytes: usize,
    due_bytes: usize,
    /// Where the search for merely validated ranges to drop continues.
    swept_to: usize,
}

impl Marks {
    /// How many ranges there may be before merely validated ones are dropped.
    const MAX_RANGES: usize = 1 << 16;

    pub(crate) const fn new() -> Self {
        Self {
            map: RangeMap::new(),
            volatile_bytes: 0,
            due_bytes: 0,
            swept_to: 0,
        }
    }

    /// Returns how much is volatile.
    pub(crate) fn volatile_bytes(&self) -> usize {
        self.volatile_bytes
    }

    /// Returns how much waits to be offered.
    pub(crate) fn due_bytes(&self) -> usize {
        self.due_bytes
    }

    /// Changes the mark of exactly this range in place and returns the earlier one;
    /// `None` if there is no such range.
    fn change(&mut self, range: PageRange, to: impl FnOnce(Mark) -> Mark) -> Option<Mark> {
        let (found, cell) = self.map.get_key_value(&range.start())?;
        if *found != range.as_std() {
            return None;
        }
        let before = cell.get();
        let after = to(before);
        cell.set(after);
        self.uncount(range, before);
        self.count(range, after);
        Some(before)
    }

    fn count(&mut self, range: PageRange, mark: Mark) {
        self.volatile_bytes += range.len() * usize::from(mark.is_volatile());
        self.due_bytes += range.len() * usize::from(mark.is_due());
    }

    fn uncount(&mut self, range: PageRange, mark: Mark) {
        self.volatile_bytes -= range.len() * usize::from(mark.is_volatile());
        self.due_bytes -= range.len() * usize::from(mark.is_due());
    }

    /// Returns where the first `count` marks of the range end; the end of the range if it
    /// has fewer.
    pub(super) fn end_after(&self, range: PageRange, count: usize) -> usize {
        let last = self.map.overlapping(range.as_std()).nth(count - 1);
        last.map_or(range.end(), |(part, _)| part.end.min(range.end()))
    }

    fn has_many(&self, range: PageRange) -> bool {
        self.end_after(range, MAX_RECORDS) < range.end()
    }

    /// Returns whether all of the range has marks.
    pub(super) fn is_validated(&self, range: PageRange) -> bool {
        self.map.gaps(&range.as_std()).next().is_none()
    }

    /// Marks the range if all of it is validated; returns whether it is. Refuses a range
    /// with many marks, which the caller marks in parts.
    pub(crate) fn mark(
        &mut self,
        range: PageRange,
        priority: Priority,
        timestamp: Timestamp,
    ) -> bool {
        if self
            .change(range, |mark| mark.marked(priority, timestamp))
            .is_some()
        {
            return true;
        }
        if self.has_many(range) || !self.is_validated(range) {
            return false;
        }
        self.mark_validated(range, priority, timestamp);
        true
    }

    /// Marks the range, which the engine has validated.
    pub(crate) fn mark_validated(
        &mut self,
        range: PageRange,
        priority: Priority,
        timestamp: Timestamp,
    ) {
        let earlier = self.remove(range);
        self.insert(range, Mark::Validated.marked(priority, timestamp));
        for (part, mark) in earlier {
            if mark.is_offered() {
                self.remove(part);
                self.insert(part, mark.marked(priority, timestamp));
            }
        }
        self.drop_validated_if_many();
    }

    /// Ends the volatility of the range, if the kernel has not been offered any of it. A
    /// range with many marks needs the engine too: its volatility ends in parts.
    pub(crate) fn unmark(&mut self, range: PageRange) -> Unmarked {
        let unless_offered = |mark: Mark| {
            if mark.is_offered() {
                mark
            } else {
                Mark::Validated
            }
        };
        if let Some(before) = self.change(range, unless_offered) {
            return match before {
                Mark::Validated => Unmarked::WasNonvolatile,
                before if before.is_offered() => Unmarked::NeedsEngine,
                _ => Unmarked::Intact,
            };
        }
        if self.has_many(range) || !self.is_validated(range) {
            return Unmarked::NeedsEngine;
        }
        let parts = self.parts(range);
        if parts.iter().any(|(_, mark)| mark.is_offered()) {
            return Unmarked::NeedsEngine;
        }
        if !parts.iter().any(|(_, mark)| mark.is_volatile()) {
            return Unmarked::WasNonvolatile;
        }
        self.set_nonvolatile(range);
        Unmarked::Intact
    }

    /// Ends the volatility of the marked parts of the range.
    pub(crate) fn set_nonvolatile(&mut self, range: PageRange) {
        if self.change(range, |_| Mark::Validated).is_some() {
            return;
        }
        for (part, _) in self.remove(range) {
            self.insert(part, Mark::Validated);
        }
    }

    /// Returns the first part of the range that waits to be offered.
    pub(crate) fn first_due(&self, range: PageRange) -> Option<PageRange> {
        self.first(range, Mark::is_due)
    }

    /// Returns the first part of the range that is volatile.
    pub(crate) fn first_volatile(&self, range: PageRange) -> Option<PageRange> {
        self.first(range, Mark::is_volatile)
    }

    /// Returns the first part of the range that is volatile, with the parts next to it that are.
    pub(crate) fn first_volatile_neighbours(&self, range: PageRange) -> Option<PageRange> {
        let overlapping = self.map.overlapping(range.as_std());
        let volatile = overlapping.filter(|(_, mark)| mark.get().is_volatile());
        let mut parts = volatile.map(|(part, _)| PageRange::from(part.clone()));
        let first = parts.next()?;
        let end = parts
            .map_while({
                let mut end = first.end();
                move |part| {
                    (part.start() == end)
                        .then(|| end = part.end())
                        .map(|()| end)
                }
            })
            .last();
        let all = PageRange::between(first.start(), end.unwrap_or(first.end()));
        all.intersection(range)
    }

    fn first(&self, range: PageRange, fits: impl Fn(Mark) -> bool) -> Option<PageRange> {
        let mut overlapping = self.map.overlapping(range.as_std());
        let (part, _) = overlapping.find(|(_, mark)| fits(mark.get()))?;
        PageRange::from(part.clone()).intersection(range)
    }

    /// Records whether the volatile parts of the range have been offered. They are not
    /// due until they are marked again.
    pub(crate) fn publish(&mut self, range: PageRange, offered_now: bool) {
        if self.map.is_empty() {
            return;
        }
        for (part, mark) in self.remove(range) {
            let published = match mark {
                Mark::Validated => mark,
                Mark::Volatile {
                    offered,
                    priority,
                    timestamp,
                    ..
                } => Mark::Volatile {
                    offered: offered || offered_now,
                    due: false,
                    priority,
                    timestamp,
                },
            };
            self.insert(part, published);
        }
    }

    /// Forgets the range, whose contents or mappings go away.
    pub(crate) fn forget(&mut self, range: PageRange) {
        if !self.map.is_empty() {
            self.remove(range);
        }
    }

    /// Returns the volatile ranges, in order of address.
    pub(crate) fn volatile(&self) -> impl Iterator<Item = (PageRange, Mark)> {
        self.map
            .iter()
            .map(|(range, mark)| (PageRange::from(range.clone()), mark.get()))
            .filter(|(_, mark)| mark.is_volatile())
    }

    /// Returns the parts of the range that have a mark, in order, clipped to it.
    fn parts(&self, range: PageRange) -> Vec<(PageRange, Mark)> {
        let overlapping = self.map.overlapping(range.as_std());
        overlapping
            .filter_map(|(part, mark)| {
                let part = PageRange::from(part.clone()).intersection(range)?;
                Some((part, mark.get()))
            })
            .collect()
    }

    /// Removes the range and returns the parts that had a mark.
    fn remove(&mut self, range: PageRange) -> Vec<(PageRange, Mark)> {
        let parts = self.parts(range);
        for &(part, mark) in &parts {
            self.uncount(part, mark);
        }
        self.map.remove(range.as_std());
        parts
    }

    fn insert(&mut self, range: PageRange, mark: Mark) {
        self.count(range, mark);
        self.map.insert(range.as_std(), Cell::new(mark));
    }

    /// Drops merely validated ranges while there are many, a few at each new mark: a
    /// program may mark ever new addresses and unmap them without tenure. Marking such a
    /// range again costs another validation.
    fn drop_validated_if_many(&mut self) {
        const MAX_SWEPT: usize = 8;
        if self.map.len() <= Self::MAX_RANGES {
            return;
        }
        let overlapping = self.map.overlapping(self.swept_to..usize::MAX);
        let next = overlapping.map(|(range, mark)| (range.clone(), mark.get()));
        let next: Vec<_> = next.take(MAX_SWEPT).collect();
        self.swept_to = next.last().map_or(0, |(range, _)| range.end);
        for (range, mark) in next {
            if !mark.is_volatile() {
                self.map.remove(range);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::sys::page_size;

    fn range(from: usize, to: usize) -> PageRange {
        PageRange::between(from * page_size(), to * page_size())
    }

    fn timestamp(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    fn mark(marks: &mut Marks, range: PageRange, nanos: u64) {
        if !marks.mark(range, Priority::Normal, timestamp(nanos)) {
            marks.mark_validated(range, Priority::Normal, timestamp(nanos));
        }
    }

    #[test]
    fn range_marked_once_needs_no_validation() {
        let mut marks = Marks::new();
        assert!(!marks.mark(range(1, 5), Priority::Low, timestamp(1)));
        marks.mark_validated(range(1, 5), Priority::Low, timestamp(1));
        assert_eq!(marks.unmark(range(1, 5)), Unmarked::Intact);
        assert_eq!(marks.volatile_bytes(), 0);
        assert!(marks.mark(range(1, 5), Priority::Low, timestamp(2)));
        assert!(
            marks.mark(range(2, 3), Priority::Low, timestamp(3)),
            "a part is validated, too"
        );
        assert!(!marks.mark(range(4, 6), Priority::Low, timestamp(3)));
        assert!(marks.is_validated(range(1, 5)) && !marks.is_validated(range(0, 5)));
        marks.forget(range(2, 3));
        assert!(!marks.mark(range(1, 5), Priority::Low, timestamp(4)));
    }

    #[test]
    fn unmark_needs_engine_only_for_offered_ranges() {
        let mut marks = Marks::new();
        mark(&mut marks, range(0, 10), 1);
        marks.publish(range(0, 10), true);
        assert_eq!(marks.due_bytes(), 0);
        mark(&mut marks, range(20, 30), 2);
        assert_eq!(marks.unmark(range(20, 30)), Unmarked::Intact);
        assert_eq!(marks.unmark(range(9, 25)), Unmarked::NeedsEngine);
        assert_eq!(marks.unmark(range(0, 10)), Unmarked::NeedsEngine);
        assert_eq!(marks.volatile_bytes(), 10 * page_size(), "still volatile");
        marks.set_nonvolatile(range(0, 4));
        assert_eq!(marks.volatile_bytes(), 6 * page_size());
        // A range that is marked again is due again, and still offered.
        mark(&mut marks, range(4, 10), 3);
        assert_eq!(marks.due_bytes(), 6 * page_size());
        assert_eq!(marks.unmark(range(4, 10)), Unmarked::NeedsEngine);
    }

    #[test]
    fn overlapping_marks_merge_and_keep_offered_parts() {
        let mut marks = Marks::new();
        mark(&mut marks, range(0, 4), 1);
        marks.publish(range(0, 4), true);
        mark(&mut marks, range(2, 8), 2);
        assert_eq!(marks.volatile_bytes(), 8 * page_size());
        assert_eq!(marks.due_bytes(), 6 * page_size());
        assert_eq!(marks.unmark(range(4, 8)), Unmarked::Intact);
        assert_eq!(marks.unmark(range(3, 4)), Unmarked::NeedsEngine);
    }

    #[test]
    fn range_whose_offer_failed_stays_volatile_and_is_not_due() {
        let mut marks = Marks::new();
        mark(&mut marks, range(0, 4), 1);
        marks.publish(range(0, 4), false);
        assert_eq!(
            (marks.due_bytes(), marks.volatile_bytes()),
            (0, 4 * page_size())
        );
        assert_eq!(marks.unmark(range(0, 4)), Unmarked::Intact);
    }

    #[test]
    fn validated_ranges_are_dropped_when_there_are_many() {
        let mut marks = Marks::new();
        for at in 0..2 * Marks::MAX_RANGES {
            mark(&mut marks, range(2 * at, 2 * at + 1), 1);
            if at % 2 == 0 {
                assert_eq!(marks.unmark(range(2 * at, 2 * at + 1)), Unmarked::Intact);
            }
        }
        // The search has not passed the latest ones yet.
        assert!(marks.map.len() < Marks::MAX_RANGES / 4 * 5);
        assert_eq!(marks.volatile_bytes(), Marks::MAX_RANGES * page_size());
        assert_eq!(marks.volatile().count(), Marks::MAX_RANGES);
    }

    #[test]
    fn range_with_many_marks_is_left_to_be_changed_in_parts() {
        let mut marks = Marks::new();
        let count = MAX_RECORDS + 1;
        for at in 0..count {
            mark(&mut marks, range(at, at + 1), at as u64);
        }
        let (all, few) = (range(0, count), range(1, count));
        assert_eq!(marks.end_after(all, MAX_RECORDS), few.end() - page_size());
        assert_eq!(marks.end_after(few, MAX_RECORDS), few.end());
        assert_eq!(marks.unmark(all), Unmarked::NeedsEngine);
        assert!(!marks.mark(all, Priority::Low, timestamp(1)));
        assert_eq!(marks.volatile_bytes(), all.len());
        assert_eq!(marks.unmark(few), Unmarked::Intact);
        assert!(marks.mark(few, Priority::Low, timestamp(1)));
        assert_eq!(marks.volatile().count(), 2);
    }
}
