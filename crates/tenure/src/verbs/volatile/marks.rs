//! Which ranges of plain addresses are marked, and which are known to be fit
//! for it.

use std::cell::Cell;

use rangemap::RangeMap;

use super::{Priority, Stamp, Unmarked};
use crate::ground::range::PageRange;

/// What is known of a range that was marked at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Not volatile. It was fit to be when it was looked at.
    Known,
    /// Volatile.
    Volatile {
        /// The kernel may take pages of it.
        offered: bool,
        /// It is to be offered, or offered again.
        due: bool,
        priority: Priority,
        stamp: Stamp,
    },
}

impl Mark {
    fn is_volatile(self) -> bool {
        self != Self::Known
    }

    fn is_offered(self) -> bool {
        matches!(self, Self::Volatile { offered: true, .. })
    }

    fn is_due(self) -> bool {
        matches!(self, Self::Volatile { due: true, .. })
    }

    fn marked(self, priority: Priority, stamp: Stamp) -> Self {
        Self::Volatile {
            offered: self.is_offered(),
            due: true,
            priority,
            stamp,
        }
    }
}

/// The ranges, none overlapping another. A range that is marked and unmarked as
/// before is found and changed in its place.
#[derive(Debug)]
pub(super) struct Marks {
    map: RangeMap<usize, Cell<Mark>>,
    volatile_bytes: usize,
    due_bytes: usize,
    /// How many ranges there may be before those that are only known go.
    most_ranges: usize,
}

impl Marks {
    const FEW_RANGES: usize = 1 << 16;

    pub(super) fn new() -> Self {
        Self {
            map: RangeMap::new(),
            volatile_bytes: 0,
            due_bytes: 0,
            most_ranges: Self::FEW_RANGES,
        }
    }

    /// How much of all this is volatile.
    pub(super) fn volatile_bytes(&self) -> usize {
        self.volatile_bytes
    }

    /// How much is to be offered.
    pub(super) fn due_bytes(&self) -> usize {
        self.due_bytes
    }

    /// Changes the mark of just this range where it stands; `None` if there is
    /// none of just this range.
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

    /// The parts of the range that nothing is known of.
    pub(super) fn unknown(&self, range: PageRange) -> Vec<PageRange> {
        self.map
            .gaps(&range.as_std())
            .map(PageRange::from)
            .collect()
    }

    /// Marks the range if all of it is known.
    pub(super) fn mark(&mut self, range: PageRange, priority: Priority, stamp: Stamp) -> bool {
        if self
            .change(range, |mark| mark.marked(priority, stamp))
            .is_some()
        {
            return true;
        }
        if !self.unknown(range).is_empty() {
            return false;
        }
        self.mark_new(range, priority, stamp);
        true
    }

    /// Marks the range, whose unknown parts have been looked at.
    pub(super) fn mark_new(&mut self, range: PageRange, priority: Priority, stamp: Stamp) {
        let offered = self.cut(range);
        self.put(range, Mark::Known.marked(priority, stamp));
        for (part, mark) in offered {
            if mark.is_offered() {
                self.cut(part);
                self.put(part, mark.marked(priority, stamp));
            }
        }
    }

    /// Ends the volatility of the range, if the kernel does not know of it.
    pub(super) fn unmark(&mut self, range: PageRange) -> Unmarked {
        let known = |mark: Mark| if mark.is_offered() { mark } else { Mark::Known };
        if let Some(before) = self.change(range, known) {
            return match before {
                Mark::Known => Unmarked::WasNot,
                before if before.is_offered() => Unmarked::Ask,
                _ => Unmarked::Intact,
            };
        }
        let parts = self.parts(range);
        let is_offered = parts.iter().any(|(_, mark)| mark.is_offered());
        if is_offered || !self.unknown(range).is_empty() {
            return Unmarked::Ask;
        }
        if !parts.iter().any(|(_, mark)| mark.is_volatile()) {
            return Unmarked::WasNot;
        }
        self.set_known(range);
        Unmarked::Intact
    }

    /// Says that what is marked of the range is not volatile any more.
    pub(super) fn set_known(&mut self, range: PageRange) {
        if self.change(range, |_| Mark::Known).is_some() {
            return;
        }
        for (part, _) in self.cut(range) {
            self.put(part, Mark::Known);
        }
        self.bound();
    }

    /// Whether just this range is still to be offered.
    pub(super) fn is_due(&self, range: PageRange) -> bool {
        let found = self.map.get_key_value(&range.start());
        found.is_some_and(|(found, mark)| *found == range.as_std() && mark.get().is_due())
    }

    /// Says that what is volatile of the range has been offered, or that it
    /// could not be, and is to be tried again later.
    pub(super) fn settle(&mut self, range: PageRange, offered_now: bool) {
        for (part, mark) in self.cut(range) {
            let settled = match mark {
                Mark::Known => mark,
                Mark::Volatile {
                    offered,
                    priority,
                    stamp,
                    ..
                } => Mark::Volatile {
                    offered: offered || offered_now,
                    due: false,
                    priority,
                    stamp,
                },
            };
            self.put(part, settled);
        }
    }

    /// Forgets the range, whose memory goes away.
    pub(super) fn forget(&mut self, range: PageRange) {
        if !self.map.is_empty() {
            self.cut(range);
        }
    }

    /// The volatile ranges, in order of address.
    pub(super) fn volatile(&self) -> impl Iterator<Item = (PageRange, Mark)> {
        self.map
            .iter()
            .map(|(range, mark)| (PageRange::from(range.clone()), mark.get()))
            .filter(|(_, mark)| mark.is_volatile())
    }

    /// Those parts of the range that are volatile, in order.
    pub(super) fn volatile_parts(&self, range: PageRange) -> Vec<PageRange> {
        let parts = self.parts(range).into_iter();
        parts
            .filter(|(_, mark)| mark.is_volatile())
            .map(|(part, _)| part)
            .collect()
    }

    /// The parts of the range, in order, clipped to it.
    fn parts(&self, range: PageRange) -> Vec<(PageRange, Mark)> {
        let overlapping = self.map.overlapping(range.as_std());
        overlapping
            .filter_map(|(part, mark)| {
                let part = PageRange::from(part.clone()).intersection(range)?;
                Some((part, mark.get()))
            })
            .collect()
    }

    /// Takes the range out and returns its parts.
    fn cut(&mut self, range: PageRange) -> Vec<(PageRange, Mark)> {
        let parts = self.parts(range);
        for &(part, mark) in &parts {
            self.uncount(part, mark);
        }
        self.map.remove(range.as_std());
        parts
    }

    fn put(&mut self, range: PageRange, mark: Mark) {
        self.count(range, mark);
        self.map.insert(range.as_std(), Cell::new(mark));
    }

    /// Forgets what is only known when there is much of it: a program may mark
    /// ever new addresses and unmap them behind our back. To mark such a range
    /// again costs a look at the mappings.
    fn bound(&mut self) {
        if self.map.len() <= self.most_ranges {
            return;
        }
        let volatile: Vec<_> = self.volatile().collect();
        self.map.clear();
        for (range, mark) in volatile {
            self.map.insert(range.as_std(), Cell::new(mark));
        }
        self.most_ranges = Self::FEW_RANGES.max(2 * self.map.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::sys::page_size;

    fn range(from: usize, to: usize) -> PageRange {
        PageRange::between(from * page_size(), to * page_size())
    }

    fn stamp(nanos: u64) -> Stamp {
        Stamp::from_nanos(nanos)
    }

    fn mark_known(marks: &mut Marks, range: PageRange, nanos: u64) {
        if !marks.mark(range, Priority::Normal, stamp(nanos)) {
            marks.mark_new(range, Priority::Normal, stamp(nanos));
        }
    }

    #[test]
    fn what_was_marked_once_is_known() {
        let mut marks = Marks::new();
        assert!(!marks.mark(range(1, 5), Priority::Low, stamp(1)));
        marks.mark_new(range(1, 5), Priority::Low, stamp(1));
        assert_eq!(marks.unmark(range(1, 5)), Unmarked::Intact);
        assert_eq!(marks.volatile_bytes(), 0);
        assert!(marks.mark(range(1, 5), Priority::Low, stamp(2)));
        assert!(
            marks.mark(range(2, 3), Priority::Low, stamp(3)),
            "a part is known, too"
        );
        assert!(!marks.mark(range(4, 6), Priority::Low, stamp(3)));
        assert_eq!(marks.unknown(range(0, 7)), [range(0, 1), range(5, 7)]);
        marks.forget(range(2, 3));
        assert!(!marks.mark(range(1, 5), Priority::Low, stamp(4)));
    }

    #[test]
    fn the_kernel_is_asked_only_about_what_is_offered() {
        let mut marks = Marks::new();
        mark_known(&mut marks, range(0, 10), 1);
        marks.settle(range(0, 10), true);
        assert_eq!(marks.due_bytes(), 0);
        mark_known(&mut marks, range(20, 30), 2);
        assert_eq!(marks.unmark(range(20, 30)), Unmarked::Intact);
        assert_eq!(marks.unmark(range(9, 25)), Unmarked::Ask);
        assert_eq!(marks.unmark(range(0, 10)), Unmarked::Ask);
        assert_eq!(marks.volatile_bytes(), 10 * page_size(), "still volatile");
        marks.set_known(range(0, 4));
        assert_eq!(marks.volatile_bytes(), 6 * page_size());
        // Marked again, it is due again, and still offered.
        mark_known(&mut marks, range(4, 10), 3);
        assert_eq!(marks.due_bytes(), 6 * page_size());
        assert_eq!(marks.unmark(range(4, 10)), Unmarked::Ask);
    }

    #[test]
    fn overlapping_marks_are_one_and_remember_what_was_offered() {
        let mut marks = Marks::new();
        mark_known(&mut marks, range(0, 4), 1);
        marks.settle(range(0, 4), true);
        mark_known(&mut marks, range(2, 8), 2);
        assert_eq!(marks.volatile_bytes(), 8 * page_size());
        assert_eq!(marks.due_bytes(), 6 * page_size());
        assert_eq!(marks.unmark(range(4, 8)), Unmarked::Intact);
        assert_eq!(marks.unmark(range(3, 4)), Unmarked::Ask);
    }

    #[test]
    fn what_cannot_be_offered_stays_and_is_not_due() {
        let mut marks = Marks::new();
        mark_known(&mut marks, range(0, 4), 1);
        marks.settle(range(0, 4), false);
        assert_eq!(
            (marks.due_bytes(), marks.volatile_bytes()),
            (0, 4 * page_size())
        );
        assert_eq!(marks.unmark(range(0, 4)), Unmarked::Intact);
    }

    #[test]
    fn what_is_only_known_is_forgotten_when_there_is_much() {
        let mut marks = Marks::new();
        marks.most_ranges = 10;
        for at in 0..20 {
            mark_known(&mut marks, range(2 * at, 2 * at + 1), 1);
            if at % 2 == 0 {
                marks.set_known(range(2 * at, 2 * at + 1));
                marks.bound();
            }
        }
        assert!(marks.map.len() <= 20);
        assert_eq!(marks.volatile_bytes(), 10 * page_size());
        assert_eq!(marks.volatile().count(), 10);
    }
}
