//! release: the range goes away, or its contents do, at once for the caller.

mod contents;

use std::mem::ManuallyDrop;
use std::time::Duration;

use crate::background::freeing::{self, Leave, carry_off};
use crate::ground::error::{Error, MemoryKind, Refused, Result};
use crate::ground::mapping::Mapping;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{LockState, lock_state};
use crate::ground::sys::vma::{self, Vma};
use crate::ground::sys::{Errno, counters, map, page_size};
use crate::observation::stats;
use crate::verbs::{CHUNK_BYTES, lazy_free, lock, volatile};

/// Shorter parts take the plain system call, which is cheaper for them.
const THRESHOLD_BYTES: usize = 4 << 20;

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
        let mut mapping = ManuallyDrop::new(self);
        // SAFETY: the mapping is owned, so nothing borrows its bytes, and it is
        // not dropped as well.
        match unsafe { mapping.range().munmap() } {
            Ok(()) => {
                mapping.close_file();
                Ok(())
            }
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
        let mut mapping = ManuallyDrop::new(self);
        let range = mapping.range();
        forget(range);
        // SAFETY: the mapping is owned, so nothing borrows its bytes, and it is
        // not dropped as well.
        match unsafe { unmap_now(range) } {
            Ok(()) => {
                mapping.close_file();
                stats::MUNMAP.done(range.len());
                Ok(())
            }
            Err(error) => Err(Refused {
                value: ManuallyDrop::into_inner(mapping),
                error,
            }),
        }
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
    /// Nothing may use the range any more, nor what others have mapped into a hole
    /// of it: that goes with it. (Not the page of [`stats`](crate::stats).)
    pub unsafe fn munmap(self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        forget(self);
        for part in without_our_own(self) {
            // SAFETY: the caller gives the range up.
            unsafe { unmap_parts(part) }?;
        }
        stats::MUNMAP.done(self.len());
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

/// The range without the page of counters: the kernel may have put that into a
/// hole of the range, also in this very call.
fn without_our_own(range: PageRange) -> impl Iterator<Item = PageRange> {
    let page = counters::page().and_then(|page| page.intersection(range));
    let parts = match page {
        None => [(range.start(), range.end()), (range.end(), range.end())],
        Some(page) => [(range.start(), page.start()), (page.end(), range.end())],
    };
    let parts = parts.map(|(start, end)| PageRange::between(start, end));
    parts.into_iter().filter(|part| !part.is_empty())
}

/// Before the range is free for others to map, lock and mark.
fn forget(range: PageRange) {
    volatile::forget(range);
    lazy_free::forget(range);
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
                stats::FREED_BY_CALLER_BYTES.add(rest.len());
                return Ok(());
            }
        }
        answer.map_err(|errno| explain_munmap(chunk, page_bytes, errno))?;
        stats::FREED_BY_CALLER_BYTES.add(chunk.len());
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
