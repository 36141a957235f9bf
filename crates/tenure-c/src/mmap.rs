//! mmap: the caller gets a mapping that is locked, advised and populated already.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;

use libc::off_t;
use tenure::{Access, LockMode, MmapRequest, PageRange};

use crate::answer::{BAD_POINTER, Errno, INVALID, answer_zero, check_flags};

/// Locks the mapping on fault: each page is faulted in by its first use, and then stays.
pub const TENURE_MAP_LOCKONFAULT: c_uint = 1;
/// Populates the mapping for reading.
pub const TENURE_MAP_POPULATE_READ: c_uint = 2;
/// Populates the mapping for writing.
pub const TENURE_MAP_POPULATE_WRITE: c_uint = 4;
/// Leaves the mapping out of core dumps.
pub const TENURE_MAP_NODUMP: c_uint = 8;
/// Gives children zeros instead of the contents; private anonymous memory only.
pub const TENURE_MAP_WIPEONFORK: c_uint = 16;

/// Maps memory that is ready for use: the mapping is locked, populated and advised as
/// requested when the call returns, or nothing stays mapped. The calls are `mmap()`, then
/// `madvise()`, `tenure_mlock()` and `tenure_populate()`.
///
/// `*out` receives the address; on an error it is unchanged. `out` must not be NULL. `len`
/// is in bytes and is rounded up to whole pages of the kind of memory. `prot`, `flags`,
/// `fd` and `offset` are those of `mmap()`, except that the kernel picks the address:
/// MAP_FIXED and MAP_FIXED_NOREPLACE are refused. With MAP_ANONYMOUS `fd` is ignored.
/// `tenure_flags` is 0 or any of `TENURE_MAP_LOCKONFAULT`, `TENURE_MAP_POPULATE_READ` or
/// `TENURE_MAP_POPULATE_WRITE`, `TENURE_MAP_NODUMP` and `TENURE_MAP_WIPEONFORK`.
///
/// The mapping is the caller's, who ends it with `tenure_munmap()` or `munmap()`. The
/// address is valid until then. The caller may close `fd` once the call has returned.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is unchanged.
///
/// # Errors
///
/// With nothing mapped:
///
/// * `-EFAULT`: `out` is NULL: correct the call. Or populating fails because the file is
///   shorter than the mapping or no huge page is free: make the file longer, or raise
///   `vm.nr_hugepages`.
/// * `-EINVAL`: `len` is 0, `offset` is not a whole number of pages or negative, a flag
///   is unknown, both populate flags are set, or MAP_FIXED is; or the kind of memory does
///   not support the advice (`TENURE_MAP_WIPEONFORK` on shared memory). Correct the call.
/// * `-EBADF`: `fd` is not an open file. Correct the call.
/// * `-EACCES`: The file is not open for the access in `prot`, or `prot` lacks the access
///   that populating needs. Open the file for more, or correct `prot`.
/// * `-ENODEV`: The file cannot be mapped. Read it instead.
/// * `-ENOMEM`: A limit is reached: on mappings or addresses (`vm.max_map_count`,
///   RLIMIT_AS, overcommit, huge pages), on locked memory (RLIMIT_MEMLOCK), or, when
///   populating, on the memory of the machine or the memory cgroup. Map less, or raise the
///   limit.
/// * `-EPERM`: RLIMIT_MEMLOCK is 0 and `TENURE_MAP_LOCKONFAULT` is set: raise it. Or
///   `prot` has PROT_EXEC and the file system forbids that.
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
/// * `out` is NULL or can be written.
/// * `fd` stays open until the call returns.
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
    answer_zero(|| {
        if out.is_null() {
            return Err(BAD_POINTER);
        }
        let has = |flag| tenure_flags & flag != 0;
        let range = PageRange::mmap(&MmapRequest {
            len,
            prot: prot.cast_unsigned(),
            flags: flags.cast_unsigned(),
            // SAFETY: `fd` stays open until the call returns.
            file: unsafe { file(flags, fd, offset) }?,
            no_dump: has(TENURE_MAP_NODUMP),
            wipe_on_fork: has(TENURE_MAP_WIPEONFORK),
            lock: has(TENURE_MAP_LOCKONFAULT).then_some(LockMode::OnFault),
            populate: populate_access(tenure_flags)?,
        })?;
        // SAFETY: `out` is not NULL, so it can be written.
        unsafe { out.write(range.as_ptr().cast()) };
        Ok(())
    })
}

/// Returns the file and the offset, or `None` for anonymous memory.
///
/// # Safety
///
/// The file that is open as `fd` stays open while the result is used.
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
    // SAFETY: not -1, and the file stays open while the result is used. If no file is open as
    // `fd`, mmap() fails with EBADF.
    Ok(Some((unsafe { BorrowedFd::borrow_raw(fd) }, offset)))
}

fn populate_access(tenure_flags: c_uint) -> Result<Option<Access>, Errno> {
    const POPULATE: c_uint = TENURE_MAP_POPULATE_READ | TENURE_MAP_POPULATE_WRITE;
    const OTHERS: c_uint = TENURE_MAP_LOCKONFAULT | TENURE_MAP_NODUMP | TENURE_MAP_WIPEONFORK;
    check_flags(tenure_flags, POPULATE | OTHERS)?;
    match tenure_flags & POPULATE {
        0 => Ok(None),
        TENURE_MAP_POPULATE_READ => Ok(Some(Access::Read)),
        TENURE_MAP_POPULATE_WRITE => Ok(Some(Access::Write)),
        _ => Err(INVALID),
    }
}
