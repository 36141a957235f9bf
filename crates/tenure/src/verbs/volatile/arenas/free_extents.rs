//! The free pages of an arena.

use std::collections::{BTreeMap, BTreeSet};

use crate::ground::range::PageRange;

/// Extents of free pages, no two of them neighbours.
#[derive(Debug)]
pub(super) struct FreeExtents {
    /// The end of each, by its start.
    by_start: BTreeMap<usize, usize>,
    /// Length and start of each.
    by_len: BTreeSet<(usize, usize)>,
}

impl FreeExtents {
    pub(super) fn new(all: PageRange) -> Self {
        let mut extents = Self {
            by_start: BTreeMap::new(),
            by_len: BTreeSet::new(),
        };
        extents.insert(all.start(), all.end());
        extents
    }

    /// Takes `len` bytes from the shortest extent that has them, from the one with the
    /// lowest address among equals.
    #[cfg(any(test, fuzzing))]
    pub(super) fn take(&mut self, len: usize) -> Option<PageRange> {
        self.take_up_to(len, len)
    }

    /// Takes `len` bytes, and up to `max_len` if they follow, from the shortest extent
    /// that has `len` bytes, from the one with the lowest address among equals.
    pub(super) fn take_up_to(&mut self, len: usize, max_len: usize) -> Option<PageRange> {
        let &(extent_len, start) = self.by_len.range((len, 0)..).next()?;
        let end = self.remove(start)?;
        let middle = start + extent_len.min(max_len);
        if middle < end {
            self.insert(middle, end);
        }
        Some(PageRange::between(start, middle))
    }

    /// Puts a taken range back, and merges it with its neighbours.
    pub(super) fn put_back(&mut self, range: PageRange) {
        let (mut start, mut end) = (range.start(), range.end());
        let before = self.by_start.range(..start).next_back();
        if let Some((&left, &left_end)) = before
            && left_end == start
        {
            self.remove(left);
            start = left;
        }
        if let Some(right_end) = self.remove(end) {
            end = right_end;
        }
        self.insert(start, end);
    }

    /// Returns the length of the longest extent, in bytes.
    pub(super) fn longest(&self) -> usize {
        self.by_len.last().map_or(0, |&(len, _)| len)
    }

    fn insert(&mut self, start: usize, end: usize) {
        self.by_start.insert(start, end);
        self.by_len.insert((end - start, start));
    }

    fn remove(&mut self, start: usize) -> Option<usize> {
        let end = self.by_start.remove(&start)?;
        self.by_len.remove(&(end - start, start));
        Some(end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ground::sys::page_size;

    fn range(from: usize, to: usize) -> PageRange {
        PageRange::between(from * page_size(), to * page_size())
    }

    #[test]
    fn put_back_merges_neighbours() {
        let mut extents = FreeExtents::new(range(10, 20));
        let all: Vec<_> = (0..10)
            .map(|_| extents.take(page_size()).unwrap())
            .collect();
        assert_eq!((all[0], all[9]), (range(10, 11), range(19, 20)));
        assert_eq!((extents.take(page_size()), extents.longest()), (None, 0));
        for &at in &[3, 5, 4, 0, 9, 1, 8, 2, 7, 6] {
            extents.put_back(all[at]);
        }
        assert_eq!(extents.longest(), 10 * page_size());
        assert_eq!(extents.by_start.len(), 1);
    }

    #[test]
    fn take_uses_the_shortest_sufficient_extent() {
        let mut extents = FreeExtents::new(range(0, 20));
        let first = extents.take(4 * page_size()).unwrap();
        let _wall = extents.take(page_size()).unwrap();
        extents.put_back(first);
        assert_eq!(extents.take(3 * page_size()), Some(range(0, 3)));
        assert_eq!(extents.take(5 * page_size()), Some(range(5, 10)));
    }

    proptest! {
        /// Compares with a plain list of pages.
        #[test]
        fn take_and_put_back_agree_with_a_list_of_pages(steps in prop::collection::vec((any::<bool>(), 1usize..8), 1..200)) {
            const PAGES: usize = 64;
            let mut extents = FreeExtents::new(range(1, 1 + PAGES));
            let mut free = [true; PAGES];
            let mut taken: Vec<PageRange> = Vec::new();
            let pages = |range: PageRange| {
                let first = range.start() / page_size() - 1;
                first..first + range.pages()
            };
            for (takes, count) in steps {
                if takes {
                    let fits = free.windows(count).any(|window| window.iter().all(|&page| page));
                    let got = extents.take(count * page_size());
                    prop_assert_eq!(got.is_some(), fits);
                    if let Some(got) = got {
                        prop_assert_eq!(got.pages(), count);
                        prop_assert!(free[pages(got)].iter().all(|&page| page));
                        free[pages(got)].fill(false);
                        taken.push(got);
                    }
                } else if !taken.is_empty() {
                    let back = taken.swap_remove(count % taken.len());
                    free[pages(back)].fill(true);
                    extents.put_back(back);
                }
            }
        }
    }
}
