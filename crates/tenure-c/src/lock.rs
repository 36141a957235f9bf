//! lock: pages stay in memory once they are faulted in.

use std::ffi::{c_int, c_uint, c_void};

use tenure::{
    Access, LockMode,
    lock::{LockFlags, LockScope},
    populate::PopulateOptions,
};

use crate::answer::{Errno, INVALID, answer_zero, check_flags, covering_pages};
use crate::populate::{TENURE_POPULATE_FORCE, tenure_populate_options, with_options};

/// The mode in which all pages are faulted in, and locked, at once.
pub const TENURE_LOCK_NOW: c_uint = 1;
/// The mode in which each page is locked from its first use on.
pub const TENURE_LOCK_ONFAULT: c_uint = 2;
/// The mappings that exist, for `tenure_mlockall()`.
pub const TENURE_LOCK_CURRENT: c_uint = 4;
/// The mappings that are made from now on, for `tenure_mlockall()`.
pub const TENURE_LOCK_FUTURE: c_uint = 8;

const MODES: c_uint = TENURE_LOCK_NOW | TENURE_LOCK_ONFAULT;

/// Locks a range in memory with `mlock()` or `mlock2(MLOCK_ONFAULT)`: pages stay once they
/// are faulted in.
///
/// `addr` must be the start of a page. `len` is in bytes and is rounded up to whole
/// pages; 0 succeeds and does nothing. `mode` is `TENURE_LOCK_NOW` or
/// `TENURE_LOCK_ONFAULT`. Parts that are locked already take the new mode.
///
/// With `TENURE_LOCK_NOW`, more than 1 MiB is faulted in as by `tenure_populate()`: in
/// chunks, by several threads, so that other threads' `mmap()` and `fork()` do not wait for
/// the whole range. If another thread locks, unlocks or unmaps a part meanwhile, that part
/// is as the other thread wants it.
///
/// The whole range counts against RLIMIT_MEMLOCK from now on, in both modes; parts that
/// were locked before are not counted twice. Locks do not stack, and children do not
/// inherit them. hugetlb memory is faulted in whole in both modes, has no lock and does not
/// count.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is unchanged.
///
/// # Errors
///
/// With every lock as it was before:
///
/// * `-EINVAL`: `addr` is not the start of a page, `mode` is not one of the above, or
///   the range goes past the end of the address space. Correct the call.
/// * `-ENOMEM`: A part is not mapped: map it, or shorten the range. Or RLIMIT_MEMLOCK does
///   not allow the lock: raise it (`ulimit -l`, `LimitMEMLOCK=`) or give the program
///   CAP_IPC_LOCK. Or the process has too many mappings to split one more: raise
///   `vm.max_map_count`. Or, with `TENURE_LOCK_NOW`, the range needs more memory than the
///   machine, the memory cgroup or the pool of huge pages has left: free memory, raise the
///   limit, or use `tenure_mlock_with()`.
/// * `-EPERM`: RLIMIT_MEMLOCK is 0. Raise it.
/// * `-EINVAL`: A part is droppable memory (MAP_DROPPABLE), which the kernel does not lock.
///   Lock other memory.
/// * `-EACCES`: With `TENURE_LOCK_NOW`, a part has no access (PROT_NONE) and cannot be
///   faulted in. Lock it on fault, or use `mprotect()` first.
/// * `-EFAULT`: With `TENURE_LOCK_NOW`, a page cannot be faulted in: its file is shorter
///   than the mapping. Lock less, or make the file longer.
/// * `-EHWPOISON`: With `TENURE_LOCK_NOW`, a page is on memory that has failed. Map other
///   memory.
/// * `-ENOSYS`: With `TENURE_LOCK_ONFAULT`, mlock2 is unavailable: before Linux 4.4, and
///   under valgrind. Use `TENURE_LOCK_NOW`.
///
/// # Caveats
///
/// The kernel does not record the owner of a lock: one unlock ends the locks of all
/// owners.
///
/// # Notes
///
/// Locking on fault is available since Linux 4.4.
///
/// # See also
///
/// tenure_mlock_with(3), tenure_munlock(3), tenure_mlockall(3), tenure_mmap(3), mlock(2),
/// tenure(7)
///
/// # Safety
///
/// The range is the caller's to lock: a later unlock by another owner of the same pages
/// ends this lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_mlock(addr: *const c_void, len: usize, mode: c_uint) -> c_int {
    answer_zero(|| {
        let mode = mode_of(mode)?;
        // SAFETY: handed on to the caller.
        unsafe { covering_pages(addr, len)?.lock(mode) }?;
        Ok(())
    })
}

/// Locks a range in memory with options: as `tenure_mlock()` does with `TENURE_LOCK_NOW`,
/// by a given number of threads, in chunks of a given size, with reports of the progress,
/// and until a callback ends it early.
///
/// `addr` and `len` are as for `tenure_mlock()`. `flags` is 0 or `TENURE_POPULATE_FORCE`.
/// `options` may be NULL for all defaults. The structure is the caller's, and tenure does
/// not use it, its callback or its `data` after the call.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is unchanged.
///
/// # Errors
///
/// Those of `tenure_mlock()`, and, also with every lock as it was before:
///
/// * `-EINVAL`: `flags` is not as above, or `options->size` is smaller than the structure
///   was in the first version. Set it to `sizeof(struct tenure_populate_options)`.
/// * `-E2BIG`: The structure is a later version's and sets a field that this version does
///   not know. Use the library that the program was built for.
/// * `-ECANCELED`: `progress` did not return 0. The pages that were faulted in stay in
///   memory, unlocked.
///
/// # Caveats
///
/// Those of `tenure_mlock()`.
///
/// # Notes
///
/// Before Linux 5.14 only private anonymous memory is faulted in with reports of the
/// progress. The kernel faults other memory in after the last report.
///
/// # See also
///
/// tenure_mlock(3), tenure_populate_with(3), tenure(7)
///
/// # Safety
///
/// * The range is the caller's to lock: a later unlock by another owner of the same pages
///   ends this lock.
/// * `options` is NULL or points to `options->size` bytes.
/// * `progress` may be called with `data` on this thread until the call returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_mlock_with(
    addr: *const c_void,
    len: usize,
    flags: c_uint,
    options: *const tenure_populate_options,
) -> c_int {
    answer_zero(|| {
        check_flags(flags, TENURE_POPULATE_FORCE)?;
        let mut lock_options = PopulateOptions::new(Access::Write);
        if flags != 0 {
            lock_options = lock_options.force();
        }
        // SAFETY: handed on to the caller.
        let lock_options = unsafe { with_options(lock_options, options) }?;
        // SAFETY: handed on to the caller.
        unsafe { covering_pages(addr, len)?.lock_with(&lock_options) }?;
        Ok(())
    })
}

/// Unlocks the parts of a range that are locked in one of the given modes: with
/// `munlock()`, whoever locked them. Other parts keep their locks, and so does memory of a
/// `SecretBuffer` or a `LockedFile`, if Rust code uses this copy of tenure as well.
///
/// `addr` must be the start of a page. `len` is in bytes and is rounded up to whole
/// pages; 0 succeeds and does nothing. `modes` is `TENURE_LOCK_NOW`,
/// `TENURE_LOCK_ONFAULT`, or both.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is unchanged.
///
/// # Errors
///
/// * `-EINVAL`: `addr` is not the start of a page, `modes` has no mode or an unknown flag,
///   or the range goes past the end of the address space. Nothing was done; correct the
///   call.
/// * `-ENOMEM`: A part is not mapped, and nothing was done: map it, or shorten the range.
///   Or the process has too many mappings to split one more, and the parts before it are
///   unlocked: raise `vm.max_map_count`.
///
/// # Notes
///
/// For memory that was not locked through tenure, the modes are read from
/// /proc/self/smaps, which takes about 20 ms for each GiB that the process has in memory.
/// Before Linux 6.11 smaps does not show the mode: such locks then count as
/// `TENURE_LOCK_NOW`, or, while `tenure_mlockall()` is in force for future mappings, as
/// its mode.
///
/// # See also
///
/// tenure_mlock(3), tenure_munlockall(3), munlock(2), tenure(7)
///
/// # Safety
///
/// No code relies on the locks that are cleared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_munlock(addr: *const c_void, len: usize, modes: c_uint) -> c_int {
    answer_zero(|| {
        let modes = modes_of(modes)?;
        // SAFETY: handed on to the caller.
        unsafe { covering_pages(addr, len)?.unlock(modes) }?;
        Ok(())
    })
}

/// Locks all memory of the process with `mlockall()`: code, stacks, and the mappings of
/// other parts of the program.
///
/// `flags` is `TENURE_LOCK_CURRENT`, `TENURE_LOCK_FUTURE` or both, and one mode:
/// `TENURE_LOCK_NOW` or `TENURE_LOCK_ONFAULT`. `TENURE_LOCK_CURRENT` alone ends an earlier
/// lock on future mappings. Children and executed programs have no locks.
///
/// While future mappings are locked, `mmap()` fails with EAGAIN past RLIMIT_MEMLOCK,
/// and with `TENURE_LOCK_ONFAULT` the flags MAP_POPULATE and MAP_LOCKED of `mmap()`
/// fault no page in; `tenure_populate()` does.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is unchanged.
///
/// # Errors
///
/// With every lock as it was before:
///
/// * `-EINVAL`: `flags` is not as above. Correct the call.
/// * `-ENOMEM`: RLIMIT_MEMLOCK does not allow it. The kernel compares the limit with all
///   mapped memory (VmSize). Raise it, or give the program CAP_IPC_LOCK.
/// * `-EPERM`: RLIMIT_MEMLOCK is 0. Raise it.
///
/// # Notes
///
/// With `TENURE_LOCK_CURRENT` and `TENURE_LOCK_NOW` one system call faults all pages in, about
/// 1 s for each GiB. Other threads' `mmap()` and `fork()` wait for all of it. To avoid that,
/// lock on fault, or use `tenure_populate()` on the large ranges first.
///
/// Locking on fault is available since Linux 4.4.
///
/// # See also
///
/// tenure_munlockall(3), tenure_mlock(3), mlockall(2), tenure(7)
#[unsafe(no_mangle)]
pub extern "C" fn tenure_mlockall(flags: c_uint) -> c_int {
    const SCOPES: c_uint = TENURE_LOCK_CURRENT | TENURE_LOCK_FUTURE;
    answer_zero(|| {
        check_flags(flags, SCOPES | MODES)?;
        let mode = mode_of(flags & MODES)?;
        let scope = match flags & SCOPES {
            TENURE_LOCK_CURRENT => LockScope::Current,
            TENURE_LOCK_FUTURE => LockScope::Future,
            SCOPES => LockScope::CurrentAndFuture,
            _ => return Err(INVALID),
        };
        Ok(tenure::lock::lock_all(scope, mode)?)
    })
}

/// Unlocks all memory of the process that is locked in one of the given modes: with
/// `munlockall()` when both are, and with `munlock()` on each part otherwise. New mappings
/// are no longer locked in such a mode.
///
/// `modes` is `TENURE_LOCK_NOW`, `TENURE_LOCK_ONFAULT`, or both.
///
/// In a program that uses this copy of tenure from Rust as well, memory of a `SecretBuffer`
/// or a `LockedFile` stays locked. (Another copy, such as `libtenure.so` beside a Rust
/// program, does not know of such memory, and unlocks it.)
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is unchanged.
///
/// # Errors
///
/// * `-EINVAL`: `modes` has no mode or an unknown flag. Nothing was done; correct the
///   call.
/// * `-ENOMEM`: The process has too many mappings to split one more, and some of the locks
///   are cleared. Raise `vm.max_map_count`. Or new mappings were locked, a `SecretBuffer` or
///   a `LockedFile` exists, and RLIMIT_MEMLOCK is less than all mapped memory (VmSize).
///   Nothing was done then: raise the limit, or drop these values first.
///
/// # Notes
///
/// If locks stay and new mappings were locked in a mode that is cleared, all memory is
/// locked on fault for a moment, as far as RLIMIT_MEMLOCK allows it.
///
/// # See also
///
/// tenure_mlockall(3), tenure_munlock(3), munlockall(2), tenure(7)
#[unsafe(no_mangle)]
pub extern "C" fn tenure_munlockall(modes: c_uint) -> c_int {
    answer_zero(|| Ok(tenure::lock::unlock_all(modes_of(modes)?)?))
}

fn mode_of(mode: c_uint) -> Result<LockMode, Errno> {
    match mode {
        TENURE_LOCK_NOW => Ok(LockMode::Now),
        TENURE_LOCK_ONFAULT => Ok(LockMode::OnFault),
        _ => Err(INVALID),
    }
}

fn modes_of(modes: c_uint) -> Result<LockFlags, Errno> {
    match modes {
        TENURE_LOCK_NOW => Ok(LockFlags::NOW),
        TENURE_LOCK_ONFAULT => Ok(LockFlags::ON_FAULT),
        MODES => Ok(LockFlags::ALL),
        _ => Err(INVALID),
    }
}
