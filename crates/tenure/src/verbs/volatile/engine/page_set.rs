//! A set of pages, as ranges.

use rangemap::RangeSet;

use crate::ground::range::PageRange;

/// A set of pages.
pub(super) struct PageSet(RangeSet<usize>);

impl PageSet {
    pub(super) const fn new() -> Self {
        Self(RangeSet::new())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns how many ranges the set consists of.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the set would have one more range with this one, which touches
    /// none of them.
    pub(super) fn would_grow_by(&self, range: PageRange) -> bool {
        let touches_start = self.0.contains(&range.start().saturating_sub(1));
        !touches_start && !self.0.contains(&range.end()) && !self.overlaps(range)
    }

    /// Returns whether the set would have one more range without this one, which lies
    /// inside one of them.
    pub(super) fn would_split_at(&self, range: PageRange) -> bool {
        let around = self.0.get(&range.start());
        around.is_some_and(|around| around.start < range.start() && range.end() < around.end)
    }

    /// Adds the range. Returns how many bytes of it were not in the set.
    pub(super) fn insert(&mut self, range: PageRange) -> usize {
        let new_bytes = self.gap_bytes(range);
        self.0.insert(range.as_std());
        new_bytes
    }

    pub(super) fn remove(&mut self, range: PageRange) {
        self.0.remove(range.as_std());
    }

    /// Returns whether the page at the address is in the set.
    pub(super) fn contains(&self, at: usize) -> bool {
        self.0.contains(&at)
    }

    /// Returns the part of the range around the page at the address that is in the set.
    pub(super) fn part_at(&self, at: usize, range: PageRange) -> Option<PageRange> {
        let part = self.0.get(&at)?;
        PageRange::from(part.clone()).intersection(range)
    }

    /// Returns whether the whole range is in the set.
    pub(super) fn contains_all(&self, range: PageRange) -> bool {
        self.0.gaps(&range.as_std()).next().is_none()
    }

    /// Returns whether a page of the range is in the set.
    pub(super) fn overlaps(&self, range: PageRange) -> bool {
        self.0.overlaps(&range.as_std())
    }

    /// Returns the ranges of the set, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = PageRange> {
        self.0.iter().cloned().map(PageRange::from)
    }

    /// Returns the parts of the range that are in the set, in order.
    pub(super) fn parts(&self, range: PageRange) -> Vec<PageRange> {
        self.each_part(range).collect()
    }

    /// Returns the parts of the range that are in the set, in order, without a list.
    pub(super) fn each_part(&self, range: PageRange) -> impl Iterator<Item = PageRange> {
        self.0
            .overlapping(range.as_std())
            .filter_map(move |part| PageRange::from(part.clone()).intersection(range))
    }

    /// Returns where the first `count` parts of the range that are in the set end; the end
    /// of the range if there are fewer.
    pub(super) fn end_after(&self, range: PageRange, count: usize) -> usize {
        let last = self.each_part(range).nth(count - 1);
        last.map_or(range.end(), PageRange::end)
    }

    /// Returns the first part of the range that is not in the set.
    pub(super) fn first_gap(&self, range: PageRange) -> Option<PageRange> {
        self.0.gaps(&range.as_std()).next().map(PageRange::from)
    }

    /// Returns the parts of the range that are not in the set, in order.
    pub(super) fn gaps(&self, range: PageRange) -> Vec<PageRange> {
        self.0.gaps(&range.as_std()).map(PageRange::from).collect()
    }

    fn gap_bytes(&self, range: PageRange) -> usize {
        self.0.gaps(&range.as_std()).map(|gap| gap.len()).sum()
    }
}
