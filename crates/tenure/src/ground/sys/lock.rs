//! `mlock2(2)`, `munlock(2)`, `mlockall(2)` and `munlockall(2)`.

use rustix::io::Errno;
use rustix::mm::{self, MlockAllFlags, MlockFlags};

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
