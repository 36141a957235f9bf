//! Which blocks of an arena are registered with the userfaultfd.

use crate::ground::range::PageRange;

/// The unit in which an arena is registered: what one page of the page tables maps, with
/// pages of 4 KiB. Blocks begin at multiples of it; the first and the last may be shorter.
pub(super) const BLOCK_BYTES: usize = 2 << 20;

/// Blocks of an arena that are registered. In these, every page of a buffer is present,
/// as the zero page if need be; elsewhere pages that were never touched are absent.
#[derive(Debug)]
pub(super) struct Blocks {
    arena: PageRange,
    is_registered: Box<[bool]>,
}

impl Blocks {
    /// Returns `None` if there is no memory for it.
    pub(super) fn none_of(arena: PageRange) -> Option<Self> {
        let first = arena.start() / BLOCK_BYTES;
        let count = arena.end().div_ceil(BLOCK_BYTES) - first;
        let mut is_registered = Vec::new();
        is_registered.try_reserve_exact(count).ok()?;
        is_registered.resize(count, false);
        Some(Self {
            arena,
            is_registered: is_registered.into_boxed_slice(),
        })
    }

    /// Returns the parts of the range, as long as possible, that are all registered or
    /// all not, in order, and which they are.
    pub(super) fn parts(&self, range: PageRange) -> impl Iterator<Item = (PageRange, bool)> {
        let mut start = range.start();
        std::iter::from_fn(move || {
            if start >= range.end() {
                return None;
            }
            let is_registered = self.is_registered[self.index(start)];
            let mut end = start;
            while end < range.end() && self.is_registered[self.index(end)] == is_registered {
                end = (end / BLOCK_BYTES + 1) * BLOCK_BYTES;
            }
            let part = PageRange::between(start, end.min(range.end()));
            start = part.end();
            Some((part, is_registered))
        })
    }

    /// Returns the registered parts of the range, in order.
    pub(super) fn registered(&self, range: PageRange) -> impl Iterator<Item = PageRange> {
        let parts = self.parts(range);
        parts.filter_map(|(part, is_registered)| is_registered.then_some(part))
    }

    /// Returns the blocks that overlap the range, clipped to the arena.
    pub(super) fn covering(&self, range: PageRange) -> PageRange {
        let start = range.start() / BLOCK_BYTES * BLOCK_BYTES;
        let end = range.end().next_multiple_of(BLOCK_BYTES);
        PageRange::between(start.max(self.arena.start()), end.min(self.arena.end()))
    }

    /// Returns the blocks that lie in the range as a whole; an empty range if none does.
    pub(super) fn within(&self, range: PageRange) -> PageRange {
        let start = range.start().next_multiple_of(BLOCK_BYTES);
        let end = range.end() / BLOCK_BYTES * BLOCK_BYTES;
        PageRange::between(start, end.max(start))
    }

    /// Returns how many bytes lie between the range and the end of the registered blocks
    /// before it; `None` if there are none.
    pub(super) fn gap_before(&self, range: PageRange) -> Option<PageRange> {
        let first = self.index(range.start());
        let before = self.is_registered[..first].iter().rposition(|&it| it)?;
        let block = self.arena.start() / BLOCK_BYTES + before + 1;
        let end = self.covering(range).start();
        Some(PageRange::between(block * BLOCK_BYTES, end))
    }

    /// Records whole blocks as registered, or not.
    pub(super) fn set(&mut self, blocks: PageRange, is_registered: bool) {
        if !blocks.is_empty() {
            let (first, last) = (self.index(blocks.start()), self.index(blocks.end() - 1));
            self.is_registered[first..=last].fill(is_registered);
        }
    }

    pub(super) fn clear(&mut self) {
        self.is_registered.fill(false);
    }

    fn index(&self, at: usize) -> usize {
        at / BLOCK_BYTES - self.arena.start() / BLOCK_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::sys::page_size;

    /// An arena that begins a page after a boundary and ends a page before one.
    fn arena() -> PageRange {
        PageRange::between(3 * BLOCK_BYTES + page_size(), 9 * BLOCK_BYTES - page_size())
    }

    #[test]
    fn parts_alternate_and_cover_the_range() {
        let mut blocks = Blocks::none_of(arena()).unwrap();
        assert_eq!(
            blocks.parts(arena()).collect::<Vec<_>>(),
            [(arena(), false)]
        );
        let fourth = PageRange::between(4 * BLOCK_BYTES, 5 * BLOCK_BYTES);
        let last = PageRange::between(8 * BLOCK_BYTES, arena().end());
        blocks.set(fourth, true);
        blocks.set(last, true);
        let parts: Vec<_> = blocks.parts(arena()).collect();
        assert_eq!(parts.len(), 4);
        assert_eq!(
            blocks.registered(arena()).collect::<Vec<_>>(),
            [fourth, last]
        );
        let inner = PageRange::between(fourth.end() - page_size(), fourth.end() + page_size());
        let parts: Vec<_> = blocks
            .parts(inner)
            .map(|(part, is)| (part.pages(), is))
            .collect();
        assert_eq!(parts, [(1, true), (1, false)]);
        blocks.clear();
        assert_eq!(blocks.registered(arena()).count(), 0);
    }

    #[test]
    fn blocks_round_outward_to_the_arena_and_inward() {
        let blocks = Blocks::none_of(arena()).unwrap();
        let first = PageRange::between(arena().start(), arena().start() + page_size());
        let covering = blocks.covering(first);
        assert_eq!(covering.start(), arena().start());
        assert_eq!(covering.end(), 4 * BLOCK_BYTES);
        assert!(blocks.within(first).is_empty());
        let within = blocks.within(arena());
        assert_eq!(
            (within.start(), within.end()),
            (4 * BLOCK_BYTES, 8 * BLOCK_BYTES)
        );
    }

    #[test]
    fn gap_reaches_to_the_registered_blocks_before() {
        let mut blocks = Blocks::none_of(arena()).unwrap();
        let sixth = PageRange::between(6 * BLOCK_BYTES + page_size(), 7 * BLOCK_BYTES);
        assert_eq!(blocks.gap_before(sixth), None);
        blocks.set(PageRange::between(arena().start(), 4 * BLOCK_BYTES), true);
        let gap = PageRange::between(4 * BLOCK_BYTES, 6 * BLOCK_BYTES);
        assert_eq!(blocks.gap_before(sixth), Some(gap));
    }
}
