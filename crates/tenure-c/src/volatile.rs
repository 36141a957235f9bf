//! volatile: contents are wanted, but the kernel may take them.

use std::ffi::{c_int, c_uint, c_void};

use tenure::{Outcome, PageRange, Priority};

use crate::answer::{Errno, INVALID, answer, done, exactly, only};
use crate::tenure_range;

/// Offers the range to the kernel before the call returns.
pub const TENURE_VOLATILE_OFFER_NOW: c_uint = 1;

/// Marks a range volatile, with priority 2: the kernel may take its pages when it
/// needs them, and says so. It is `userfaultfd()` in SIGBUS mode and
/// `madvise(MADV_FREE)`, which a thread of tenure's does when the range has been
/// volatile for 100 ms, or at once under memory pressure.
///
/// `addr` must be the start of a page and `len`, in bytes, a whole number of pages; 0
/// succeeds and does nothing. It must be private anonymous memory, readable and
/// writable. Ranges may overlap; marking again is harmless.
///
/// From now on, until `tenure_mnovolatile()`: what is still there reads as before. A
/// write keeps its page from being taken with its old contents; the page stays
/// volatile. Touching a page that was taken is SIGBUS with its address in `si_addr`; a
/// system call that is given such an address answers EFAULT. Pages that were never
/// touched are not lost, and read as zeros.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is not touched.
///
/// # Errors
///
/// With nothing done:
///
/// * `-EINVAL`: `addr` or `len` is not whole pages, or the range goes past the end of
///   the address space; or a part is not private anonymous memory, or is locked.
///   Correct the call; use `tenure_munlock()` first.
/// * `-ENOMEM`: A part is not mapped, or the kernel has no room to split a mapping
///   (`vm.max_map_count`).
/// * `-EACCES`: A part cannot be read and written. Use `mprotect()` first.
/// * `-EBUSY`: A part is registered with another userfaultfd. End that first.
/// * `-EOPNOTSUPP`: No descriptor is left for a userfaultfd (RLIMIT_NOFILE).
///
/// # Caveats
///
/// Do not use the memory meanwhile in ways that cannot stand SIGBUS. The range must not
/// be unmapped, moved or mapped over but through tenure, which then ends its
/// volatility. After `fork()` the range is volatile in the child as well; memory that a
/// child made with `clone()` has is not protected.
///
/// # Notes
///
/// It needs Linux 5.11 or a privilege, and MADV_POPULATE_WRITE (Linux 5.14). Where these
/// are missing or refused (by the seccomp profile of a container), the kernel is offered
/// nothing: tenure itself takes pages under memory pressure, and touching one is SIGSEGV.
///
/// # See also
///
/// tenure_mnovolatile(3), tenure_mvolatile_with(3), tenure_purge(3), userfaultfd(2),
/// tenure(7)
///
/// # Safety
///
/// As the caveats say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_mvolatile(addr: *mut c_void, len: usize) -> c_int {
    done(|| {
        // SAFETY: handed on to the caller.
        unsafe { exactly(addr, len)?.mark_volatile() }?;
        Ok(())
    })
}

/// Marks a range volatile as `tenure_mvolatile()` does, with a priority, and, if
/// wanted, at once.
///
/// `addr` and `len` are as for `tenure_mvolatile()`. `priority` is 0 (first to go) to 3
/// (last to go); of one priority, what was marked least recently goes first. The order
/// holds for what tenure takes under memory pressure; what the kernel takes by itself
/// goes in the order in which it was offered. `flags` is 0 or
/// `TENURE_VOLATILE_OFFER_NOW`, which offers the range to the kernel before the call
/// returns.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is not touched.
///
/// # Errors
///
/// Those of `tenure_mvolatile()`, and:
///
/// * `-EINVAL`: `priority` is larger than 3, or a flag is not known. Nothing was done.
///
/// # Caveats
///
/// As for `tenure_mvolatile()`.
///
/// # Notes
///
/// As for `tenure_mvolatile()`. What cannot be offered stays where it is, and is counted
/// in `not_offered_bytes` of `tenure_stats()`.
///
/// # See also
///
/// tenure_mvolatile(3), tenure_mnovolatile(3), tenure_stats(3), tenure(7)
///
/// # Safety
///
/// As the caveats say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_mvolatile_with(
    addr: *mut c_void,
    len: usize,
    priority: c_uint,
    flags: c_uint,
) -> c_int {
    done(|| {
        only(flags, TENURE_VOLATILE_OFFER_NOW)?;
        let priority = priority_of(priority)?;
        let range = exactly(addr, len)?;
        if flags & TENURE_VOLATILE_OFFER_NOW == 0 {
            // SAFETY: handed on to the caller.
            unsafe { range.mark_volatile_with(priority) }?;
        } else {
            // SAFETY: handed on to the caller.
            unsafe { range.mark_volatile_now(priority) }?;
        }
        Ok(())
    })
}

/// Makes a volatile range ordinary memory again, and tells exactly which pages were
/// lost: they read as zeros, and all others are as they were.
///
/// `addr` must be the start of a page and `len`, in bytes, a whole number of pages; 0
/// succeeds and does nothing. Parts that are not volatile are passed over.
///
/// `purged` is NULL, or room for `max_purged` ranges: the first runs of lost pages, in
/// order of address. `purged_count` is NULL, or gets the number of all runs, also of
/// those past `max_purged`. On an error neither is touched. The room is the caller's;
/// tenure keeps no pointer to it.
///
/// # Return value
///
/// * `0`: Intact: every byte is as it was.
/// * `1`: Something was lost.
///
/// Or one of the errors below, negative. `errno` is not touched.
///
/// # Errors
///
/// * `-EINVAL`: `addr` or `len` is not whole pages, or the range goes past the end of
///   the address space. Nothing was done; correct the call.
/// * `-ENOMEM`: A part is not mapped, and nothing was done; or there is no memory to take
///   a page back. Then the range stays volatile, and what was found to be lost is told by
///   the next call that succeeds: free memory and call again.
///
/// # Caveats
///
/// A part whose protection ended without tenure's doing (all descriptors were closed, or
/// something else was mapped there) is told as lost whole; what it holds is left as it is.
///
/// # Notes
///
/// PAGEMAP_SCAN (Linux 6.7) finds what was lost; before, /proc/self/pagemap does, which
/// takes longer.
///
/// # See also
///
/// tenure_mvolatile(3), tenure_purge(3), tenure(7)
///
/// # Safety
///
/// `purged` is NULL or has room for `max_purged` ranges; `purged_count` is NULL or can be
/// written. The range must be the caller's: another owner may count on SIGBUS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_mnovolatile(
    addr: *mut c_void,
    len: usize,
    purged: *mut tenure_range,
    max_purged: usize,
    purged_count: *mut usize,
) -> c_int {
    answer(|| {
        // SAFETY: handed on to the caller.
        let outcome = unsafe { exactly(addr, len)?.mark_nonvolatile() }?;
        let runs = match &outcome {
            Outcome::Intact => &[],
            Outcome::Purged(runs) => runs.as_slice(),
        };
        if !purged.is_null() {
            for (index, run) in runs.iter().take(max_purged).enumerate() {
                // SAFETY: below `max_purged`, for which there is room.
                unsafe { purged.add(index).write(plain(*run)) };
            }
        }
        if !purged_count.is_null() {
            // SAFETY: the caller has promised that it can be written.
            unsafe { purged_count.write(runs.len()) };
        }
        Ok(c_int::from(outcome != Outcome::Intact))
    })
}

/// Purges the volatile parts of a range: has their contents taken now, as the kernel
/// would under memory pressure. It is `madvise(MADV_DONTNEED)` on the pages that are
/// there. For tests, and for programs that are told to shrink.
///
/// `addr` must be the start of a page and `len`, in bytes, a whole number of pages; 0
/// succeeds and does nothing. Parts that are not volatile are left alone. The range
/// stays volatile.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is not touched.
///
/// # Errors
///
/// * `-EINVAL`: `addr` or `len` is not whole pages, or the range goes past the end of
///   the address space, and nothing was done; or a part was locked after it was marked.
///   Correct the call; use `tenure_munlock()` first.
/// * `-ENOMEM`: A part is not mapped. Nothing was done.
///
/// # Notes
///
/// As for `tenure_mvolatile()`.
///
/// # See also
///
/// tenure_mvolatile(3), tenure_mnovolatile(3), tenure(7)
///
/// # Safety
///
/// The range must be the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_purge(addr: *mut c_void, len: usize) -> c_int {
    done(|| {
        // SAFETY: handed on to the caller.
        unsafe { exactly(addr, len)?.purge() }?;
        Ok(())
    })
}

fn priority_of(priority: c_uint) -> Result<Priority, Errno> {
    let number = usize::try_from(priority).map_err(|_| INVALID)?;
    Priority::ALL.get(number).copied().ok_or(INVALID)
}

fn plain(range: PageRange) -> tenure_range {
    tenure_range {
        addr: range.as_ptr().cast(),
        len: range.len(),
    }
}
