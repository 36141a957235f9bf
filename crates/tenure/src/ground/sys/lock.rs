//! `mlock2(2)` and `munlock(2)`.

use rustix::io::Errno;
use rustix::mm::{self, MlockFlags};

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
