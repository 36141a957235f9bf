//! `Mapping`: memory that owns its range.

mod builder;

pub(crate) use builder::explain_mmap;
pub use builder::{HugePages, MappingBuilder, MemfdPages};

use std::ops::RangeBounds;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::error::{Error, Result};
use super::range::PageRange;

/// Mapped memory that this value owns: made by a [`MappingBuilder`], released
/// when dropped.
///
/// The verbs are methods: [`populate`](Mapping::populate),
/// [`lock`](Mapping::lock), [`lazy_free`](Mapping::lazy_free),
/// [`VolatileBuffer::from_mapping`], [`munmap`](Mapping::munmap) and
/// [`discard`](Mapping::discard). A verb after which the kernel may change the
/// bytes takes the mapping by value and returns another type, so that no
/// reference to such bytes can exist.
///
/// [`VolatileBuffer::from_mapping`]: crate::VolatileBuffer::from_mapping
///
/// ```
/// use tenure::{Access, Mapping};
///
/// let mut memory = Mapping::anonymous(1 << 20).map()?;
/// memory.populate(.., Access::Write)?;
/// memory.as_mut_slice()?[0] = 1;
/// assert_eq!(memory.as_slice()[..2], [1, 0]);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Debug)]
pub struct Mapping {
    /// The mapped pages.
    range: PageRange,
    /// The length that the caller requested, in bytes.
    len: usize,
    writable: bool,
    /// The mapped file and the offset of the first byte in it, if writes to the
    /// memory reach the file.
    file: Option<(OwnedFd, u64)>,
}

impl Mapping {
    /// Returns the mapped pages: at least [`len`](Mapping::len) bytes.
    pub fn range(&self) -> PageRange {
        self.range
    }

    /// Returns the requested length, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.range.as_ptr()
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Borrows the bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` bytes stay mapped readable as long as `self` lives.
        // Nobody else changes them: the builder made them private to this
        // value, or the caller of `Mapping::file` promised it. Every verb that
        // lets the kernel change them consumes the mapping.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }

    /// Borrows the bytes mutably.
    ///
    /// # Errors
    ///
    /// [`Error::NoAccess`] for a file that was mapped read-only.
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8]> {
        if !self.writable {
            return Err(Error::NoAccess {
                verb: "write to",
                range: self.range,
                part: self.range,
                missing: "write",
            });
        }
        // SAFETY: as in `as_slice`; they are mapped writable (checked above),
        // and `self` is borrowed mutably.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len) })
    }

    /// Returns the file that writes to this memory reach, and the offset of the
    /// first byte in it.
    pub(crate) fn writable_file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        self.file
            .as_ref()
            .map(|(file, offset)| (file.as_fd(), *offset))
    }

    /// Closes the descriptor, for a caller that unmaps the memory without
    /// dropping this value.
    pub(crate) fn close_file(&mut self) {
        self.file = None;
    }

    /// Returns the pages that hold the bytes: for verbs that lose no data.
    pub(crate) fn pages_covering(&self, bounds: impl RangeBounds<usize>) -> Result<PageRange> {
        let (addr, len) = self.range.slice(bounds)?;
        PageRange::covering(addr, len)
    }

    /// Returns the pages of bounds that must be whole pages: for verbs that
    /// lose data.
    pub(crate) fn pages_exactly(&self, bounds: impl RangeBounds<usize>) -> Result<PageRange> {
        let (addr, len) = self.range.slice(bounds)?;
        PageRange::new(addr, len)
    }
}
