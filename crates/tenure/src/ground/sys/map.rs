//! `mmap(2)`, `munmap(2)`, `mremap(2)`, `mprotect(2)`, `memfd_create(2)` and
//! `memfd_secret(2)`.

use std::ffi::{c_ulong, c_void};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use linux_raw_sys::general::{MREMAP_DONTUNMAP, MREMAP_FIXED, MREMAP_MAYMOVE};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mm::{self, MapFlags, MprotectFlags, ProtFlags};

use super::advise::{LockState, lock_state};
use super::reservation::Reservation;
use super::{last_errno, lock, pmd_bytes, pud_bytes};
use crate::PageRange;

/// The backing of a new mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Backing<'a> {
    Anonymous,
    File { fd: BorrowedFd<'a>, offset: u64 },
}

/// Maps `len` bytes, a whole number of pages, at an address of the kernel's
/// choice: `mmap(2)`. A mapping of a GiB or more starts on a boundary of 1 GiB
/// if possible (see [`map_aligned`]).
pub(crate) fn map(
    backing: Backing<'_>,
    len: usize,
    shared: bool,
    writable: bool,
) -> Result<PageRange, Errno> {
    let (prot, flags) = (access(writable), sharing(shared));
    if len >= pud_bytes()
        && let Ok(range) = map_aligned(pud_bytes(), backing, len, prot, flags)
    {
        return Ok(range);
    }
    // SAFETY: without MAP_FIXED the kernel picks addresses that nobody uses.
    unsafe { map_at(ptr::null_mut(), backing, len, prot, flags) }
}

/// Maps anonymous memory on a huge page boundary, where huge pages fit best.
/// (The kernel does so by itself from Linux 6.7 on, and for whole huge pages
/// only. For a file it knows which offset has to lie on a boundary.)
pub(crate) fn map_for_huge_pages(
    len: usize,
    shared: bool,
    writable: bool,
) -> Result<PageRange, Errno> {
    let map = || map(Backing::Anonymous, len, shared, writable);
    let range = map()?;
    if len < pmd_bytes() || range.start().is_multiple_of(pmd_bytes()) {
        return Ok(range);
    }
    // Unmapped first, so that no mapping is left over if this fails.
    // SAFETY: mapped above, and nobody uses it yet.
    if unsafe { unmap(range) }.is_err() {
        return Ok(range);
    }
    let (prot, flags) = (access(writable), sharing(shared));
    map_aligned(pmd_bytes(), Backing::Anonymous, len, prot, flags).or_else(|_| map())
}

fn access(writable: bool) -> ProtFlags {
    let mut prot = ProtFlags::READ;
    prot.set(ProtFlags::WRITE, writable);
    prot
}

/// Maps on a boundary. A boundary of 1 GiB makes releasing cheap: `mremap` then
/// moves the page tables of each GiB in one step instead of 512, which takes 30
/// µs instead of 250.
fn map_aligned(
    boundary: usize,
    backing: Backing<'_>,
    len: usize,
    prot: ProtFlags,
    flags: MapFlags,
) -> Result<PageRange, Errno> {
    let wanted = len.checked_add(boundary).ok_or(Errno::NOMEM)?;
    let mut reserved = Reservation::new(wanted).map_err(|(_, errno)| errno)?;
    let start = reserved.range().start().next_multiple_of(boundary);
    let range = PageRange::between(start, start + len);
    // SAFETY: reserved above, and nobody uses it yet.
    let mapped = unsafe {
        map_at(
            range.as_ptr().cast(),
            backing,
            len,
            prot,
            flags | MapFlags::FIXED,
        )
    };
    match mapped {
        Ok(_) => reserved.disown(range),
        Err(_) => reserved.map_failed(range),
    }
    // SAFETY: nobody uses the rest of the reservation.
    unsafe { reserved.unmap() };
    mapped
}

/// Maps memory at `at`, which is a hint without MAP_FIXED: `mmap(2)`.
///
/// # Safety
///
/// With MAP_FIXED nothing may use what is mapped there.
unsafe fn map_at(
    at: *mut c_void,
    backing: Backing<'_>,
    len: usize,
    prot: ProtFlags,
    flags: MapFlags,
) -> Result<PageRange, Errno> {
    // SAFETY: with MAP_FIXED nothing uses what is mapped there (the caller's
    // contract); without it, the kernel picks addresses that nobody uses.
    let addr = unsafe {
        match backing {
            Backing::Anonymous => mm::mmap_anonymous(at, len, prot, flags),
            Backing::File { fd, offset } => mm::mmap(at, len, prot, flags, fd, offset),
        }
    }?;
    Ok(PageRange::between(
        addr.expose_provenance(),
        addr.expose_provenance() + len,
    ))
}

/// Maps `backing` over the range, readable and writable, in place of what is
/// mapped there: `mmap(MAP_FIXED)`. After a failure the range may be a hole, so
/// it has to be a part of a [`Reservation`].
///
/// # Safety
///
/// Nothing may use what was mapped in the range.
pub(crate) unsafe fn map_over(
    range: PageRange,
    backing: Backing<'_>,
    shared: bool,
) -> Result<(), Errno> {
    let (addr, len) = (range.as_ptr().cast(), range.len());
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let flags = sharing(shared) | MapFlags::FIXED;
    // SAFETY: nothing uses what was mapped there (the caller's contract).
    unsafe {
        match backing {
            Backing::Anonymous => mm::mmap_anonymous(addr, len, prot, flags),
            Backing::File { fd, offset } => mm::mmap(addr, len, prot, flags, fd, offset),
        }
    }?;
    Ok(())
}

/// Maps `len` bytes with raw `mmap(2)` protection and flags, at an address of
/// the kernel's choice, which rounds `len` up to whole pages. `backing` is
/// `None` for anonymous memory. Returns the first address; EINVAL for
/// MAP_FIXED.
pub(crate) fn map_raw(
    len: usize,
    prot: u32,
    flags: u32,
    backing: Option<(BorrowedFd<'_>, u64)>,
) -> Result<usize, Errno> {
    let (prot, flags) = (
        ProtFlags::from_bits_retain(prot),
        MapFlags::from_bits_retain(flags),
    );
    let fixed = MapFlags::FIXED | MapFlags::FIXED_NOREPLACE;
    if flags.intersects(fixed) {
        return Err(Errno::INVAL);
    }
    let at = ptr::null_mut();
    // SAFETY: without MAP_FIXED the kernel picks addresses that nobody uses.
    let addr = unsafe {
        match backing {
            None => mm::mmap_anonymous(at, len, prot, flags),
            Some((fd, offset)) => mm::mmap(at, len, prot, flags, fd, offset),
        }
    }?;
    Ok(addr.expose_provenance())
}

fn sharing(shared: bool) -> MapFlags {
    if shared {
        MapFlags::SHARED
    } else {
        MapFlags::PRIVATE
    }
}

/// Reserves addresses with an inaccessible mapping (PROT_NONE), for which the
/// kernel charges no memory.
pub(crate) fn reserve(len: usize) -> Result<PageRange, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: without MAP_FIXED the kernel picks addresses that nobody uses.
    let addr = unsafe { mm::mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), flags) }?;
    Ok(PageRange::between(
        addr.expose_provenance(),
        addr.expose_provenance() + len,
    ))
}

/// Reserves addresses without access, for memory that the kernel is to charge as any other
/// once it is made accessible.
pub(crate) fn reserve_charged(len: usize) -> Result<PageRange, Errno> {
    // SAFETY: without MAP_FIXED the kernel picks addresses that nobody uses.
    unsafe {
        map_at(
            ptr::null_mut(),
            Backing::Anonymous,
            len,
            ProtFlags::empty(),
            MapFlags::PRIVATE,
        )
    }
}

/// Reserves these addresses: `mmap(MAP_FIXED_NOREPLACE)`; EEXIST if any of them
/// is in use.
pub(crate) fn reserve_at(range: PageRange) -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    let at = range.as_ptr().cast();
    // SAFETY: with MAP_FIXED_NOREPLACE the kernel replaces nothing.
    let addr = unsafe { mm::mmap_anonymous(at, range.len(), ProtFlags::empty(), flags) }?;
    if addr == at {
        return Ok(());
    }
    // Linux before 4.17 ignores the flag and takes the address as a hint.
    let start = addr.expose_provenance();
    // SAFETY: mapped above, and nobody uses it yet.
    let _ = unsafe { unmap(PageRange::between(start, start + range.len())) };
    Err(Errno::EXIST)
}

/// Reserves writable addresses (MAP_NORESERVE): the kernel allocates memory as
/// pages are written, and charges for all of it under strict overcommit only.
/// Under `mlockall(MCL_FUTURE)` they are locked as they are written.
/// On failure, returns the call as well.
pub(crate) fn reserve_writable(len: usize) -> Result<PageRange, (&'static str, Errno)> {
    let range = reserve(len).map_err(|errno| ("mmap", errno))?;
    // Without access nothing was faulted in yet. A lock stays, so one answer is not enough.
    let is_locked = || lock_state(range) == Ok(LockState::Locked);
    let locked = match is_locked() && is_locked() {
        true => lock::mlock_onfault(range).map_err(|errno| ("mlock2", errno)),
        false => Ok(()),
    };
    // SAFETY: mapped above, and nobody uses it yet.
    let protect = || unsafe { protect_read_write(range) };
    let writable = locked.and_then(|()| protect().map_err(|errno| ("mprotect", errno)));
    if writable.is_err() {
        // SAFETY: as above. Addresses that cannot be unmapped stay, without access.
        let _ = unsafe { unmap(range) };
    }
    writable.map(|()| range)
}

/// Unmaps the range: `munmap(2)`. Holes are allowed.
///
/// # Safety
///
/// Nothing may use the range any more.
pub(crate) unsafe fn unmap(range: PageRange) -> Result<(), Errno> {
    // SAFETY: nothing uses the range any more (the caller's contract).
    unsafe { mm::munmap(range.as_ptr().cast(), range.len()) }
}

/// Moves the pages of `from`, one whole mapping or a part of one, to the
/// address `to`, a part of a [`Reservation`], and unmaps `from`:
/// `mremap(MREMAP_FIXED)`. After a failure there may be a hole at `to`.
///
/// # Safety
///
/// Nothing may use either range any more.
pub(crate) unsafe fn move_away(from: PageRange, to: usize) -> Result<(), Errno> {
    // SAFETY: nothing uses either range any more (the caller's contract).
    unsafe { remap(from, to, from.len(), MREMAP_MAYMOVE) }
}

/// Moves the pages of `from`, if it lies in one mapping, to the address `to`, and maps one
/// more page behind them: `mremap(MREMAP_FIXED)`. After a failure there may be a hole at
/// `to`, one page longer than `from`, which is as it was.
///
/// A longer mapping is what the kernel makes of one mapping only. To the same length it moves
/// several (since Linux 6.17), and may end half way.
///
/// # Safety
///
/// Nothing may use either range any more.
pub(crate) unsafe fn move_mapping_away(from: PageRange, to: usize) -> Result<(), Errno> {
    // SAFETY: nothing uses either range any more (the caller's contract).
    unsafe { remap(from, to, from.len() + super::page_size(), MREMAP_MAYMOVE) }
}

/// Returns whether the mapping at an address, whose pages have so many bytes, is sealed
/// (`mseal(2)`, Linux 6.10): it cannot be unmapped. `mremap(2)` to the same length at the same
/// address changes nothing, and is refused there.
///
/// A filter of system calls (seccomp) may answer the same for all of them, and then nobody
/// can tell.
pub(crate) fn is_sealed(start: usize, page_bytes: usize) -> bool {
    is_resize_refused(start, page_bytes)
        && resizes_own_memory()
        && is_resize_refused(start, page_bytes)
}

fn is_resize_refused(start: usize, bytes: usize) -> bool {
    let page = ptr::with_exposed_provenance_mut(start);
    // SAFETY: neither the length nor the address changes.
    let same = unsafe { mm::mremap(page, bytes, bytes, mm::MremapFlags::empty()) };
    same == Err(Errno::PERM)
}

/// Returns whether mremap can be called at all.
fn resizes_own_memory() -> bool {
    let Ok(reservation) = Reservation::new(super::page_size()) else {
        return false;
    };
    let page = reservation.range();
    let answer = !is_resize_refused(page.start(), page.len());
    // SAFETY: reserved above and used by nobody.
    unsafe { reservation.unmap() };
    answer
}

/// Moves the pages of `from` to the address `to`, a part of a [`Reservation`],
/// and leaves `from` mapped and empty: `mremap(MREMAP_DONTUNMAP)` (Linux 5.7).
/// After a failure there may be a hole at `to`.
///
/// # Safety
///
/// Nothing may rely on the contents of `from`, nor use what was at `to`.
pub(crate) unsafe fn move_pages_away(from: PageRange, to: usize) -> Result<(), Errno> {
    // SAFETY: nothing relies on the contents of `from` or uses the target (the
    // caller's contract).
    unsafe { remap(from, to, from.len(), MREMAP_MAYMOVE | MREMAP_DONTUNMAP) }
}

/// Moves the pages of `from` to `len` bytes at the address `to`: `mremap(MREMAP_FIXED)`.
///
/// # Safety
///
/// Nothing may rely on the contents of `from`, nor use what is mapped at the
/// target; without MREMAP_DONTUNMAP nothing may use `from`.
unsafe fn remap(from: PageRange, to: usize, len: usize, flags: u32) -> Result<(), Errno> {
    // By its number: rustix 1.1 passes MAP_FIXED for MREMAP_FIXED where a crate of the
    // program has it built on libc, and the libc's function may be the preload library's.
    // SAFETY: as the caller's contract says of both ranges.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mremap,
            from.as_ptr(),
            from.len(),
            len,
            c_ulong::from(flags | MREMAP_FIXED),
            to,
        )
    };
    if answer == -1 {
        return Err(last_errno());
    }
    Ok(())
}

/// Makes every access to the range SIGSEGV: `mprotect(PROT_NONE)`.
/// Async-signal-safe.
pub(crate) fn protect_none(range: PageRange) -> Result<(), Errno> {
    // SAFETY: the contents stay; an access faults and does nothing else.
    unsafe { mm::mprotect(range.as_ptr().cast(), range.len(), MprotectFlags::empty()) }
}

/// Makes the range readable and writable: `mprotect(2)`.
///
/// # Safety
///
/// The program must have had this access to the range before, or have reserved
/// the range for itself.
pub(crate) unsafe fn protect_read_write(range: PageRange) -> Result<(), Errno> {
    let access = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: the range had this access before, or belongs to the caller (the
    // caller's contract).
    unsafe { mm::mprotect(range.as_ptr().cast(), range.len(), access) }
}

/// Creates a file of `len` bytes that lives in memory: `memfd_create(2)`, of
/// base pages or of 2 MiB pages from the hugetlb pool. On failure, returns the
/// call that failed.
pub(crate) fn memfd(len: usize, huge_2m: bool) -> Result<OwnedFd, (&'static str, Errno)> {
    let mut flags = MemfdFlags::CLOEXEC;
    if huge_2m {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    }
    let failed = |call| move |errno| (call, errno);
    let fd = rustix::fs::memfd_create("tenure", flags).map_err(failed("memfd_create"))?;
    rustix::fs::ftruncate(&fd, len as u64).map_err(failed("ftruncate"))?;
    Ok(fd)
}

/// Creates a file of `len` bytes that the kernel removes from its own page
/// tables: `memfd_secret(2)` (Linux 5.14; before 6.5 only if enabled at boot).
pub(crate) fn memfd_secret(len: usize) -> Result<OwnedFd, Errno> {
    // SAFETY: the call takes flags only. (By libc, because rustix lacks it.)
    let answer = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) };
    let fd = match i32::try_from(answer) {
        // SAFETY: a successful call returns a new descriptor, which nobody else
        // owns.
        Ok(fd) if fd >= 0 => unsafe { OwnedFd::from_raw_fd(fd) },
        _ => return Err(last_errno()),
    };
    rustix::fs::ftruncate(&fd, len as u64)?;
    Ok(fd)
}

/// Returns the length of a file, in bytes: `fstat(2)`.
pub(crate) fn file_len(fd: impl AsFd) -> Result<u64, Errno> {
    Ok(rustix::fs::fstat(fd)?.st_size as u64)
}

/// Returns whether a file consists of huge pages from the hugetlb pool:
/// `fstatfs(2)`.
pub(crate) fn is_hugetlb_file(fd: impl AsFd) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|stat| stat.f_type == libc::HUGETLBFS_MAGIC)
}

/// Returns whether a file lives in memory (tmpfs, memfd) and has no page yet
/// for most of its length.
pub(crate) fn is_memory_mostly_empty(fd: impl AsFd) -> Result<bool, Errno> {
    const BLOCK_BYTES: i64 = 512;
    let fd = fd.as_fd();
    if rustix::fs::fstatfs(fd)?.f_type != libc::TMPFS_MAGIC {
        return Ok(false);
    }
    let stat = rustix::fs::fstat(fd)?;
    Ok(stat.st_blocks * BLOCK_BYTES < stat.st_size / 2)
}

/// Allocates `len` bytes at `offset` of a file without extending it:
/// `fallocate(FALLOC_FL_KEEP_SIZE)`.
pub(crate) fn allocate(fd: impl AsFd, offset: u64, len: u64) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    rustix::fs::fallocate(fd, rustix::fs::FallocateFlags::KEEP_SIZE, offset, len)
}
