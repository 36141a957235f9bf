//! volatile: the program wants the contents, but the kernel may purge them.

use std::ffi::{c_int, c_uint, c_void};

use tenure::{
    Outcome, PageRange,
    volatile::{Priority, VolatileOptions},
};

use crate::answer::{Errno, INVALID, answer, answer_zero, check_flags, whole_pages};
use crate::tenure_range;

/// Offers the range to the kernel before the call returns.
pub const TENURE_VOLATILE_OFFER_NOW: c_uint = 1;

/// Marks a range volatile: the kernel may purge its pages when it needs memory, and the
/// program learns which. Its priority is {VOLATILE_PRIORITY_DEFAULT}, where 0 is purged first
/// and {VOLATILE_PRIORITY_MAX} last. A thread of tenure's offers the range to the kernel, with `userfaultfd()` in SIGBUS mode and
/// `madvise(MADV_FREE)`, once it has been volatile for {VOLATILE_OFFER_DELAY}, or at once
/// under memory pressure.
///
/// `addr` must be the start of a page and `len`, in bytes, a whole number of pages; 0
/// succeeds and does nothing. The range must be private anonymous memory, readable and
/// writable. Ranges may overlap; marking a range again is harmless.
///
/// From now on, until `tenure_mnovolatile()`: pages that are not purged read as before. A
/// write to a page keeps its old contents from being purged; the page stays volatile.
/// Touching a purged page raises SIGBUS with its address in `si_addr`; a system call that
/// is given such an address fails with EFAULT. Pages that were never touched cannot be
/// purged, and read as zeros.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is unchanged.
///
/// # Errors
///
/// With nothing done:
///
/// * `-EINVAL`: `addr` or `len` is not whole pages, or the range goes past the end of
///   the address space; or a part is not private anonymous memory, or is locked.
///   Correct the call; use `tenure_munlock()` first.
/// * `-ENOMEM`: A part is not mapped: map it, or shorten the range. Or the process has too
///   many mappings to split one more, of which volatile memory takes a quarter at most:
///   raise `vm.max_map_count`.
/// * `-EACCES`: A part cannot be read and written. Use `mprotect()` first.
/// * `-EPERM`: A part is sealed (`mseal()`) and not writable. Shorten the range.
/// * `-EBUSY`: A part is registered with another userfaultfd. Unregister it first.
/// * `-EMFILE`, `-ENFILE`: No file descriptor is left to read the mappings. Raise
///   RLIMIT_NOFILE, or close some.
/// * `-EOPNOTSUPP`: `userfaultfd()` worked before and is refused now, by a seccomp filter
///   or a sysctl that was set since. Mark a range before that.
///
/// # Caveats
///
/// While the range is volatile, do not use it in ways that cannot tolerate SIGBUS. Only
/// tenure may unmap it, move it or map over it, which ends its volatility. After `fork()`
/// the range is volatile in the child as well; the memory of a child made with `clone()`
/// is not protected. Do not mark droppable memory (MAP_DROPPABLE): the kernel turns its pages
/// into zeros without a report.
///
/// # Notes
///
/// Offering needs `userfaultfd()` and MADV_POPULATE_WRITE (Linux 5.14). Where one of them
/// is unavailable or refused (by the seccomp profile of a container), tenure offers nothing
/// to the kernel: it purges pages itself under memory pressure, and touching one
/// raises SIGSEGV.
///
/// # See also
///
/// tenure_mnovolatile(3), tenure_mvolatile_with(3), tenure_purge(3), userfaultfd(2),
/// tenure(7)
///
/// # Safety
///
/// Until the range is nonvolatile again:
///
/// * no code uses it in ways that cannot tolerate SIGBUS,
/// * only tenure unmaps it, moves it or maps over it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_mvolatile(addr: *mut c_void, len: usize) -> c_int {
    answer_zero(|| {
        // SAFETY: handed on to the caller.
        unsafe { whole_pages(addr, len)?.mark_volatile() }?;
        Ok(())
    })
}

/// Marks a range volatile with options: as `tenure_mvolatile()` does, with a priority,
/// and, with a flag, offering it to the kernel at once.
///
/// `addr` and `len` are as for `tenure_mvolatile()`. `priority` is 0 (purged first) to
/// {VOLATILE_PRIORITY_MAX} (purged last); within one priority the range that was marked
/// least recently is purged first. tenure keeps to this order when it purges under memory
/// pressure; the kernel purges in the order in which ranges were offered. `flags` is 0 or
/// `TENURE_VOLATILE_OFFER_NOW`.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is unchanged.
///
/// # Errors
///
/// Those of `tenure_mvolatile()`, and:
///
/// * `-EINVAL`: `priority` is larger than {VOLATILE_PRIORITY_MAX}, or a flag is unknown.
///   Nothing was done; correct the call.
///
/// # Caveats
///
/// Those of `tenure_mvolatile()`.
///
/// # Notes
///
/// Those of `tenure_mvolatile()`. If offering fails, the pages stay resident, and
/// `offer_failed_bytes` of `tenure_stats()` counts them.
///
/// # See also
///
/// tenure_mvolatile(3), tenure_mnovolatile(3), tenure_stats(3), tenure(7)
///
/// # Safety
///
/// That of [`tenure_mvolatile`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_mvolatile_with(
    addr: *mut c_void,
    len: usize,
    priority: c_uint,
    flags: c_uint,
) -> c_int {
    answer_zero(|| {
        check_flags(flags, TENURE_VOLATILE_OFFER_NOW)?;
        let mut options = VolatileOptions::new().priority(priority_of(priority)?);
        if flags & TENURE_VOLATILE_OFFER_NOW != 0 {
            options = options.offer_now();
        }
        // SAFETY: handed on to the caller.
        unsafe { whole_pages(addr, len)?.mark_volatile_with(options) }?;
        Ok(())
    })
}

/// Makes a volatile range ordinary memory again: revokes the offer to the kernel with
/// `madvise(MADV_POPULATE_WRITE)`, and reports exactly which pages were purged. Purged pages
/// read as zeros; all others are as they were.
///
/// `addr` must be the start of a page and `len`, in bytes, a whole number of pages; 0
/// succeeds and does nothing. Parts that are not volatile are skipped.
///
/// `purged` is NULL, or an array of `max_purged` ranges, which receives the first runs of
/// purged pages in order of address. `purged_count` is NULL, or receives the number of all
/// runs, including those past `max_purged`. On an error both are unchanged. The array is
/// the caller's; tenure keeps no pointer to it.
///
/// # Return value
///
/// * `0`: The range is intact: every byte is as it was.
/// * `1`: Pages were purged.
///
/// Or one of the errors below, negative. `errno` is unchanged.
///
/// # Errors
///
/// * `-EINVAL`: `addr` or `len` is not whole pages, or the range goes past the end of
///   the address space. Nothing was done; correct the call.
/// * `-ENOMEM`: A part is not mapped, and nothing was done: map it, or shorten the range.
///   Or it lies inside a larger range, and to split what is offered to the kernel would
///   take more than a quarter of `vm.max_map_count`, and nothing was done: unmark the
///   whole range, or raise the limit.
///   Or there is too little memory to repopulate a page. Then the range stays volatile,
///   and the next call that succeeds reports the purged pages that this one found: free
///   memory and call again.
///
/// # Caveats
///
/// A part whose protection ended outside of tenure (something else was mapped there, or
/// all descriptors were closed and the thread tenure-files could not be started) is
/// reported as purged whole; its contents are left alone.
///
/// # Notes
///
/// PAGEMAP_SCAN (Linux 6.7) finds the purged pages; before, /proc/self/pagemap does, which
/// takes longer.
///
/// # See also
///
/// tenure_mvolatile(3), tenure_purge(3), tenure(7)
///
/// # Safety
///
/// * The range is the caller's: another owner may count on SIGBUS.
/// * `purged` is NULL or has space for `max_purged` ranges.
/// * `purged_count` is NULL or can be written.
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
        let outcome = unsafe { whole_pages(addr, len)?.mark_nonvolatile() }?;
        let runs = match &outcome {
            Outcome::Intact => &[],
            Outcome::Purged(runs) => runs.as_slice(),
        };
        if !purged.is_null() {
            for (index, run) in runs.iter().take(max_purged).enumerate() {
                // SAFETY: `index` is below `max_purged`, for which `purged` has space.
                unsafe { purged.add(index).write(c_range(*run)) };
            }
        }
        if !purged_count.is_null() {
            // SAFETY: not NULL, so it can be written.
            unsafe { purged_count.write(runs.len()) };
        }
        Ok(c_int::from(outcome != Outcome::Intact))
    })
}

/// Purges the volatile parts of a range: now, as the kernel would under memory pressure,
/// with `madvise(MADV_DONTNEED)` on the resident pages. This is for tests, and for programs
/// that are told to shrink.
///
/// `addr` must be the start of a page and `len`, in bytes, a whole number of pages; 0
/// succeeds and does nothing. Parts that are not volatile are left alone. The range
/// stays volatile.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is unchanged.
///
/// # Errors
///
/// * `-EINVAL`: `addr` or `len` is not whole pages, or the range goes past the end of
///   the address space, and nothing was done; or a part was locked after it was marked.
///   Correct the call; use `tenure_munlock()` first.
/// * `-ENOMEM`: A part is not mapped. Nothing was done. Map it, or shorten the range.
///
/// # Notes
///
/// Those of `tenure_mvolatile()`.
///
/// # See also
///
/// tenure_mvolatile(3), tenure_mnovolatile(3), tenure(7)
///
/// # Safety
///
/// The range is the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_purge(addr: *mut c_void, len: usize) -> c_int {
    answer_zero(|| {
        // SAFETY: handed on to the caller.
        unsafe { whole_pages(addr, len)?.purge() }?;
        Ok(())
    })
}

fn priority_of(priority: c_uint) -> Result<Priority, Errno> {
    let number = usize::try_from(priority).map_err(|_| INVALID)?;
    Priority::ALL.get(number).copied().ok_or(INVALID)
}

fn c_range(range: PageRange) -> tenure_range {
    tenure_range {
        addr: range.as_ptr().cast(),
        len: range.len(),
    }
}
