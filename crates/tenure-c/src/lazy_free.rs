//! lazy free: the program no longer needs the contents.

use std::ffi::{c_int, c_void};

use crate::answer::{answer_zero, whole_pages};

/// Frees the contents of a range lazily with `madvise(MADV_FREE)`: the program no longer
/// needs them, and the kernel reclaims the pages when it needs memory.
///
/// `addr` must be the start of a page and `len`, in bytes, a whole number of pages; 0
/// succeeds and does nothing. The range must be private anonymous memory.
///
/// Until a page is written again, its contents may become zeros at any time. A write
/// cancels the lazy free of its page; a read does not. The pages count in the process's
/// RSS until the kernel reclaims them. Swapped-out pages are dropped at once, and so are
/// those that another process has, too, since a fork(). The range is no longer volatile.
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
/// * `-ENOMEM`: A part is not mapped. Map it, or shorten the range.
/// * `-EPERM`: A part is sealed (`mseal()`) and not writable. Shorten the range.
/// * `-EOPNOTSUPP`: The kernel has no MADV_FREE, or not for this memory. Use
///   `tenure_discard()`.
///
/// # Caveats
///
/// No code may rely on the contents of the range any more.
///
/// # Notes
///
/// MADV_FREE is available since Linux 4.5, and on systems without swap since 4.12.
///
/// # See also
///
/// tenure_discard(3), tenure_mvolatile(3), madvise(2), tenure(7)
///
/// # Safety
///
/// No code relies on the contents of the range, or reads a byte of it before it is
/// written again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_lazy_free(addr: *mut c_void, len: usize) -> c_int {
    answer_zero(|| {
        // SAFETY: handed on to the caller.
        unsafe { whole_pages(addr, len)?.lazy_free() }?;
        Ok(())
    })
}
