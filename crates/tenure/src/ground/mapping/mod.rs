//! A mapping of memory that owns its range.

mod builder;

pub(crate) use builder::explain_mmap;
pub use builder::{HugePages, MappingBuilder, MemfdPages};

use std::ops::RangeBounds;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::error::{Error, Result};
use super::range::PageRange;

/// Mapped memory that is this value's own: made by a [`MappingBuilder`],
/// released when dropped.
///
/// The verbs are methods: [`populate`](Mapping::populate),
/// [`lock`](Mapping::lock), [`lazy_free`](Mapping::lazy_free),
/// [`VolatileBuffer::from_mapping`], [`munmap`](Mapping::munmap) and
/// [`discard`](Mapping::discard). Those that may change bytes behind the
/// program's back take the mapping by value and give back another type, so that
/// no reference to such bytes can exist.
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
    /// What is mapped: whole pages.
    range: PageRange,
    /// What was asked for, in bytes.
    len: usize,
    writable: bool,
    /// The file behind it, and the offset of its first byte, if writing to the
    /// memory writes to the file.
    file: Option<(OwnedFd, u64)>,
}

impl Mapping {
    /// The pages that are mapped: at least [`len`](Mapping::len) bytes.
    pub fn range(&self) -> PageRange {
        self.range
    }

    /// The length asked for, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The first byte's address.
    pub fn as_ptr(&self) -> *mut u8 {
        self.range.as_ptr()
    }

    /// Lends the bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` bytes are mapped readable for as long as `self` lives,
        // the builder has seen to it (or, for a file, its caller has promised)
        // that nobody else changes them, and whatever would let the kernel
        // change them consumes the mapping.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }

    /// Lends the bytes for changing.
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
        // SAFETY: as in `as_slice`; mapped writable, and borrowed mutably.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len) })
    }

    /// The file that writing to this memory writes to, and the offset of the
    /// first byte in it.
    pub(crate) fn writable_file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        self.file
            .as_ref()
            .map(|(file, offset)| (file.as_fd(), *offset))
    }

    /// Closes the descriptor, for who unmaps the memory without dropping this.
    pub(crate) fn close_file(&mut self) {
        self.file = None;
    }

    /// The pages that hold the bytes named: for verbs that lose nothing.
    pub(crate) fn pages_covering(&self, bounds: impl RangeBounds<usize>) -> Result<PageRange> {
        let (addr, len) = self.range.slice(bounds)?;
        PageRange::covering(addr, len)
    }

    /// The pages named, which must be whole: for verbs that lose contents.
    pub(crate) fn pages_exactly(&self, bounds: impl RangeBounds<usize>) -> Result<PageRange> {
        let (addr, len) = self.range.slice(bounds)?;
        PageRange::new(addr, len)
    }
}
