//! discard and punch: give the contents of a range up and keep its addresses.

use std::ops::RangeBounds;

use super::THRESHOLD_BYTES;
use crate::background::freeing::{AfterMove, Destination, defer_free};
use crate::ground::error::{Error, MemoryKind, Result};
use crate::ground::mapping::Mapping;
use crate::ground::range::PageRange;
use crate::ground::sys::Errno;
use crate::ground::sys::advise::DestructiveAdvice;
use crate::ground::sys::features::Features;
use crate::ground::sys::vma::{self, Vma};
use crate::observation::stats;
use crate::verbs::{advise_in_chunks, check_kind, check_vmas, lazy_free, volatile};

impl Mapping {
    /// Gives the contents of the given bytes up without waiting for their pages to be
    /// freed: `mremap(MREMAP_DONTUNMAP)` or `madvise(MADV_DONTNEED)`. When the call
    /// returns the bytes read as zeros; a private mapping of a file reads as the file
    /// again. The bounds must be whole pages.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::discard`]; [`Error::OutOfBounds`] and
    /// [`Error::Unaligned`] for bounds that are not inside the mapping or not
    /// whole pages.
    ///
    /// ```
    /// use tenure::Mapping;
    ///
    /// let mut memory = Mapping::anonymous(64 << 20).map()?;
    /// memory.as_mut_slice()?.fill(1);
    /// memory.discard(..)?;
    /// assert_eq!(memory.as_slice()[0], 0);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn discard(&mut self, bounds: impl RangeBounds<usize>) -> Result<()> {
        let range = self.pages_exactly(bounds)?;
        // SAFETY: the range is this mapping's own and borrowed mutably.
        unsafe { range.discard() }
    }

    /// Punches a hole into shared memory or a shared file: `madvise(MADV_REMOVE)`, in
    /// chunks. When the call returns the given bytes read as zeros, in every process
    /// and in the file, and their memory or blocks are free. The bounds must be whole
    /// pages.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::punch`]; [`Error::OutOfBounds`] and
    /// [`Error::Unaligned`] for bounds that are not inside the mapping or not
    /// whole pages.
    ///
    /// ```
    /// use tenure::{Mapping, MemfdPages};
    ///
    /// let mut memory = Mapping::memfd(1 << 20, MemfdPages::Base).map()?;
    /// memory.as_mut_slice()?.fill(1);
    /// memory.punch(..512 << 10)?;
    /// assert_eq!(memory.as_slice()[0], 0);
    /// assert_eq!(memory.as_slice()[512 << 10], 1);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn punch(&mut self, bounds: impl RangeBounds<usize>) -> Result<()> {
        let range = self.pages_exactly(bounds)?;
        // SAFETY: the range is this mapping's own and borrowed mutably.
        unsafe { range.punch() }
    }
}

impl PageRange {
    /// Gives the contents of the range up, like `madvise(MADV_DONTNEED)`, but without
    /// waiting for the pages to be freed. The range stays mapped: private anonymous
    /// memory reads as zeros, and a private mapping of a file reads as the file again.
    /// An empty range succeeds.
    ///
    /// Anonymous memory is moved away with `mremap(MREMAP_DONTUNMAP)` (Linux 5.7) where
    /// the range has 4 MiB and more of one mapping, and worker threads free its pages.
    /// Shorter parts, files, and memory that the kernel does not move take
    /// `MADV_DONTNEED` in chunks. Volatility of the range ends, and so do guard regions
    /// (MADV_GUARD_INSTALL) in what is moved.
    ///
    /// # Errors
    ///
    /// With nothing done:
    /// * [`Error::Hole`] when a part is not mapped,
    /// * [`Error::WrongKind`] for hugetlb memory, and for shared memory and shared
    ///   files, whose contents `MADV_DONTNEED` would not change
    ///   ([`punch`](PageRange::punch) gives them up, in all processes),
    /// * [`Error::Locked`] when a part is locked,
    /// * [`Error::Sealed`] when a part of anonymous memory is sealed (`mseal(2)`) and not
    ///   writable,
    /// * [`Error::MappingLimit`] for a part of an offered volatile range, when too few
    ///   mappings are left to split its registration.
    ///
    /// [`Error::SystemAt`] when the kernel refuses; a part may have been
    /// discarded.
    ///
    /// # Safety
    ///
    /// No code may rely on the contents of the range, and no reference to them may
    /// exist.
    pub unsafe fn discard(self) -> Result<()> {
        // SAFETY: the caller gives the contents up.
        unsafe { discard(self, usize::MAX) }
    }

    /// Punches a hole into shared memory or a shared file: `madvise(MADV_REMOVE)`, in
    /// chunks. When the call returns the range reads as zeros, in every process and in
    /// the file, which keeps its length, and its memory or blocks are free. An empty
    /// range succeeds.
    ///
    /// # Errors
    ///
    /// With nothing done:
    /// * [`Error::Hole`] when a part is not mapped,
    /// * [`Error::WrongKind`] for private memory ([`discard`](PageRange::discard)
    ///   gives its contents up),
    /// * [`Error::NoAccess`] when a part is mapped read-only,
    /// * [`Error::Locked`] when a part is locked.
    ///
    /// [`Error::Unsupported`] for a file system that has no holes;
    /// [`Error::SystemAt`] when the kernel refuses. A part may have been punched.
    ///
    /// # Safety
    ///
    /// No code, in this process or another, may rely on the contents of the range,
    /// and no reference to them may exist.
    pub unsafe fn punch(self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let is_shared = |kind| kind == MemoryKind::Shared;
        let vmas = check_kind("punch", self, is_shared, "shared memory and shared files")?;
        if let Some(vma) = vmas.iter().find(|vma| !vma.writable) {
            return Err(Error::NoAccess {
                verb: "punch",
                range: self,
                part: vma.range,
                missing: "write",
            });
        }
        for vma in vmas {
            // SAFETY: the caller gives the contents up, for all processes.
            let punched = unsafe {
                advise_in_chunks(vma.range, DestructiveAdvice::Remove, "madvise(MADV_REMOVE)")
            };
            punched.map_err(|error| match error {
                Error::SystemAt {
                    errno: errno @ Errno::OPNOTSUPP,
                    ..
                } => Error::Unsupported {
                    verb: "punch",
                    feature: "a hole in a file",
                    answer: errno,
                    remedy: "tmpfs, ext4, xfs and btrfs have them; else write zeros",
                },
                error => error,
            })?;
        }
        stats::PUNCH.done(self.len());
        Ok(())
    }
}

/// Gives the contents of a range of at most `max_mappings` up.
///
/// # Safety
///
/// As for [`PageRange::discard`].
pub(super) unsafe fn discard(range: PageRange, max_mappings: usize) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let is_private = |kind| matches!(kind, MemoryKind::PrivateAnonymous | MemoryKind::PrivateFile);
    let vmas = vma::cover_at_most(range, max_mappings)?;
    check_vmas("discard", range, &vmas, is_private, "private memory")?;
    volatile::forget_contents(range)?;
    lazy_free::forget_freed(range);
    let can_move = |vma: &Vma| {
        vma.kind == MemoryKind::PrivateAnonymous
            && vma.range.len() >= THRESHOLD_BYTES
            && Features::get().mremap_dontunmap.is_ok()
    };
    let (movable, fixed): (Vec<&Vma>, Vec<_>) = vmas.iter().partition(|vma| can_move(vma));
    let movable = movable.iter().map(|vma| vma.range).collect();
    // SAFETY: the checks above found private anonymous memory that is not locked;
    // the caller gives the contents up.
    let unmoved = unsafe { defer_free(movable, AfterMove::Empty, Destination::of_released()) };
    for part in unmoved.into_iter().chain(fixed.iter().map(|vma| vma.range)) {
        // SAFETY: the caller gives the contents up.
        unsafe { advise_in_chunks(part, DestructiveAdvice::DontNeed, "madvise(MADV_DONTNEED)") }?;
        stats::FREED_BY_CALLER_BYTES.add(part.len());
    }
    stats::DISCARD.done(range.len());
    Ok(())
}
