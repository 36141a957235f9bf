//! A range cut into chunks, and how much of each is in the page tables.

use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::{page_size, pagemap};

/// No folio of the page cache is larger, where pages have 4 KiB.
const MOST_BYTES: usize = 2 << 20;

/// A range cut into chunks at multiples of their size; the first and the last may
/// be shorter. (Multiples of the address, as those at which a fault brings
/// neighbours in.)
#[derive(Clone, Copy)]
pub(super) struct Chunks {
    range: PageRange,
    chunk_bytes: usize,
}

impl Chunks {
    /// Cuts a range into what is let go and tested as one: 2 MiB, for what
    /// belongs to one folio comes in, and is held, together. Less only where a
    /// budget would have too few of them.
    pub(super) fn of(range: PageRange, budget_bytes: Option<usize>) -> Self {
        const LEAST_PAGES: usize = 16;
        const IN_BUDGET: usize = 16;
        let share = budget_bytes.map_or(MOST_BYTES, |budget| budget / IN_BUDGET);
        let share = share.checked_ilog2().map_or(0, |log| 1 << log);
        Self {
            range,
            chunk_bytes: share.min(MOST_BYTES).max(LEAST_PAGES * page_size()),
        }
    }

    /// Whether what is done to one chunk leaves the others as they are: of a
    /// folio that one entry maps, all goes when a part is let go.
    pub(super) fn are_independent(self) -> bool {
        self.chunk_bytes >= MOST_BYTES
    }

    pub(super) fn count(self) -> usize {
        self.range.end().div_ceil(self.chunk_bytes) - self.first()
    }

    pub(super) fn get(self, index: usize) -> PageRange {
        let start = (self.first() + index) * self.chunk_bytes;
        PageRange::between(
            start.max(self.range.start()),
            (start + self.chunk_bytes).min(self.range.end()),
        )
    }

    /// The number of the first chunk, counted from address zero.
    fn first(self) -> usize {
        self.range.start() / self.chunk_bytes
    }

    /// Tells how many bytes of each chunk are in the page tables. Those that are
    /// known to be `full` count as such without a look.
    pub(super) fn present_bytes(self, full: impl Fn(usize) -> bool) -> Result<Vec<usize>> {
        let mut counts: Vec<usize> = (0..self.count())
            .map(|index| {
                if full(index) {
                    self.get(index).len()
                } else {
                    0
                }
            })
            .collect();
        let mut stretches: Vec<PageRange> = Vec::new();
        for chunk in (0..self.count())
            .filter(|&index| counts[index] == 0)
            .map(|index| self.get(index))
        {
            match stretches.last_mut() {
                Some(last) if last.end() == chunk.start() => {
                    *last = PageRange::between(last.start(), chunk.end());
                }
                _ => stretches.push(chunk),
            }
        }
        let note = |run: PageRange| {
            let mut at = run.start();
            while at < run.end() {
                let index = at / self.chunk_bytes - self.first();
                let next = run.end().min(self.get(index).end());
                counts[index] += next - at;
                at = next;
            }
        };
        pagemap::each_present(stretches, note).map_err(|errno| Error::System {
            call: "reading /proc/self/pagemap",
            errno,
        })?;
        Ok(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_range_once_at_multiples_of_their_size() {
        let chunk = 16 * page_size();
        for (start, end) in [(4, 8), (4, 9), (3, 8), (3, 4), (5, 6)] {
            for (cut_front, cut_back) in [(0, 0), (page_size(), 0), (page_size(), page_size())] {
                let range = PageRange::between(start * chunk + cut_front, end * chunk - cut_back);
                let chunks = Chunks::of(range, Some(0));
                assert_eq!(chunks.count(), end - start);
                let mut next = range.start();
                for index in 0..chunks.count() {
                    let part = chunks.get(index);
                    assert_eq!(part.start(), next);
                    next = part.end();
                    assert!(next.is_multiple_of(chunk) || next == range.end());
                }
                assert_eq!(next, range.end());
            }
        }
    }

    #[test]
    fn small_budgets_have_small_chunks() {
        let range = PageRange::between(0, 64 << 20);
        let count = |budget| Chunks::of(range, budget).count();
        assert_eq!(count(None), 32);
        assert_eq!(count(Some(usize::MAX)), 32);
        assert_eq!(count(Some(32 << 20)), 32);
        assert!(Chunks::of(range, None).are_independent());
        assert_eq!(count(Some(0)), range.pages() / 16);
    }
}
