//! release: the range goes away, or its contents do, at once for the caller.

use std::mem::ManuallyDrop;
use std::ops::RangeBounds;
use std::time::Duration;

use crate::background::freeing::{self, Leave, carry_off};
use crate::ground::error::{Error, MemoryKind, Refused, Result};
use crate::ground::mapping::Mapping;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{LockState, Losing, advise_losing, lock_state};
use crate::ground::sys::features::Features;
use crate::ground::sys::vma::{self, Vma};
use crate::ground::sys::{Errno, map, page_size};
use crate::verbs::{check_kind, lock, volatile};

/// Shorter parts take the plain system call, which is cheaper for them.
const THRESHOLD_BYTES: usize = 4 << 20;

/// What one plain call frees at most, so that the address space's lock is never
/// held for long.
const CHUNK_BYTES: usize = 32 << 20;

impl Mapping {
    /// Unmaps the memory at once for the caller; its pages are freed behind it.
    /// Dropping the mapping does the same. Until the worker is done the pages
    /// are still in use; [`drain`] waits for it.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::munmap`], with the mapping given back.
    ///
    /// ```
    /// use tenure::{Access, Mapping};
    ///
    /// let memory = Mapping::anonymous(64 << 20).map()?;
    /// memory.populate(.., Access::Write)?;
    /// memory.munmap()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn munmap(self) -> Result<(), Refused<Self>> {
        let mapping = ManuallyDrop::new(self);
        // SAFETY: the mapping is owned, so nothing borrows its bytes, and it is
        // not dropped as well.
        match unsafe { mapping.range().munmap() } {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused {
                value: ManuallyDrop::into_inner(mapping),
                error,
            }),
        }
    }

    /// Unmaps the memory and frees its pages before it returns: `munmap(2)`, in
    /// chunks that do not keep other threads waiting.
    ///
    /// # Errors
    ///
    /// As for [`munmap`](Mapping::munmap).
    ///
    /// ```
    /// use tenure::Mapping;
    ///
    /// let memory = Mapping::anonymous(64 << 20).map()?;
    /// memory.release_now()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn release_now(self) -> Result<(), Refused<Self>> {
        let mapping = ManuallyDrop::new(self);
        let range = mapping.range();
        forget(range);
        // SAFETY: the mapping is owned, so nothing borrows its bytes, and it is
        // not dropped as well.
        match unsafe { unmap_now(range) } {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused {
                value: ManuallyDrop::into_inner(mapping),
                error,
            }),
        }
    }

    /// Gives the contents of the bytes named up, at once for the caller: they
    /// read as zeros when the call returns, and their pages are freed behind
    /// it. Of a private mapping of a file the changes are given up, and the
    /// bytes read as in the file again. The bounds must be whole pages.
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

    /// Punches a hole into shared memory or a shared file: the bytes named read
    /// as zeros from now on, in every process and in the file, and their memory
    /// or blocks are free: `madvise(MADV_REMOVE)`, in chunks. The bounds must be
    /// whole pages.
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

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing borrows from a mapping that is dropped. What cannot
        // be unmapped (no room to split a mapping) stays mapped.
        let _ = unsafe { self.range().munmap() };
    }
}

impl PageRange {
    /// Unmaps the range: `munmap(2)` with its meaning, holes included, but at
    /// once for the caller.
    ///
    /// Anonymous memory of 4 MiB and more, private or shared, is moved out of
    /// the way with `mremap` and freed by worker threads; [`drain`] waits for
    /// that. Everything else is unmapped by the caller in chunks that do not
    /// keep other threads waiting: locked memory, so that it is no longer
    /// charged when the call returns; files and memfds, which stay open as long
    /// as they are mapped (seals, file locks, unmounting and drivers depend on
    /// it); hugetlb memory; and what the kernel does not move for want of
    /// address space or of room for one more mapping. Locks and volatility of
    /// the range end. An empty range succeeds.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when the kernel cannot split a mapping; what lies
    /// before it may have been unmapped, and contents are given up.
    /// [`Error::Unaligned`] for a part of a huge page.
    ///
    /// # Safety
    ///
    /// Nothing may use the range any more.
    pub unsafe fn munmap(self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        forget(self);
        // SAFETY: the caller gives the range up.
        unsafe { unmap_parts(self) }
    }

    /// Gives the contents of the range up, as `madvise(MADV_DONTNEED)` does, but
    /// at once for the caller: it stays mapped; private anonymous memory reads
    /// as zeros, private mappings of files read as in the file again. An empty
    /// range succeeds.
    ///
    /// From 4 MiB on the pages of anonymous memory are moved away with
    /// `mremap(MREMAP_DONTUNMAP)` (Linux 5.7) and freed by worker threads;
    /// shorter parts, files, and what the kernel does not move, take
    /// `MADV_DONTNEED` in chunks. Volatility of the range ends.
    ///
    /// # Errors
    ///
    /// With nothing done:
    /// * [`Error::Hole`] when a part is not mapped,
    /// * [`Error::WrongKind`] for shared memory and shared files, whose contents
    ///   the same advice would leave as they are ([`punch`](PageRange::punch)
    ///   gives them up, for everybody), and for hugetlb memory,
    /// * [`Error::Locked`] when a part is locked.
    ///
    /// [`Error::SystemAt`] when the kernel refuses; a part may have been
    /// discarded.
    ///
    /// # Safety
    ///
    /// Nothing may rely on the contents of the range, and no reference to them
    /// may exist.
    pub unsafe fn discard(self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let is_private =
            |kind| matches!(kind, MemoryKind::PrivateAnonymous | MemoryKind::PrivateFile);
        let vmas = check_kind("discard", self, is_private, "private memory")?;
        volatile::forget(self);
        let can_move = |vma: &Vma| {
            vma.kind == MemoryKind::PrivateAnonymous
                && vma.range.len() >= THRESHOLD_BYTES
                && Features::get().mremap_dontunmap.is_ok()
        };
        let (movable, fixed): (Vec<&Vma>, Vec<_>) = vmas.iter().partition(|vma| can_move(vma));
        let movable = movable.iter().map(|vma| vma.range).collect();
        // SAFETY: mappings of private anonymous memory that is not locked, as
        // just checked; the caller gives the contents up.
        let left = unsafe { carry_off(self, movable, Leave::Empty) };
        for part in left.into_iter().chain(fixed.iter().map(|vma| vma.range)) {
            // SAFETY: as above.
            unsafe { advise_in_chunks(part, Losing::DontNeed, "madvise(MADV_DONTNEED)") }?;
        }
        Ok(())
    }

    /// Punches a hole into shared memory or a shared file: the range reads as
    /// zeros from now on, in every process and in the file, which keeps its
    /// length, and the memory or the blocks behind it are free:
    /// `madvise(MADV_REMOVE)`, in chunks. An empty range succeeds.
    ///
    /// All of it is done when the call returns.
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
    /// [`Error::SystemAt`] when the kernel refuses, and a part may have been
    /// punched out.
    ///
    /// # Safety
    ///
    /// Nothing, in this process or another, may rely on the contents of the
    /// range, and no reference to them may exist.
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
            // SAFETY: shared memory, as just checked; the caller gives the
            // contents up.
            let punched =
                unsafe { advise_in_chunks(vma.range, Losing::Remove, "madvise(MADV_REMOVE)") };
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
        Ok(())
    }
}

/// Waits until all memory that [`munmap`](Mapping::munmap) and
/// [`discard`](Mapping::discard) left behind is freed, or until the time is
/// over. `None` waits as long as it takes.
///
/// # Errors
///
/// [`Error::TimedOut`] with what is still pending.
///
/// ```
/// # use std::time::Duration;
/// drop(tenure::Mapping::anonymous(64 << 20).map()?);
/// tenure::drain(Some(Duration::from_secs(10)))?;
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn drain(timeout: Option<Duration>) -> Result<()> {
    freeing::drain(timeout)
}

/// Before the range is free for others to map, lock and mark.
fn forget(range: PageRange) {
    volatile::forget(range);
    lock::forget(range);
}

/// # Safety
///
/// Nothing may use the range any more.
unsafe fn unmap_parts(range: PageRange) -> Result<()> {
    let vmas = (range.len() >= THRESHOLD_BYTES).then(|| vma::within(range).ok());
    let Some(vmas) = vmas.flatten() else {
        // Short, or without /proc.
        // SAFETY: handed on to the caller.
        return unsafe { unmap_plainly(range, page_size()) };
    };
    let (movable, fixed): (Vec<_>, Vec<_>) = vmas.into_iter().partition(can_move);
    let movable = movable.iter().map(|vma| vma.range).collect();
    // SAFETY: mappings of anonymous memory that is not locked, as just checked;
    // the caller gives them up.
    let left = unsafe { carry_off(range, movable, Leave::Unmapped) };
    let left = left.into_iter().map(|part| (part, page_size()));
    let fixed = fixed.iter().map(|vma| (vma.range, vma.page_bytes));
    for (part, page_bytes) in left.chain(fixed) {
        // SAFETY: handed on to the caller.
        unsafe { unmap_plainly(part, page_bytes) }?;
    }
    Ok(())
}

/// # Safety
///
/// Nothing may use the range any more.
unsafe fn unmap_now(range: PageRange) -> Result<()> {
    let Ok(vmas) = vma::within(range) else {
        // SAFETY: handed on to the caller.
        return unsafe { unmap_plainly(range, page_size()) };
    };
    for vma in vmas {
        // SAFETY: as above.
        unsafe { unmap_plainly(vma.range, vma.page_bytes) }?;
    }
    Ok(())
}

/// # Safety
///
/// Nothing may use the range any more.
unsafe fn unmap_plainly(range: PageRange, page_bytes: usize) -> Result<()> {
    for chunk in range.chunks(CHUNK_BYTES.max(page_bytes)) {
        // SAFETY: the caller gives the range up.
        let mut answer = unsafe { map::unmap(chunk) };
        if answer == Err(Errno::NOMEM) {
            // At vm.max_map_count no part of a mapping can be cut off, but whole
            // mappings can go.
            let rest = PageRange::between(chunk.start(), range.end());
            // SAFETY: as above.
            answer = unsafe { map::unmap(rest) };
            if answer.is_ok() {
                return Ok(());
            }
        }
        answer.map_err(|errno| explain_munmap(chunk, page_bytes, errno))?;
    }
    Ok(())
}

fn can_move(vma: &Vma) -> bool {
    let is_anonymous = match vma.kind {
        MemoryKind::PrivateAnonymous => true,
        MemoryKind::Shared => vma::is_shared_anonymous(vma.range.start()),
        _ => false,
    };
    vma.range.len() >= THRESHOLD_BYTES
        && is_anonymous
        && lock_state(vma.range) == Ok(LockState::Unlocked)
}

fn explain_munmap(range: PageRange, page_bytes: usize, errno: Errno) -> Error {
    match errno {
        Errno::NOMEM => Error::NoRoom {
            call: "munmap",
            range,
        },
        Errno::INVAL if page_bytes > page_size() => Error::Unaligned {
            addr: range.start(),
            len: range.len(),
            page_bytes,
        },
        errno => Error::SystemAt {
            call: "munmap",
            range,
            errno,
        },
    }
}

/// # Safety
///
/// Nothing may rely on the contents of the part, which the advice gives up.
unsafe fn advise_in_chunks(part: PageRange, advice: Losing, call: &'static str) -> Result<()> {
    for range in part.chunks(CHUNK_BYTES) {
        // SAFETY: handed on to the caller.
        unsafe { advise_losing(range, advice) }.map_err(|errno| Error::SystemAt {
            call,
            range,
            errno,
        })?;
    }
    Ok(())
}
