//! lock: pages stay once they are in.

use std::ffi::{c_int, c_uint, c_void};

use tenure::{LockAll, LockMode, LockModes};

use crate::answer::{Errno, INVALID, covering, done, only};

/// All pages come in before the call returns.
pub const TENURE_LOCK_NOW: c_uint = 1;
/// Each page comes in when it is first used.
pub const TENURE_LOCK_ONFAULT: c_uint = 2;
/// What is mapped now.
pub const TENURE_LOCK_CURRENT: c_uint = 4;
/// What will be mapped from now on.
pub const TENURE_LOCK_FUTURE: c_uint = 8;

const MODES: c_uint = TENURE_LOCK_NOW | TENURE_LOCK_ONFAULT;

/// Locks a range in memory: its pages stay once they are in. It is `mlock()`, or
/// `mlock2(MLOCK_ONFAULT)`.
///
/// `addr` must be the start of a page. `len` is in bytes and is rounded up to whole
/// pages; 0 succeeds and does nothing. `mode` is `TENURE_LOCK_NOW` or
/// `TENURE_LOCK_ONFAULT`. What is locked already takes the new mode.
///
/// The whole range counts against RLIMIT_MEMLOCK from now on, in both modes; what was
/// locked before is not counted twice. Locks do not stack, and children do not inherit
/// them. hugetlb memory is brought in whole in both modes, has no lock and does not
/// count.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is not touched.
///
/// # Errors
///
/// With every lock as it was before:
///
/// * `-EINVAL`: `addr` is not the start of a page, `mode` is not one of the above, or
///   the range goes past the end of the address space. Correct the call.
/// * `-ENOMEM`: A part is not mapped; or RLIMIT_MEMLOCK does not allow it: raise it
///   (`ulimit -l`, `LimitMEMLOCK=`) or give the program CAP_IPC_LOCK; or the kernel has
///   no room to split a mapping (`vm.max_map_count`).
/// * `-EPERM`: RLIMIT_MEMLOCK is 0. Raise it.
/// * `-EACCES`: With `TENURE_LOCK_NOW`, a part has no access (PROT_NONE) and cannot be
///   brought in. Lock it on fault, or use `mprotect()` first.
/// * `-EFAULT`: With `TENURE_LOCK_NOW`, a page cannot be brought in: its file is
///   shorter than the mapping. Lock less, or make the file longer.
/// * `-ENOSYS`: With `TENURE_LOCK_ONFAULT`, there is no mlock2: before Linux 4.4, and under
///   valgrind. Lock at once.
///
/// # Caveats
///
/// The kernel does not know who has locked a page: unlocking takes all locks away.
///
/// # Notes
///
/// Locking on fault is there from Linux 4.4.
///
/// # See also
///
/// tenure_munlock(3), tenure_mlockall(3), tenure_mmap(3), mlock(2), tenure(7)
///
/// # Safety
///
/// As the caveats say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_mlock(addr: *const c_void, len: usize, mode: c_uint) -> c_int {
    done(|| {
        let mode = mode_of(mode)?;
        // SAFETY: handed on to the caller.
        unsafe { covering(addr, len)?.lock(mode) }?;
        Ok(())
    })
}

/// Unlocks the parts of a range that are locked in one of the modes named. It is
/// `munlock()` on those parts, whoever has locked them; others stay as they are.
///
/// `addr` must be the start of a page. `len` is in bytes and is rounded up to whole
/// pages; 0 succeeds and does nothing. `modes` is `TENURE_LOCK_NOW`,
/// `TENURE_LOCK_ONFAULT`, or both.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is not touched.
///
/// # Errors
///
/// * `-EINVAL`: `addr` is not the start of a page, `modes` names none or others, or the
///   range goes past the end of the address space. Nothing was done; correct the call.
/// * `-ENOMEM`: A part is not mapped, and nothing was done; or the kernel has no room
///   to split a mapping (`vm.max_map_count`), and the parts before it are unlocked.
///
/// # Notes
///
/// The modes are looked up in /proc/self/smaps for what was not locked through tenure,
/// which takes about 20 ms for each GiB that the process has in memory. Before Linux
/// 6.11 that does not tell the mode: what others have locked then counts as
/// `TENURE_LOCK_NOW`, or, while `tenure_mlockall` holds for future mappings, as the mode
/// that it was told.
///
/// # See also
///
/// tenure_mlock(3), tenure_munlockall(3), munlock(2), tenure(7)
///
/// # Safety
///
/// Nothing may rely on the locks that are cleared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_munlock(addr: *const c_void, len: usize, modes: c_uint) -> c_int {
    done(|| {
        let modes = modes_of(modes)?;
        // SAFETY: handed on to the caller.
        unsafe { covering(addr, len)?.unlock(modes) }?;
        Ok(())
    })
}

/// Locks all memory of the process: code, stacks, and what other parts of the program
/// have mapped. It is `mlockall()`.
///
/// `flags` is `TENURE_LOCK_CURRENT`, `TENURE_LOCK_FUTURE` or both, and one mode:
/// `TENURE_LOCK_NOW` or `TENURE_LOCK_ONFAULT`. `TENURE_LOCK_CURRENT` alone ends what
/// was said of future mappings before. Children, and programs that are executed, have
/// no locks.
///
/// While it holds for future mappings, `mmap()` fails with EAGAIN past RLIMIT_MEMLOCK,
/// and with `TENURE_LOCK_ONFAULT` the flags MAP_POPULATE and MAP_LOCKED of `mmap()`
/// bring nothing in; `tenure_populate()` does.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is not touched.
///
/// # Errors
///
/// With every lock as it was:
///
/// * `-EINVAL`: `flags` is not as above. Correct the call.
/// * `-ENOMEM`: RLIMIT_MEMLOCK does not allow it. The kernel compares it with all that
///   is mapped (VmSize). Raise it, or give the program CAP_IPC_LOCK.
/// * `-EPERM`: RLIMIT_MEMLOCK is 0. Raise it.
///
/// # Notes
///
/// Locking on fault is there from Linux 4.4.
///
/// # See also
///
/// tenure_munlockall(3), tenure_mlock(3), mlockall(2), tenure(7)
#[unsafe(no_mangle)]
pub extern "C" fn tenure_mlockall(flags: c_uint) -> c_int {
    const WHICH: c_uint = TENURE_LOCK_CURRENT | TENURE_LOCK_FUTURE;
    done(|| {
        only(flags, WHICH | MODES)?;
        let mode = mode_of(flags & MODES)?;
        let what = match flags & WHICH {
            TENURE_LOCK_CURRENT => LockAll::Current,
            TENURE_LOCK_FUTURE => LockAll::Future,
            WHICH => LockAll::CurrentAndFuture,
            _ => return Err(INVALID),
        };
        Ok(tenure::lock_all(what, mode)?)
    })
}

/// Unlocks all memory of the process that is locked in one of the modes named, and
/// locks new mappings no longer in such a mode. It is `munlockall()` when both are
/// named, and `munlock()` on each part otherwise.
///
/// `modes` is `TENURE_LOCK_NOW`, `TENURE_LOCK_ONFAULT`, or both.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is not touched.
///
/// # Errors
///
/// * `-EINVAL`: `modes` names none or others. Nothing was done; correct the call.
/// * `-ENOMEM`: The kernel has no room to split a mapping (`vm.max_map_count`). Some of
///   the locks have been cleared.
///
/// # Notes
///
/// Where locks of one mode stay and new mappings were locked in the other, all memory
/// is locked on fault for a moment.
///
/// # See also
///
/// tenure_mlockall(3), tenure_munlock(3), munlockall(2), tenure(7)
#[unsafe(no_mangle)]
pub extern "C" fn tenure_munlockall(modes: c_uint) -> c_int {
    done(|| Ok(tenure::unlock_all(modes_of(modes)?)?))
}

fn mode_of(mode: c_uint) -> Result<LockMode, Errno> {
    match mode {
        TENURE_LOCK_NOW => Ok(LockMode::Now),
        TENURE_LOCK_ONFAULT => Ok(LockMode::OnFault),
        _ => Err(INVALID),
    }
}

fn modes_of(modes: c_uint) -> Result<LockModes, Errno> {
    match modes {
        TENURE_LOCK_NOW => Ok(LockModes::NOW),
        TENURE_LOCK_ONFAULT => Ok(LockModes::ON_FAULT),
        MODES => Ok(LockModes::ALL),
        _ => Err(INVALID),
    }
}
