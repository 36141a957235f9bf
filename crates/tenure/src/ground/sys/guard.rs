//! Guards, where every access is SIGSEGV: `MADV_GUARD_INSTALL` (Linux 6.13),
//! `PROT_NONE` before.

use linux_raw_sys::general::{MADV_GUARD_INSTALL, MADV_GUARD_REMOVE};
use rustix::io::Errno;

use super::advise::{DestructiveAdvice, advise_destructive};
use super::features::Features;
use super::{last_errno, map};
use crate::PageRange;

/// Installs a guard on all of the range: `madvise(MADV_GUARD_INSTALL)`. This
/// discards its contents; every later access is SIGSEGV, or EFAULT from a
/// system call.
///
/// # Safety
///
/// The range is private anonymous memory, readable and writable or with a guard, and
/// nothing may rely on its contents.
pub(crate) unsafe fn install(range: PageRange) -> Result<(), Errno> {
    if Features::get().madv_guard.is_ok() {
        return advise(range, MADV_GUARD_INSTALL);
    }
    map::protect_none(range)?;
    // SAFETY: nothing relies on the contents (the caller's contract).
    unsafe { advise_destructive(range, DestructiveAdvice::DontNeed) }.inspect_err(|_| {
        // SAFETY: it was readable and writable before (the caller's contract).
        let _ = unsafe { map::protect_read_write(range) };
    })
}

/// Removes the guard from all of the range: `madvise(MADV_GUARD_REMOVE)`. The
/// range is then readable and writable, and guarded pages read as zeros.
///
/// # Safety
///
/// The range was readable and writable before [`install`].
pub(crate) unsafe fn remove(range: PageRange) -> Result<(), Errno> {
    if Features::get().madv_guard.is_ok() {
        return advise(range, MADV_GUARD_REMOVE);
    }
    // SAFETY: the range had this access before `install` (the caller's
    // contract).
    unsafe { map::protect_read_write(range) }
}

/// Gives guard advice by libc, because rustix has no name for it.
fn advise(range: PageRange, advice: u32) -> Result<(), Errno> {
    // SAFETY: removing guards changes no other page; `install` requires that
    // nothing relies on the contents.
    match unsafe { libc::madvise(range.as_ptr().cast(), range.len(), advice as i32) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}
