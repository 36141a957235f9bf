//! Release: memory goes back to the kernel, and the caller does not wait for it.
//!
//! `munmap(2)` and `madvise(MADV_DONTNEED)` free every page before they return. tenure
//! moves the pages away with `mremap(2)` instead, which only moves page tables, and
//! worker threads free them. For 4 GiB the caller waits 104 µs instead of 265 ms (a
//! virtual machine with 2 CPUs, Linux 6.18; `docs/RESULTS.md`).
//!
//! | call | addresses afterwards | contents afterwards |
//! | --- | --- | --- |
//! | [`Mapping::munmap`], dropping a [`Mapping`], [`PageRange::munmap`] | unmapped | none |
//! | [`Mapping::munmap_sync`] | unmapped; the pages are free when it returns | none |
//! | [`Mapping::discard`], [`PageRange::discard`] | mapped | zeros, or the file again |
//! | [`Mapping::punch`], [`PageRange::punch`] | mapped | zeros, in all processes and in the file |
//!
//! # Ranges and units
//!
//! All ranges are whole pages; bounds given to a [`Mapping`] are bytes and must be
//! multiples of the page size, because rounding would destroy contents. An empty range
//! succeeds. `munmap` accepts holes, like `munmap(2)`; `discard` and `punch` return
//! [`Error::Hole`].
//!
//! # How the pages are freed
//!
//! The caller reserves an address range with the same offset within 1 GiB (or 2 MiB),
//! moves the pages there, and puts that range into a queue. Equal offsets let the kernel
//! move a whole page-table page at a step; [`Mapping`] aligns mappings of 1 GiB and more
//! to 1 GiB for this. All address ranges are reserved before anything moves. Moved memory
//! is excluded from core dumps and from children.
//!
//! Worker threads (`tenure-free`) free the oldest range first, in chunks of about 0.2
//! ms, so that the next release and other threads' `mmap` do not wait long. While much is pending, one more
//! worker is tried, and kept if freeing becomes a tenth faster. While a caller waits in
//! [`drain`], or memory is short, there are as many workers as [`ReleaseLimits`] allows,
//! and they do not yield to other threads. They run on the CPUs that the main thread could
//! use when the program was loaded, whatever the caller is pinned to.
//!
//! A release makes no program fail that runs with `munmap`: at most half of the
//! headroom is pending, and the caller frees the rest of its memory before the call
//! returns. It frees all of it where the headroom cannot be read, under strict overcommit
//! (`vm.overcommit_memory` = 2), and where `RLIMIT_AS` or `RLIMIT_DATA` leaves less than
//! the machine has memory, because one `mmap` can take all that these leave. So it does from
//! the time on when 4 MiB and more of the process's memory were merged with equal pages (KSM,
//! MADV_MERGEABLE): the kernel would unmerge them to move them. A new
//! [`Mapping`] that the kernel refuses, and [`populate`](crate::populate), wait for pending
//! memory before they fail.
//!
//! Only anonymous memory is moved, where the range has 4 MiB and more of one mapping
//! (VMA): many smaller mappings are not moved, however large the range is. Files must be
//! unmapped when `munmap` returns (seals, file locks, unmounting and drivers depend on it),
//! and locked memory must be uncharged. The caller frees these, and everything that the
//! kernel does not move, in chunks of 32 MiB, which take about 2 ms in base pages.
//!
//! # What it costs
//!
//! Pending memory still counts as used, in RSS and in the cgroup: a program that needs
//! the memory at once calls [`drain`] or [`Mapping::munmap_sync`]. The workers use CPU
//! time that `munmap` would have used in the caller.
//!
//! # When not to use it
//!
//! - For memory that is soon needed again: [`lazy_free`] keeps the pages until the kernel
//!   reclaims them.
//! - For contents that you want back if possible: [`volatile`].
//! - For the exit of the whole process: [`teardown`](crate::teardown).
//! - For memory in which other code has installed guard regions (MADV_GUARD_INSTALL, Linux
//!   6.13): `discard` removes those of a mapping that it moves, which MADV_DONTNEED keeps.
//! - Beside a userfaultfd monitor in this process that asked for UFFD_EVENT_REMAP or
//!   UFFD_EVENT_UNMAP: a release of such memory waits until the monitor has read the event,
//!   and other releases, [`drain`] and `fork` wait for that release.
//! - In a child of `vfork(2)`: it works, and the caller frees the memory itself.

mod contents;

pub use crate::background::freeing::ReleaseLimits;

use std::mem::ManuallyDrop;
use std::time::Duration;

use crate::background::freeing::{self, AfterMove, Destination, defer_free, defer_free_of_mapping};
use crate::ground::error::{Error, MemoryKind, Refused, Result};
use crate::ground::mapping::Mapping;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{LockState, lock_state};
use crate::ground::sys::vma::{self, Vma};
use crate::ground::sys::{Errno, counters, map, page_size, process};
use crate::observation::stats;
use crate::verbs::{CHUNK_BYTES, lazy_free, lock, refuse_sealed, volatile};

/// Shorter VMAs take the plain system call, which is cheaper for them.
#[doc(hidden)]
pub const THRESHOLD_BYTES: usize = 4 << 20;

impl Mapping {
    /// Unmaps the memory without waiting for its pages to be freed: `mremap(2)`, and
    /// `munmap(2)` by worker threads. Dropping the mapping does the same. Until a
    /// worker has freed the pages they count as used; [`drain`] waits for that.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::munmap`], with the mapping returned.
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
        self.munmap_to(Destination::of_released())
    }

    /// Unmaps the memory like [`munmap`](Mapping::munmap), and lets the page
    /// [`pool`](crate::pool) keep its pages: workers zero them for the next populate.
    ///
    /// Use it only for pages that nothing but this mapping refers to. The kernel may: those
    /// in a pipe (`vmsplice(2)`), or in a socket that has not sent them yet (MSG_ZEROCOPY).
    /// A reader there later finds zeros, or the contents of the memory that gets the pages
    /// next, and the kernel does not tell which pages have such references. Pages that are
    /// pinned (O_DIRECT, io_uring, RDMA) or shared with a child stay out of the pool.
    ///
    /// # Errors
    ///
    /// As for [`munmap`](Mapping::munmap).
    ///
    /// ```
    /// use tenure::{Mapping, pool::{self, PoolOptions}};
    ///
    /// pool::configure(&PoolOptions::new().max_bytes(64 << 20))?;
    /// let table = Mapping::anonymous(16 << 20).map_populated()?;
    /// table.recycle()?;
    /// # pool::configure(&PoolOptions::new())?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn recycle(self) -> Result<(), Refused<Self>> {
        self.munmap_to(Destination::Pool)
    }

    fn munmap_to(self, destination: Destination) -> Result<(), Refused<Self>> {
        let mut mapping = ManuallyDrop::new(self);
        // SAFETY: the mapping is owned, so nothing borrows its bytes, and
        // `ManuallyDrop` keeps it from being unmapped twice.
        match unsafe { mapping.range().munmap_to(destination) } {
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

    /// Unmaps the memory and frees its pages before it returns: `munmap(2)`, in chunks
    /// of 32 MiB, so that other threads' `mmap` does not wait long.
    ///
    /// # Errors
    ///
    /// As for [`munmap`](Mapping::munmap).
    ///
    /// ```
    /// use tenure::Mapping;
    ///
    /// let memory = Mapping::anonymous(64 << 20).map()?;
    /// memory.munmap_sync()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn munmap_sync(self) -> Result<(), Refused<Self>> {
        let mut mapping = ManuallyDrop::new(self);
        let range = mapping.range();
        forget(range);
        // SAFETY: the mapping is owned, so nothing borrows its bytes, and
        // `ManuallyDrop` keeps it from being unmapped twice.
        match unsafe { munmap_now(range) } {
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
        // SAFETY: nothing borrows from a mapping that is dropped. If it cannot be
        // unmapped (vm.max_map_count), it stays mapped.
        let _ = unsafe { self.range().munmap() };
    }
}

impl PageRange {
    /// Unmaps the range with the meaning of `munmap(2)`, holes included, but without
    /// waiting for its pages to be freed. An empty range succeeds.
    ///
    /// Anonymous memory, private or shared, is moved away with `mremap(2)` where the range
    /// has 4 MiB and more of one mapping, and worker threads free it; [`drain`] waits for that. The caller
    /// unmaps everything else, in chunks so that other threads' `mmap` does not wait
    /// long: locked memory, so that it is uncharged when the call returns; files and
    /// memfds, which stay open while they are mapped (seals, file locks, unmounting and
    /// drivers depend on it); hugetlb memory; and memory that the kernel does not move
    /// because address space or one more mapping is unavailable. Locks and volatility
    /// of the range end.
    ///
    /// # Errors
    ///
    /// With nothing done:
    /// * [`Error::Sealed`] when a mapping of the range is sealed (`mseal(2)`),
    /// * [`Error::SystemAt`] with EINVAL when the range goes past the end of the address
    ///   space.
    ///
    /// With other parts of the range unmapped, perhaps:
    /// * [`Error::MappingLimit`] when the kernel cannot split a mapping,
    /// * [`Error::Unaligned`] for a part of a huge page.
    ///
    /// # Safety
    ///
    /// No code may use the range any more. The call also unmaps memory that other code
    /// has mapped into a hole of the range. (It keeps the page of
    /// [`stats`](crate::stats).)
    pub unsafe fn munmap(self) -> Result<()> {
        // SAFETY: the conditions are the same.
        unsafe { self.munmap_to(Destination::of_released()) }
    }

    /// Unmaps the range like [`munmap`](PageRange::munmap), and lets the page
    /// [`pool`](crate::pool) keep its pages, zeroed, as [`Mapping::recycle`] does.
    ///
    /// # Errors
    ///
    /// As for [`munmap`](PageRange::munmap).
    ///
    /// # Safety
    ///
    /// As for [`munmap`](PageRange::munmap).
    pub unsafe fn recycle(self) -> Result<()> {
        // SAFETY: the conditions are the same.
        unsafe { self.munmap_to(Destination::Pool) }
    }

    /// # Safety
    ///
    /// As for [`munmap`](PageRange::munmap).
    unsafe fn munmap_to(self, destination: Destination) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        // SAFETY: no code uses the range any more, says the caller.
        unsafe { check_end(self, usize::MAX) }?;
        forget(self);
        for part in without_counter_page(self) {
            // SAFETY: a part of the range, which no code uses any more.
            if unsafe { munmap_plain(part, destination) } {
                continue;
            }
            let vmas = (part.len() >= THRESHOLD_BYTES).then(|| vma::within(part).ok());
            match vmas.flatten() {
                // SAFETY: a part of the range, which no code uses any more.
                Some(vmas) => unsafe { munmap_deferred(vmas, destination) }?,
                // The range is short, or /proc is unavailable.
                // SAFETY: as above.
                None => unsafe { munmap_in_chunks(part, page_size()) }?,
            }
        }
        stats::MUNMAP.done(self.len());
        Ok(())
    }
}

/// Unmaps the range like [`PageRange::munmap`], for a caller that has little memory to list
/// mappings in. Where the range has more than `max_mappings`, or they cannot be listed, that
/// is an error, and the rest of the range is still mapped.
///
/// # Errors
///
/// As for [`PageRange::munmap`]; [`Error::System`] for too many mappings.
///
/// # Safety
///
/// As for [`PageRange::munmap`].
#[doc(hidden)]
pub unsafe fn munmap_at_most(range: PageRange, max_mappings: usize) -> Result<()> {
    // SAFETY: no code uses the range any more, says the caller.
    unsafe { check_end(range, max_mappings) }?;
    forget(range);
    let destination = Destination::of_released();
    for part in without_counter_page(range) {
        // SAFETY: a part of the range, which no code uses any more.
        if unsafe { munmap_plain(part, destination) } {
            continue;
        }
        let vmas = vma::within_at_most(part, max_mappings)?;
        // SAFETY: a part of the range, which no code uses any more.
        unsafe { munmap_deferred(vmas, destination) }?;
    }
    stats::MUNMAP.done(range.len());
    Ok(())
}

/// Gives the contents of the range up like [`PageRange::discard`]. Does nothing where the
/// range has more than `max_mappings`, for a caller that has little memory to list them in.
///
/// # Errors
///
/// As for [`PageRange::discard`]; [`Error::System`] for too many mappings.
///
/// # Safety
///
/// As for [`PageRange::discard`].
#[doc(hidden)]
pub unsafe fn discard_at_most(range: PageRange, max_mappings: usize) -> Result<()> {
    // SAFETY: the conditions are the same.
    unsafe { contents::discard(range, max_mappings) }
}

/// Waits until the workers have freed all pending memory of
/// [`munmap`](Mapping::munmap) and [`discard`](Mapping::discard), or until the timeout
/// has passed. `None` waits without limit.
///
/// # Errors
///
/// [`Error::TimedOut`], with the number of bytes that are still pending.
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

/// Waits a few seconds for pending memory, after the kernel has refused memory or
/// addresses. Returns whether another attempt may succeed.
#[doc(hidden)]
pub fn drain_for_retry() -> bool {
    freeing::drain_for_retry()
}

/// Waits a few seconds for pending memory if more is pending than the headroom has left.
#[doc(hidden)]
pub fn drain_if_short() {
    freeing::drain_if_short();
}

/// Returns the parts of the range around the counter page, which the kernel may have
/// placed into a hole of the range, even during this call.
fn without_counter_page(range: PageRange) -> impl Iterator<Item = PageRange> {
    let page = counters::page().and_then(|page| page.intersection(range));
    let parts = match page {
        None => [(range.start(), range.end()), (range.end(), range.end())],
        Some(page) => [(range.start(), page.start()), (page.end(), range.end())],
    };
    let parts = parts.map(|(start, end)| PageRange::between(start, end));
    parts.into_iter().filter(|part| !part.is_empty())
}

/// Refuses a range that goes past the end of the address space, as `munmap(2)` does, before
/// any of it is unmapped. The kernel knows that end: it is asked to unmap the hole at the end
/// of a range that nobody maps memory at.
///
/// # Safety
///
/// No code may use the range any more.
unsafe fn check_end(range: PageRange, max_mappings: usize) -> Result<()> {
    if range.end() <= process::stack_top() {
        return Ok(());
    }
    let vmas = vma::within_at_most(range, max_mappings)?;
    let mapped_end = vmas.last().map_or(range.start(), |vma| vma.range.end());
    let hole = PageRange::between(mapped_end, range.end());
    if hole.is_empty() {
        return Ok(());
    }
    // SAFETY: a part of the range, which no code uses any more.
    unsafe { map::unmap(hole) }.map_err(|errno| explain_munmap(range, page_size(), errno))
}

/// Forgets volatility, lazy frees and locks of the range. Callers do this before they
/// unmap it, because other threads may then map, lock and mark the same addresses.
fn forget(range: PageRange) {
    volatile::forget(range);
    lazy_free::forget(range);
    lock::forget(range);
}

/// Moves the range to the workers if all of it is plain: one mapping of private anonymous
/// memory that is not locked. Returns whether it has. Most memory is plain, and a few short
/// calls tell.
///
/// # Safety
///
/// No code may use the range any more.
unsafe fn munmap_plain(range: PageRange, destination: Destination) -> bool {
    range.len() >= THRESHOLD_BYTES
        && lock_state(range) == Ok(LockState::Unlocked)
        // SAFETY: it is not locked, and no code uses it any more.
        && unsafe { defer_free_of_mapping(range, destination) }
}

/// Moves those of the VMAs that are movable to the workers and unmaps the rest.
///
/// # Safety
///
/// No code may use the VMAs any more.
unsafe fn munmap_deferred(vmas: Vec<Vma>, destination: Destination) -> Result<()> {
    check_sealed(&vmas)?;
    let (movable, fixed): (Vec<_>, Vec<_>) = vmas.into_iter().partition(can_move);
    let movable = movable.iter().map(|vma| vma.range).collect();
    // SAFETY: `can_move` found anonymous memory that is not locked, and no code uses it
    // any more.
    let unmoved = unsafe { defer_free(movable, AfterMove::Unmapped, destination) };
    let unmoved = unmoved.into_iter().map(|part| (part, page_size()));
    let fixed = fixed.iter().map(|vma| (vma.range, vma.page_bytes));
    for (part, page_bytes) in unmoved.chain(fixed) {
        // SAFETY: a part of the VMAs, which no code uses any more.
        unsafe { munmap_in_chunks(part, page_bytes) }?;
    }
    Ok(())
}

/// Unmaps the range and frees its pages before it returns.
///
/// # Safety
///
/// No code may use the range any more.
unsafe fn munmap_now(range: PageRange) -> Result<()> {
    let Ok(vmas) = vma::within(range) else {
        // SAFETY: no code uses the range any more, says the caller.
        return unsafe { munmap_in_chunks(range, page_size()) };
    };
    check_sealed(&vmas)?;
    for vma in vmas {
        // SAFETY: a part of the range, which no code uses any more.
        unsafe { munmap_in_chunks(vma.range, vma.page_bytes) }?;
    }
    Ok(())
}

/// Refuses mappings of which one is sealed. The kernel refuses a single one before it changes
/// anything, but tenure has several calls for several mappings.
fn check_sealed(vmas: &[Vma]) -> Result<()> {
    let [first, .., last] = vmas else {
        return Ok(());
    };
    let range = PageRange::between(first.range.start(), last.range.end());
    refuse_sealed("munmap", range, vmas)
}

/// Unmaps the range in chunks: `munmap(2)`.
///
/// # Safety
///
/// No code may use the range any more.
unsafe fn munmap_in_chunks(range: PageRange, page_bytes: usize) -> Result<()> {
    for chunk in range.chunks(CHUNK_BYTES.max(page_bytes)) {
        // SAFETY: a part of the range, which no code uses any more.
        let mut result = unsafe { map::unmap(chunk) };
        if result == Err(Errno::NOMEM) {
            // At vm.max_map_count the kernel cannot split a mapping, but it can unmap
            // whole mappings.
            let rest = PageRange::between(chunk.start(), range.end());
            // SAFETY: as above.
            result = unsafe { map::unmap(rest) };
            if result.is_ok() {
                stats::FREED_BY_CALLER_BYTES.add(rest.len());
                return Ok(());
            }
        }
        result.map_err(|errno| explain_munmap(chunk, page_bytes, errno))?;
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
    if errno == Errno::PERM
        && let Err(error) = refuse_sealed("munmap", range, &vma::within(range).unwrap_or_default())
    {
        return error;
    }
    match errno {
        Errno::NOMEM => Error::MappingLimit {
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
