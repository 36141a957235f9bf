//! release: a range goes away, or its contents do.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use crate::answer::{INVALID, done, exactly};

/// Unmaps a range, at once for the caller, whatever its size. It is `munmap()` with its
/// meaning, holes included; the pages of anonymous memory of 4 MiB and more are moved
/// out of the way with `mremap()` and freed by threads of tenure's.
///
/// `addr` must be the start of a page and `len`, in bytes, a whole number of pages; 0
/// succeeds and does nothing. Locks and volatility of the range end.
///
/// Files, locked memory and hugetlb memory are unmapped before the call returns, in
/// chunks that do not keep other threads waiting.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is not touched.
///
/// # Errors
///
/// * `-EINVAL`: `addr` or `len` is not whole pages, or the range goes past the end of
///   the address space, and nothing was done; or a part is a part of a huge page.
///   Correct the call.
/// * `-ENOMEM`: The kernel has no room to split a mapping (`vm.max_map_count`). What lies
///   before it may be unmapped, and contents are given up. Unmap whole mappings.
///
/// # Caveats
///
/// Nothing may use the range any more.
///
/// # Notes
///
/// What was moved away is in use until it is freed: `tenure_drain()` waits for that.
///
/// # See also
///
/// tenure_discard(3), tenure_drain(3), munmap(2), tenure(7)
///
/// # Safety
///
/// As the caveats say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_munmap(addr: *mut c_void, len: usize) -> c_int {
    done(|| {
        // SAFETY: handed on to the caller.
        unsafe { exactly(addr, len)?.munmap() }?;
        Ok(())
    })
}

/// Discards the contents of a range, at once for the caller, whatever its size: it
/// stays mapped and reads as zeros, or, for a private mapping of a file, as the file
/// does. It is `madvise(MADV_DONTNEED)` with its meaning; the pages of anonymous memory
/// of 4 MiB and more are moved away with `mremap(MREMAP_DONTUNMAP)` and freed by
/// threads of tenure's.
///
/// `addr` must be the start of a page and `len`, in bytes, a whole number of pages; 0
/// succeeds and does nothing. Volatility of the range ends.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is not touched.
///
/// # Errors
///
/// * `-EINVAL`: `addr` or `len` is not whole pages, or the range goes past the end of
///   the address space; or a part is shared, hugetlb or locked memory. Nothing was done.
///   Correct the call; use `tenure_munlock()` first.
/// * `-ENOMEM`: A part is not mapped. Nothing was done.
///
/// # Caveats
///
/// Nothing may rely on the contents of the range any more.
///
/// # Notes
///
/// MREMAP_DONTUNMAP is there from Linux 5.7. Before, MADV_DONTNEED is used, in chunks.
///
/// # See also
///
/// tenure_lazy_free(3), tenure_munmap(3), tenure_drain(3), madvise(2), tenure(7)
///
/// # Safety
///
/// As the caveats say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_discard(addr: *mut c_void, len: usize) -> c_int {
    done(|| {
        // SAFETY: handed on to the caller.
        unsafe { exactly(addr, len)?.discard() }?;
        Ok(())
    })
}

/// Waits until all memory that `tenure_munmap()` and `tenure_discard()` left behind is
/// freed.
///
/// `timeout_ms` is in milliseconds: -1 waits as long as it takes, 0 only asks.
///
/// # Return value
///
/// 0 when all is free, or one of the errors below, negative. `errno` is not touched.
///
/// # Errors
///
/// * `-ETIMEDOUT`: The time is over, and something is still pending:
///   `pending_release_bytes` of `tenure_stats()` tells how much. Call again.
/// * `-EINVAL`: `timeout_ms` is less than -1.
///
/// # Notes
///
/// While somebody waits, the threads that free memory do not step back for others.
///
/// # See also
///
/// tenure_munmap(3), tenure_discard(3), tenure_stats(3), tenure(7)
#[unsafe(no_mangle)]
pub extern "C" fn tenure_drain(timeout_ms: c_int) -> c_int {
    done(|| {
        let timeout = match u64::try_from(timeout_ms) {
            Ok(millis) => Some(Duration::from_millis(millis)),
            Err(_) if timeout_ms == -1 => None,
            Err(_) => return Err(INVALID),
        };
        Ok(tenure::drain(timeout)?)
    })
}
