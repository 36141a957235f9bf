//! Memory that answers SIGSEGV: guard regions (`MADV_GUARD_INSTALL`, Linux 6.13),
//! `PROT_NONE` before.

use linux_raw_sys::general::{MADV_GUARD_INSTALL, MADV_GUARD_REMOVE};
use rustix::io::Errno;

use super::advise::{Losing, advise_losing};
use super::features::Features;
use super::{last_errno, map};
use crate::PageRange;

/// Takes the contents of the range, and has every access to it answered by
/// SIGSEGV, or by EFAULT when a system call makes it.
///
/// # Safety
///
/// The range is private anonymous memory; nothing may rely on its contents.
pub(crate) unsafe fn put_up(range: PageRange) -> Result<(), Errno> {
    if Features::get().madv_guard.is_ok() {
        return advise(range, MADV_GUARD_INSTALL);
    }
    map::protect_none(range)?;
    // SAFETY: the caller gives the contents up.
    unsafe { advise_losing(range, Losing::DontNeed) }
}

/// Takes the bars away from all of the range: it reads as zeros where they were,
/// and can be read and written.
///
/// # Safety
///
/// The range could be read and written before [`put_up`].
pub(crate) unsafe fn take_down(range: PageRange) -> Result<(), Errno> {
    if Features::get().madv_guard.is_ok() {
        return advise(range, MADV_GUARD_REMOVE);
    }
    // SAFETY: handed on to the caller.
    unsafe { map::protect_read_write(range) }
}

/// rustix has no name for the guard advice.
fn advise(range: PageRange, advice: u32) -> Result<(), Errno> {
    // SAFETY: removing guards leaves all other pages alone; whoever installs
    // them has given the contents up.
    match unsafe { libc::madvise(range.as_ptr().cast(), range.len(), advice as i32) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}
