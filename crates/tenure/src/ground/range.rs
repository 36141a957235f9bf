//! `PageRange`: a page-aligned range of addresses, which every verb takes.

use std::fmt;
use std::ops::{Bound, RangeBounds};

use super::bytes::Bytes;
use super::error::{Error, Result};
use super::sys;

/// A range of this process's addresses that starts on a page boundary and has a
/// whole number of pages.
///
/// A `PageRange` owns nothing: it only names addresses. The program may map
/// something else there at any time, so every verb checks the mappings again.
/// [`Mapping`] is the type that owns its memory.
///
/// [`Mapping`]: crate::Mapping
///
/// ```
/// use tenure::PageRange;
///
/// let page = tenure::page_size();
/// let range = PageRange::new(0x10 * page, 4 * page)?;
/// assert_eq!(range.pages(), 4);
/// assert!(PageRange::new(0x10 * page + 1, page).is_err());
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageRange {
    start: usize,
    len: usize,
}

impl PageRange {
    /// Names the `len` bytes at `addr`. Both must be multiples of the page
    /// size.
    ///
    /// `len == 0` is allowed and makes an empty range.
    ///
    /// # Errors
    ///
    /// [`Error::Unaligned`] when `addr` or `len` is not a multiple of
    /// [`page_size`](crate::page_size); [`Error::Overflow`] when the range
    /// would go past the end of the address space.
    pub fn new(addr: usize, len: usize) -> Result<Self> {
        let page_bytes = sys::page_size();
        if !addr.is_multiple_of(page_bytes) || !len.is_multiple_of(page_bytes) {
            return Err(Error::Unaligned {
                addr,
                len,
                page_bytes,
            });
        }
        if addr.checked_add(len).is_none() {
            return Err(Error::Overflow { addr, len });
        }
        Ok(Self { start: addr, len })
    }

    /// Names the pages that hold the `len` bytes at `addr`: rounds the length
    /// up, as `mlock(2)` does.
    ///
    /// Use it for verbs that lose no data (populate, lock). The others would
    /// destroy a neighbour's bytes: build their ranges with [`PageRange::new`].
    ///
    /// # Errors
    ///
    /// [`Error::Unaligned`] when `addr` is not on a page boundary;
    /// [`Error::Overflow`] when the range would go past the end of the address
    /// space.
    pub fn covering(addr: usize, len: usize) -> Result<Self> {
        let rounded = len
            .checked_next_multiple_of(sys::page_size())
            .ok_or(Error::Overflow { addr, len })?;
        Self::new(addr, rounded)
    }

    /// Makes the range `start..end` of two page-aligned addresses.
    pub(crate) fn between(start: usize, end: usize) -> Self {
        debug_assert!(start <= end);
        debug_assert!((start | end).is_multiple_of(sys::page_size()));
        Self {
            start,
            len: end - start,
        }
    }

    /// Returns the first address.
    pub fn start(self) -> usize {
        self.start
    }

    /// Returns the first address past the range.
    pub fn end(self) -> usize {
        self.start + self.len
    }

    /// Returns the length in bytes.
    pub fn len(self) -> usize {
        self.len
    }

    /// Returns whether the range is empty.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns the length in pages.
    pub fn pages(self) -> usize {
        self.len / sys::page_size()
    }

    /// Returns the first address as a pointer.
    pub fn as_ptr(self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.start)
    }

    /// Returns the part that lies in both ranges, if there is one.
    pub fn intersection(self, other: Self) -> Option<Self> {
        let start = self.start.max(other.start);
        let end = self.end().min(other.end());
        (start < end).then(|| Self::between(start, end))
    }

    /// Returns whether `other` lies wholly inside this range.
    pub fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }

    /// Cuts the range into chunks of `chunk_bytes` (a whole number of pages);
    /// the last one may be shorter.
    pub(crate) fn chunks(self, chunk_bytes: usize) -> impl Iterator<Item = Self> {
        debug_assert!(chunk_bytes > 0 && chunk_bytes.is_multiple_of(sys::page_size()));
        (0..self.len).step_by(chunk_bytes).map(move |at| {
            let start = self.start + at;
            // The range may end at the top of the address space.
            Self::between(start, start.saturating_add(chunk_bytes).min(self.end()))
        })
    }

    /// Resolves byte bounds inside this range to an address and a length.
    pub(crate) fn slice(self, bounds: impl RangeBounds<usize>) -> Result<(usize, usize)> {
        let from = match bounds.start_bound() {
            Bound::Included(&at) => at,
            Bound::Excluded(&at) => at.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let to = match bounds.end_bound() {
            Bound::Included(&at) => at.saturating_add(1),
            Bound::Excluded(&at) => at,
            Bound::Unbounded => self.len,
        };
        if from > to || to > self.len {
            return Err(Error::OutOfBounds {
                from,
                to,
                len: self.len,
            });
        }
        Ok((self.start + from, to - from))
    }

    pub(crate) fn as_std(self) -> std::ops::Range<usize> {
        self.start..self.end()
    }
}

impl From<std::ops::Range<usize>> for PageRange {
    /// Converts a range of tenure's own registries, which hold whole pages
    /// only.
    fn from(range: std::ops::Range<usize>) -> Self {
        Self::between(range.start, range.end)
    }
}

impl fmt::Display for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:#x}-{:#x} ({})",
            self.start,
            self.end(),
            Bytes(self.len)
        )
    }
}

impl fmt::Debug for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(start: usize, count: usize) -> PageRange {
        PageRange::new(start * sys::page_size(), count * sys::page_size()).unwrap()
    }

    #[test]
    fn new_unaligned_or_overflowing_range_is_error() {
        let page = sys::page_size();
        assert!(matches!(
            PageRange::new(page + 1, page),
            Err(Error::Unaligned { .. })
        ));
        assert!(matches!(
            PageRange::new(page, page + 1),
            Err(Error::Unaligned { .. })
        ));
        let last = usize::MAX - page + 1;
        assert!(matches!(
            PageRange::new(last, page),
            Err(Error::Overflow { .. })
        ));
        assert!(matches!(
            PageRange::covering(page, usize::MAX),
            Err(Error::Overflow { .. })
        ));
    }

    #[test]
    fn covering_partial_page_rounds_length_up() {
        let page = sys::page_size();
        assert_eq!(PageRange::covering(page, 1).unwrap(), pages(1, 1));
        assert_eq!(PageRange::covering(page, page).unwrap(), pages(1, 1));
        assert_eq!(PageRange::covering(page, 0).unwrap(), pages(1, 0));
    }

    #[test]
    fn intersection_and_contains_match_set_operations() {
        assert_eq!(pages(1, 4).intersection(pages(3, 4)), Some(pages(3, 2)));
        assert_eq!(pages(1, 2).intersection(pages(3, 2)), None);
        assert!(pages(1, 4).contains(pages(2, 3)));
        assert!(!pages(1, 4).contains(pages(2, 4)));
    }

    #[test]
    fn chunks_of_range_cover_it_once() {
        let page = sys::page_size();
        let got: Vec<_> = pages(1, 5).chunks(2 * page).collect();
        assert_eq!(got, [pages(1, 2), pages(3, 2), pages(5, 1)]);
        assert_eq!(pages(1, 0).chunks(page).count(), 0);
    }

    #[test]
    fn slice_outside_range_is_error() {
        let range = pages(4, 4);
        let page = sys::page_size();
        assert_eq!(range.slice(..).unwrap(), (range.start(), range.len()));
        assert_eq!(
            range.slice(page..=2 * page - 1).unwrap(),
            (range.start() + page, page)
        );
        assert_eq!(range.slice(range.len()..).unwrap(), (range.end(), 0));
        assert!(matches!(
            range.slice(..=range.len()),
            Err(Error::OutOfBounds { .. })
        ));
        assert!(matches!(
            range.slice((Bound::Included(5), Bound::Excluded(3))),
            Err(Error::OutOfBounds { .. })
        ));
    }

    #[test]
    fn chunks_at_top_of_address_space_do_not_overflow() {
        let page = sys::page_size();
        let last = PageRange::between(
            usize::MAX / page * page - 3 * page,
            usize::MAX / page * page,
        );
        let chunks: Vec<_> = last.chunks(2 * page).map(PageRange::pages).collect();
        assert_eq!(chunks, [2, 1]);
    }
}
