//! mmap: a mapping that is made ready before anybody sees it.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;

use libc::off_t;
use tenure::{Access, LockMode, MmapRequest, PageRange};

use crate::answer::{BAD_POINTER, Errno, INVALID, done, only};

/// Locks the mapping on fault: no page comes in before it is used, and then it stays.
pub const TENURE_MAP_LOCKONFAULT: c_uint = 1;
/// Populates the mapping for reading.
pub const TENURE_MAP_POPULATE_READ: c_uint = 2;
/// Populates the mapping for writing.
pub const TENURE_MAP_POPULATE_WRITE: c_uint = 4;
/// Leaves the mapping out of core dumps.
pub const TENURE_MAP_NODUMP: c_uint = 8;
/// Gives children zeros instead of the contents; private anonymous memory only.
pub const TENURE_MAP_WIPEONFORK: c_uint = 16;

/// Maps memory, and makes it ready before anybody sees it: either it comes back
/// locked, populated and marked as asked for, or nothing stays mapped. It is `mmap()`,
/// then `madvise()`, `tenure_mlock()` and `tenure_populate()`.
///
/// `*out` becomes the address; it is not touched on an error, and `out` must not be
/// NULL. `len` is in bytes and is rounded up to whole pages of the kind of memory.
/// `prot`, `flags`, `fd` and `offset` are those of `mmap()`, but the kernel picks the
/// place: MAP_FIXED and MAP_FIXED_NOREPLACE are refused. `fd` is not looked at with
/// MAP_ANONYMOUS. `tenure_flags` is 0 or any of `TENURE_MAP_LOCKONFAULT`,
/// `TENURE_MAP_POPULATE_READ` or `TENURE_MAP_POPULATE_WRITE`, `TENURE_MAP_NODUMP` and
/// `TENURE_MAP_WIPEONFORK`.
///
/// The mapping is the caller's, who ends it with `tenure_munmap()` or `munmap()`.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is not touched.
///
/// # Errors
///
/// With nothing mapped:
///
/// * `-EFAULT`: `out` is NULL; or, populating, the file is shorter than the mapping or
///   no huge page is free. Correct the call, or make the file longer.
/// * `-EINVAL`: `len` is 0, `offset` is not a whole number of pages or negative, a flag
///   is not known, both ways of populating are asked for, or MAP_FIXED is; or the kind
///   of memory does not know the advice (`TENURE_MAP_WIPEONFORK` on shared memory).
///   Correct the call.
/// * `-EBADF`: `fd` is not an open file.
/// * `-EACCES`: The file is not open for what `prot` asks; or populating needs an access
///   that `prot` does not give.
/// * `-ENODEV`: The file cannot be mapped.
/// * `-ENOMEM`: There is no room for the mapping (`vm.max_map_count`, RLIMIT_AS,
///   overcommit, huge pages), RLIMIT_MEMLOCK does not allow the lock, or populating
///   would take more memory than there is. Map less, or raise what limits it.
/// * `-EPERM`: RLIMIT_MEMLOCK is 0, and a lock was asked for; or `prot` asks for
///   PROT_EXEC on a file system that forbids it.
///
/// Other errors are those of `mmap()`.
///
/// # Notes
///
/// `TENURE_MAP_LOCKONFAULT` needs Linux 4.4, `TENURE_MAP_WIPEONFORK` Linux 4.14.
///
/// # See also
///
/// tenure_munmap(3), tenure_mlock(3), tenure_populate(3), mmap(2), madvise(2), tenure(7)
///
/// # Safety
///
/// `out` is NULL or can be written; `fd` stays open until the call returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_mmap(
    out: *mut *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
    tenure_flags: c_uint,
) -> c_int {
    done(|| {
        if out.is_null() {
            return Err(BAD_POINTER);
        }
        let asks = |flag| tenure_flags & flag != 0;
        let range = PageRange::mmap(&MmapRequest {
            len,
            prot: prot.cast_unsigned(),
            flags: flags.cast_unsigned(),
            // SAFETY: it stays open until the call returns.
            file: unsafe { file(flags, fd, offset) }?,
            no_dump: asks(TENURE_MAP_NODUMP),
            wipe_on_fork: asks(TENURE_MAP_WIPEONFORK),
            lock: asks(TENURE_MAP_LOCKONFAULT).then_some(LockMode::OnFault),
            populate: populate(tenure_flags)?,
        })?;
        // SAFETY: not NULL, and so to be written, as the caller has promised.
        unsafe { out.write(range.as_ptr().cast()) };
        Ok(())
    })
}

/// # Safety
///
/// What is open as `fd` stays open for as long as the result is used.
unsafe fn file<'a>(
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> Result<Option<(BorrowedFd<'a>, u64)>, Errno> {
    if flags & libc::MAP_ANONYMOUS != 0 {
        return Ok(None);
    }
    if fd < 0 {
        return Err(Errno(libc::EBADF));
    }
    let offset = u64::try_from(offset).map_err(|_| INVALID)?;
    // SAFETY: not -1; handed on to the caller. One that is not open is EBADF.
    Ok(Some((unsafe { BorrowedFd::borrow_raw(fd) }, offset)))
}

fn populate(tenure_flags: c_uint) -> Result<Option<Access>, Errno> {
    const WAYS: c_uint = TENURE_MAP_POPULATE_READ | TENURE_MAP_POPULATE_WRITE;
    const OTHERS: c_uint = TENURE_MAP_LOCKONFAULT | TENURE_MAP_NODUMP | TENURE_MAP_WIPEONFORK;
    only(tenure_flags, WAYS | OTHERS)?;
    match tenure_flags & WAYS {
        0 => Ok(None),
        TENURE_MAP_POPULATE_READ => Ok(Some(Access::Read)),
        TENURE_MAP_POPULATE_WRITE => Ok(Some(Access::Write)),
        _ => Err(INVALID),
    }
}
