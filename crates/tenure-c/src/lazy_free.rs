//! lazy free: contents are no longer needed.

use std::ffi::{c_int, c_void};

use crate::answer::{done, exactly};

/// Frees the contents of a range lazily: they are no longer needed, and the kernel
/// takes the pages when it must. It is `madvise(MADV_FREE)`.
///
/// `addr` must be the start of a page and `len`, in bytes, a whole number of pages; 0
/// succeeds and does nothing. It must be private anonymous memory.
///
/// Until a page is written again its contents may turn into zeros at any time. Writing
/// takes it back for good, reading does not. The process's RSS counts the pages until
/// the kernel takes them. Pages that are swapped out are dropped at once. Volatility
/// of the range ends.
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
/// * `-ENOMEM`: A part is not mapped.
/// * `-EOPNOTSUPP`: The kernel has no MADV_FREE, or not for this memory. Use
///   `tenure_discard()`.
///
/// # Caveats
///
/// Nothing may rely on the contents of the range any more.
///
/// # Notes
///
/// MADV_FREE is there from Linux 4.5, and without swap from 4.12.
///
/// # See also
///
/// tenure_discard(3), tenure_mvolatile(3), madvise(2), tenure(7)
///
/// # Safety
///
/// As the caveats say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_lazy_free(addr: *mut c_void, len: usize) -> c_int {
    done(|| {
        // SAFETY: handed on to the caller.
        unsafe { exactly(addr, len)?.lazy_free() }?;
        Ok(())
    })
}
