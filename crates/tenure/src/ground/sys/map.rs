//! `mmap(2)`, `munmap(2)`, `mremap(2)`, `mprotect(2)`, `memfd_create(2)` and
//! `memfd_secret(2)`.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use linux_raw_sys::general::MREMAP_DONTUNMAP;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mm::{self, MapFlags, MprotectFlags, MremapFlags, ProtFlags};

use super::reservation::Reservation;
use super::{last_errno, pmd_bytes, pud_bytes};
use crate::PageRange;

/// By its number: where rustix goes by way of libc (under Miri), it has no name for it.
const DONTUNMAP: MremapFlags = MremapFlags::from_bits_retain(MREMAP_DONTUNMAP);

/// What a new mapping is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Backing<'a> {
    Anonymous,
    File { fd: BorrowedFd<'a>, offset: u64 },
}

/// Maps `len` bytes, a whole number of pages, wherever the kernel likes.
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

/// Maps anonymous memory where huge pages fit best: on a boundary of one. (By itself the
/// kernel does so from Linux 6.7 on, and for whole huge pages only. Of a file it knows
/// which offset has to lie on one.)
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
    // First, so that none is left over if that is refused.
    // SAFETY: just mapped, and used by nobody.
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

/// Maps on a boundary. That of 1 GiB is for giving the memory up: the kernel
/// then moves the page tables of each GiB in one step instead of 512, which
/// takes 30 µs instead of 250.
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
    // SAFETY: what was just reserved is used by nobody.
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
        Ok(_) => reserved.give(range),
        Err(_) => reserved.refused(range),
    }
    // SAFETY: as above.
    unsafe { reserved.unmap() };
    mapped
}

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
    // SAFETY: handed on to the caller.
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
/// mapped there. If it is refused the range may be a hole: a part of a
/// [`Reservation`], then.
///
/// # Safety
///
/// Nothing may use what was in the range.
pub(crate) unsafe fn map_over(
    range: PageRange,
    backing: Backing<'_>,
    shared: bool,
) -> Result<(), Errno> {
    let (addr, len) = (range.as_ptr().cast(), range.len());
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let flags = sharing(shared) | MapFlags::FIXED;
    // SAFETY: the caller gives up what was there.
    unsafe {
        match backing {
            Backing::Anonymous => mm::mmap_anonymous(addr, len, prot, flags),
            Backing::File { fd, offset } => mm::mmap(addr, len, prot, flags, fd, offset),
        }
    }?;
    Ok(())
}

/// Maps as told, in the kernel's own numbers, wherever the kernel likes; `len` is
/// rounded up to whole pages by the kernel. `fd` is `None` for anonymous memory.
/// Returns the first address.
pub(crate) fn map_as_told(
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

/// Reserves addresses: nothing can be read or written there, and no memory is
/// charged for them.
pub(crate) fn reserve(len: usize) -> Result<PageRange, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: without MAP_FIXED the kernel picks addresses that nobody uses.
    let addr = unsafe { mm::mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), flags) }?;
    Ok(PageRange::between(
        addr.expose_provenance(),
        addr.expose_provenance() + len,
    ))
}

/// Reserves these very addresses; refused (EEXIST) if any of them is in use.
pub(crate) fn reserve_at(range: PageRange) -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    let at = range.as_ptr().cast();
    // SAFETY: the flag has the kernel replace nothing.
    let addr = unsafe { mm::mmap_anonymous(at, range.len(), ProtFlags::empty(), flags) }?;
    if addr == at {
        return Ok(());
    }
    // Before Linux 4.17 the flag is unknown, and the address but a wish.
    let start = addr.expose_provenance();
    // SAFETY: mapped just now.
    let _ = unsafe { unmap(PageRange::between(start, start + range.len())) };
    Err(Errno::EXIST)
}

/// Reserves addresses that can be written to: memory is taken, and charged under
/// strict overcommit only, as pages are written.
pub(crate) fn reserve_writable(len: usize) -> Result<PageRange, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: without MAP_FIXED the kernel picks addresses that nobody uses.
    unsafe { map_at(ptr::null_mut(), Backing::Anonymous, len, prot, flags) }
}

/// Unmaps the range. Holes in it are allowed.
///
/// # Safety
///
/// Nothing may use the range any more.
pub(crate) unsafe fn unmap(range: PageRange) -> Result<(), Errno> {
    // SAFETY: the caller gives the range up.
    unsafe { mm::munmap(range.as_ptr().cast(), range.len()) }
}

/// Moves the pages of `from`, one whole mapping or a part of one, to the
/// address `to`, a part of a [`Reservation`], and unmaps `from`. If it is
/// refused there may be a hole at `to`.
///
/// # Safety
///
/// Nothing may use either range any more.
pub(crate) unsafe fn move_away(from: PageRange, to: usize) -> Result<(), Errno> {
    // SAFETY: the caller gives both ranges up.
    unsafe { remap(from, to, MremapFlags::MAYMOVE) }
}

/// Moves the pages of `from` to the address `to`, a part of a [`Reservation`],
/// and leaves `from` mapped and empty (Linux 5.7). If it is refused there may be
/// a hole at `to`.
///
/// # Safety
///
/// Nothing may rely on the contents of `from`, nor use what was at `to`.
pub(crate) unsafe fn move_pages_away(from: PageRange, to: usize) -> Result<(), Errno> {
    // SAFETY: the caller gives up the contents of `from` and all of `to`.
    unsafe { remap(from, to, MremapFlags::MAYMOVE | DONTUNMAP) }
}

/// # Safety
///
/// As for the two functions above.
unsafe fn remap(from: PageRange, to: usize, flags: MremapFlags) -> Result<(), Errno> {
    let target = ptr::with_exposed_provenance_mut(to);
    // SAFETY: handed on to the caller.
    unsafe { mm::mremap_fixed(from.as_ptr().cast(), from.len(), from.len(), flags, target) }?;
    Ok(())
}

/// Makes every access to the range SIGSEGV. Async-signal-safe.
pub(crate) fn protect_none(range: PageRange) -> Result<(), Errno> {
    // SAFETY: contents stay; an access faults instead of going wrong.
    unsafe { mm::mprotect(range.as_ptr().cast(), range.len(), MprotectFlags::empty()) }
}

/// Lets the range be read and written.
///
/// # Safety
///
/// The program must have had this access to the range before, or have reserved
/// it for itself.
pub(crate) unsafe fn protect_read_write(range: PageRange) -> Result<(), Errno> {
    let access = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: the caller gives back what it took away with `protect_none`.
    unsafe { mm::mprotect(range.as_ptr().cast(), range.len(), access) }
}

/// Makes a file that lives in memory, `len` bytes long, of base pages or of
/// 2 MiB pages from the hugetlb pool.
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

/// Makes a file of memory that the kernel keeps no mapping of for itself, `len`
/// bytes long (Linux 5.14; 6.5 where nothing was said at boot).
pub(crate) fn memfd_secret(len: usize) -> Result<OwnedFd, Errno> {
    // SAFETY: the call takes flags only. (By libc: rustix does not have it.)
    let answer = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) };
    let fd = match i32::try_from(answer) {
        // SAFETY: a successful answer is a new descriptor of ours.
        Ok(fd) if fd >= 0 => unsafe { OwnedFd::from_raw_fd(fd) },
        _ => return Err(last_errno()),
    };
    rustix::fs::ftruncate(&fd, len as u64)?;
    Ok(fd)
}

/// The length of a file in bytes.
pub(crate) fn file_len(fd: impl AsFd) -> Result<u64, Errno> {
    Ok(rustix::fs::fstat(fd)?.st_size as u64)
}

/// Whether a file is made of huge pages from the hugetlb pool.
pub(crate) fn is_hugetlb_file(fd: impl AsFd) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|stat| stat.f_type == libc::HUGETLBFS_MAGIC)
}

/// Whether a file lives in memory (tmpfs, memfd) and most of it has no page yet.
pub(crate) fn is_memory_mostly_empty(fd: impl AsFd) -> Result<bool, Errno> {
    const BLOCK_BYTES: i64 = 512;
    let fd = fd.as_fd();
    if rustix::fs::fstatfs(fd)?.f_type != libc::TMPFS_MAGIC {
        return Ok(false);
    }
    let stat = rustix::fs::fstat(fd)?;
    Ok(stat.st_blocks * BLOCK_BYTES < stat.st_size / 2)
}

/// Allocates room for `len` bytes at `offset` of a file, without making it
/// longer.
pub(crate) fn allocate(fd: impl AsFd, offset: u64, len: u64) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    rustix::fs::fallocate(fd, rustix::fs::FallocateFlags::KEEP_SIZE, offset, len)
}
