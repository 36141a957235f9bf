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
use crate::verbs::{check_private_anonymous, lock, volatile};

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

    /// Gives the contents of the bytes named up, at once for the caller: they
    /// read as zeros when the call returns, and their pages are freed behind
    /// it. The bounds must be whole pages.
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
    /// Private anonymous memory of 4 MiB and more is moved out of the way with
    /// `mremap` and freed by a worker thread; [`drain`] waits for
    /// that. Everything else (files, shared, hugetlb and locked memory), and
    /// what the kernel does not move (for want of address space or of room for
    /// one more mapping), is unmapped by the caller in chunks that do not keep
    /// other threads waiting. Locks and volatility of the range end. An empty
    /// range succeeds.
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
        // Before the range is free for others to map, lock and mark.
        volatile::forget(self);
        lock::forget(self);
        // SAFETY: the caller gives the range up.
        unsafe { unmap_parts(self) }
    }

    /// Gives the contents of the range up: it stays mapped and reads as zeros,
    /// as after `madvise(MADV_DONTNEED)`, but at once for the caller. An empty
    /// range succeeds.
    ///
    /// From 4 MiB on the pages are moved away with `mremap(MREMAP_DONTUNMAP)`
    /// (Linux 5.7) and freed by a worker thread; shorter parts, and what the
    /// kernel does not move, take `MADV_DONTNEED` in chunks. Volatility of the
    /// range ends.
    ///
    /// # Errors
    ///
    /// With nothing done:
    /// * [`Error::Hole`] when a part is not mapped,
    /// * [`Error::WrongKind`] for shared, file-backed and hugetlb memory, where
    ///   the same advice has another meaning,
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
        let vmas = check_private_anonymous("discard", self)?;
        volatile::forget(self);
        let moves = Features::get().mremap_dontunmap.is_ok();
        let parts = vmas.iter().map(|vma| vma.range);
        let (large, small): (Vec<_>, Vec<_>) =
            parts.partition(|part| moves && part.len() >= THRESHOLD_BYTES);
        // SAFETY: mappings of private anonymous memory that is not locked, as
        // just checked; the caller gives the contents up.
        let left = unsafe { carry_off(self, large, Leave::Empty) };
        for part in left.into_iter().chain(small) {
            // SAFETY: as above.
            unsafe { discard_plainly(part) }?;
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

/// # Safety
///
/// Nothing may use the range any more.
unsafe fn unmap_parts(range: PageRange) -> Result<()> {
    // Without /proc all of it goes the plain way.
    let Some(vmas) = (range.len() >= THRESHOLD_BYTES)
        .then(|| vma::within(range).ok())
        .flatten()
    else {
        // SAFETY: handed on to the caller.
        return unsafe { unmap_plainly(range, page_size()) };
    };
    let (movable, fixed): (Vec<_>, Vec<_>) = vmas.into_iter().partition(can_move);
    let movable = movable.iter().map(|vma| vma.range).collect();
    // SAFETY: mappings of private anonymous memory that is not locked, as just
    // checked; the caller gives them up.
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
unsafe fn unmap_plainly(range: PageRange, page_bytes: usize) -> Result<()> {
    for chunk in range.chunks(CHUNK_BYTES.max(page_bytes)) {
        // SAFETY: the caller gives the range up.
        unsafe { map::unmap(chunk) }.map_err(|errno| explain_munmap(chunk, page_bytes, errno))?;
    }
    Ok(())
}

fn can_move(vma: &Vma) -> bool {
    vma.kind == MemoryKind::PrivateAnonymous
        && vma.range.len() >= THRESHOLD_BYTES
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
/// The part must be private anonymous memory, and nothing may rely on its
/// contents.
unsafe fn discard_plainly(part: PageRange) -> Result<()> {
    for chunk in part.chunks(CHUNK_BYTES) {
        // SAFETY: handed on to the caller.
        unsafe { advise_losing(chunk, Losing::DontNeed) }.map_err(|errno| Error::SystemAt {
            call: "madvise(MADV_DONTNEED)",
            range: chunk,
            errno,
        })?;
    }
    Ok(())
}
