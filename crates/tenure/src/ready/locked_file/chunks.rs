//! The chunks of a range, and how much of each is in the page tables.

use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::pagemap::{self, PageRun};
use crate::ground::sys::pmd_bytes;

/// The most that one page-table entry maps, with pages of 4 KiB.
const MAX_BYTES: usize = 2 << 20;

/// A fault maps neighbours of so many bytes, whatever the size of a page.
const MIN_BYTES: usize = 64 << 10;

/// A range split into chunks at addresses that are multiples of their size; the first
/// and the last may be shorter. (A fault maps neighbours within such multiples, too.)
#[derive(Clone, Copy)]
pub(super) struct Chunks {
    range: PageRange,
    chunk_bytes: usize,
}

impl Chunks {
    /// Splits a range into chunks of 2 MiB, because the pages of one folio are faulted
    /// in and kept together. Chunks are smaller only if the budget would hold too few.
    pub(super) fn of(range: PageRange, budget_bytes: Option<usize>) -> Self {
        const MIN_IN_BUDGET: usize = 16;
        let share = budget_bytes.map_or(MAX_BYTES, |budget| budget / MIN_IN_BUDGET);
        let share = share.checked_ilog2().map_or(0, |log| 1 << log);
        Self {
            range,
            chunk_bytes: share.clamp(MIN_BYTES, MAX_BYTES),
        }
    }

    /// Whether evicting one chunk leaves the others as they are. If one page-table
    /// entry maps a whole folio, evicting a part of it evicts all of it: 2 MiB with pages
    /// of 4 KiB, but 32 MiB with those of 16 KiB.
    pub(super) fn are_independent(self) -> bool {
        self.chunk_bytes >= pmd_bytes()
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

    /// Returns the number of the first chunk, counted from address zero.
    fn first(self) -> usize {
        self.range.start() / self.chunk_bytes
    }

    /// Returns how many bytes of each chunk are in the page tables. Chunks that are
    /// `full` count as such without being scanned. (A page of a file that looks swapped
    /// out is migrating: compaction moves locked pages as well.)
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
        let mut unscanned: Vec<PageRange> = Vec::new();
        for chunk in (0..self.count())
            .filter(|&index| counts[index] == 0)
            .map(|index| self.get(index))
        {
            match unscanned.last_mut() {
                Some(last) if last.end() == chunk.start() => {
                    *last = PageRange::between(last.start(), chunk.end());
                }
                _ => unscanned.push(chunk),
            }
        }
        let mut add_run = |run: PageRun| {
            let mut at = run.range.start();
            while at < run.range.end() {
                let index = at / self.chunk_bytes - self.first();
                let next = run.range.end().min(self.get(index).end());
                counts[index] += next - at;
                at = next;
            }
        };
        for range in unscanned {
            pagemap::for_each_populated(range, &mut add_run).map_err(|errno| Error::System {
                call: "reading /proc/self/pagemap",
                errno,
            })?;
        }
        Ok(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::sys::page_size;

    #[test]
    fn chunks_cover_the_range_once_at_multiples_of_their_size() {
        let chunk = 16 * page_size();
        for (start, end) in [(4, 8), (4, 9), (3, 8), (3, 4), (5, 6)] {
            for (cut_front, cut_back) in [(0, 0), (page_size(), 0), (page_size(), page_size())] {
                let range = PageRange::between(start * chunk + cut_front, end * chunk - cut_back);
                let chunks = Chunks::of(range, Some(16 * chunk));
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
    fn small_budget_gives_small_chunks() {
        let range = PageRange::between(0, 64 << 20);
        let count = |budget| Chunks::of(range, budget).count();
        assert_eq!(count(None), 32);
        assert_eq!(count(Some(usize::MAX)), 32);
        assert_eq!(count(Some(32 << 20)), 32);
        let largest = Chunks::of(range, None);
        assert_eq!(largest.are_independent(), pmd_bytes() <= MAX_BYTES);
        assert_eq!(count(Some(0)), range.len() / MIN_BYTES);
    }
}
