//! release: a range is unmapped, or its contents are discarded.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use crate::answer::{INVALID, answer_without_memory, answer_zero, whole_pages};

/// Unmaps a range: as `munmap()` does, but the caller does not wait for large memory to be
/// freed. Pages of anonymous memory, where the range has {RELEASE_THRESHOLD} and more of one
/// mapping, are moved to another address with `mremap()`, and tenure's worker threads free
/// them.
///
/// `addr` must be the start of a page and `len`, in bytes, a whole number of pages; 0
/// succeeds and does nothing. The range may have holes. Locks and volatility of the range
/// end.
///
/// Files, locked memory and hugetlb memory are unmapped before the call returns, in
/// chunks that do not keep other threads waiting.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is unchanged.
///
/// # Errors
///
/// * `-EINVAL`: `addr` or `len` is not whole pages, or the range goes past the end of
///   the address space, and nothing was done; or a part is a part of a huge page.
///   Correct the call.
/// * `-EPERM`: A mapping of the range is sealed (`mseal()`), and nothing was done. It stays
///   until the process ends.
/// * `-ENOMEM`: The process has too many mappings to split one more. Other parts of the range
///   may be unmapped, and their contents are lost. Unmap whole mappings, or raise
///   `vm.max_map_count`.
///
/// # Caveats
///
/// No code may use the range any more, or a mapping that another thread has made in a hole
/// of it.
///
/// # Notes
///
/// Moved pages use memory until a worker has freed them: `tenure_drain()` waits for that.
///
/// Where the process has a userfaultfd monitor that asked for UFFD_EVENT_REMAP or
/// UFFD_EVENT_UNMAP, the call waits until the monitor has read the event, and other releases,
/// `tenure_drain()` and `fork()` wait for the call.
///
/// # See also
///
/// tenure_discard(3), tenure_drain(3), munmap(2), tenure(7)
///
/// # Safety
///
/// No code uses the range any more, or a mapping that another thread has made in a hole of
/// it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_munmap(addr: *mut c_void, len: usize) -> c_int {
    // Unmapping gives memory back, and goes on where the allocator has none.
    answer_without_memory(|| {
        // SAFETY: handed on to the caller.
        unsafe { whole_pages(addr, len)?.munmap() }?;
        Ok(0)
    })
}

/// Unmaps a range of memory like `tenure_munmap()`, and lets the page pool keep its pages:
/// workers zero them for the next populate. Without a pool it is `tenure_munmap()`.
///
/// `addr` must be the start of a page, and `len`, in bytes, whole pages; 0 succeeds and does
/// nothing. Whole blocks of 2 MiB of private anonymous memory that is not locked enter the pool,
/// where the range has {RELEASE_THRESHOLD} and more in one mapping; all else is freed.
///
/// # Return value
///
/// 0, or an error of `tenure_munmap()`, negative. `errno` is unchanged.
///
/// # Errors
///
/// * `-EINVAL`, `-EPERM`, `-ENOMEM`: As for `tenure_munmap()`.
///
/// # Caveats
///
/// Nothing else may refer to the pages. The kernel may: those in a pipe (`vmsplice()`), or in
/// a socket that has not sent them yet (MSG_ZEROCOPY). A reader there later finds zeros, or
/// the contents of the memory that gets the pages next. Pages that are pinned (O_DIRECT,
/// io_uring, RDMA) or shared with a child stay out of the pool.
///
/// No code may use the range any more.
///
/// # Notes
///
/// `tenure_drain()` waits until the pages are zeroed and ready.
///
/// # See also
///
/// tenure_munmap(3), tenure_pool_configure(3), tenure_drain(3), tenure(7)
///
/// # Safety
///
/// No code uses the range any more, or a mapping that another thread has made in a hole of
/// it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_recycle(addr: *mut c_void, len: usize) -> c_int {
    answer_without_memory(|| {
        // SAFETY: handed on to the caller.
        unsafe { whole_pages(addr, len)?.recycle() }?;
        Ok(0)
    })
}

/// Discards the contents of a range: as `madvise(MADV_DONTNEED)` does, but the caller does
/// not wait for large memory to be freed. The range stays mapped and reads as zeros, or,
/// for a private mapping of a file, as the file does. Pages of private
/// anonymous memory, where the range has {RELEASE_THRESHOLD} and more of one mapping, are
/// moved to another address with `mremap(MREMAP_DONTUNMAP)`, and tenure's worker threads
/// free them.
///
/// `addr` must be the start of a page and `len`, in bytes, a whole number of pages; 0
/// succeeds and does nothing. Volatility of the range ends.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is unchanged.
///
/// # Errors
///
/// * `-EINVAL`: `addr` or `len` is not whole pages, or the range goes past the end of
///   the address space; or a part is shared, hugetlb or locked memory. Nothing was done.
///   Correct the call; use `tenure_munlock()` first.
/// * `-ENOMEM`: A part is not mapped. Nothing was done. Map it, or shorten the range.
/// * `-EPERM`: A part of anonymous memory is sealed (`mseal()`) and not writable. Nothing was
///   done. Shorten the range.
///
/// # Caveats
///
/// No code may rely on the contents of the range any more. Guard regions
/// (MADV_GUARD_INSTALL) in what is moved end, which MADV_DONTNEED keeps.
///
/// # Notes
///
/// MREMAP_DONTUNMAP is available since Linux 5.7. Before, the call uses MADV_DONTNEED, in
/// chunks.
///
/// # See also
///
/// tenure_lazy_free(3), tenure_munmap(3), tenure_drain(3), madvise(2), tenure(7)
///
/// # Safety
///
/// No code relies on the contents of the range any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_discard(addr: *mut c_void, len: usize) -> c_int {
    answer_zero(|| {
        // SAFETY: handed on to the caller.
        unsafe { whole_pages(addr, len)?.discard() }?;
        Ok(())
    })
}

/// Waits for deferred frees: until tenure's worker threads have freed all memory that
/// `tenure_munmap()` and `tenure_discard()` moved away.
///
/// `timeout_ms` is in milliseconds: -1 waits without a limit, 0 checks without waiting.
///
/// # Return value
///
/// 0 when all is free, or one of the errors below, negative. `errno` is unchanged.
///
/// # Errors
///
/// * `-ETIMEDOUT`: The time is over, and memory is still pending: `pending_release_bytes`
///   of `tenure_stats()` has the amount. Call again.
/// * `-EINVAL`: `timeout_ms` is less than -1. Correct the call.
///
/// # Notes
///
/// During the call the workers do not yield to other threads.
///
/// # See also
///
/// tenure_munmap(3), tenure_discard(3), tenure_stats(3), tenure(7)
#[unsafe(no_mangle)]
pub extern "C" fn tenure_drain(timeout_ms: c_int) -> c_int {
    answer_without_memory(|| {
        let timeout = match u64::try_from(timeout_ms) {
            Ok(millis) => Some(Duration::from_millis(millis)),
            Err(_) if timeout_ms == -1 => None,
            Err(_) => return Err(INVALID),
        };
        tenure::drain(timeout)?;
        Ok(0)
    })
}
