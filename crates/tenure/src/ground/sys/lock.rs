//! `mlock2(2)`, `munlock(2)`, `mlockall(2)` and `munlockall(2)`.

use rustix::io::Errno;
use rustix::mm::{self, MlockAllFlags, MlockFlags};

use super::advise::{Losing, advise_losing};
use super::features::Features;
use crate::PageRange;

/// Locks the range and brings every page of it in.
pub(crate) fn mlock(range: PageRange) -> Result<(), Errno> {
    // SAFETY: locking changes no contents, whatever is mapped in the range.
    unsafe { mm::mlock(range.as_ptr().cast(), range.len()) }
}

/// Locks the pages of the range as they are faulted in (Linux 4.4).
pub(crate) fn mlock_onfault(range: PageRange) -> Result<(), Errno> {
    // SAFETY: as for `mlock`.
    unsafe { mm::mlock_with(range.as_ptr().cast(), range.len(), MlockFlags::ONFAULT) }
}

/// Unlocks the range, in whatever mode it was locked.
pub(crate) fn munlock(range: PageRange) -> Result<(), Errno> {
    // SAFETY: unlocking changes no contents, whatever is mapped in the range.
    unsafe { mm::munlock(range.as_ptr().cast(), range.len()) }
}

/// Locks everything that is mapped, or will be, or both. Without `future` new
/// mappings are no longer locked.
pub(crate) fn mlockall(current: bool, future: bool, on_fault: bool) -> Result<(), Errno> {
    let mut flags = MlockAllFlags::empty();
    flags.set(MlockAllFlags::CURRENT, current);
    flags.set(MlockAllFlags::FUTURE, future);
    flags.set(MlockAllFlags::ONFAULT, on_fault);
    mm::mlockall(flags)
}

/// Unlocks everything; new mappings are no longer locked.
pub(crate) fn munlockall() -> Result<(), Errno> {
    mm::munlockall()
}

/// Lets the pages of a range that is locked on fault go: takes them out of the
/// page tables (`MADV_DONTNEED_LOCKED`, Linux 5.18). The range stays locked on
/// fault, and a page that is used again is locked again.
///
/// Older kernels unlock the range for a moment. If they then refuse to lock it
/// again (the limit was lowered meanwhile), the error leaves it unlocked.
///
/// # Safety
///
/// The range must be a shared mapping, whose contents outlive its page tables.
pub(crate) unsafe fn let_go(range: PageRange) -> Result<(), Errno> {
    if Features::get().madv_dontneed_locked.is_ok() {
        // SAFETY: nothing is lost of a shared mapping, the caller says.
        return unsafe { advise_losing(range, Losing::DontNeedLocked) };
    }
    munlock(range)?;
    // SAFETY: as above.
    let dropped = unsafe { advise_losing(range, Losing::DontNeed) };
    mlock_onfault(range).and(dropped)
}
