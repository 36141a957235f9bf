//! pool: zeroed pages of the process, ready for the next populate.

use std::ffi::c_int;
use std::mem::offset_of;

use tenure::pool::{PoolOptions, configure};

use crate::answer::{BAD_POINTER, WithSize, answer_zero, read_options};

/// How much the page pool holds. Set all of it to zeros, then `size`, then the fields to
/// change.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tenure_pool_options {
    /// `sizeof(struct tenure_pool_options)` as the program was built with it.
    pub size: usize,
    /// The bytes that the pool holds at most, rounded up to 2 MiB. 0 turns it off.
    pub max_bytes: usize,
    /// The bytes that the pool is filled with ahead of need, `max_bytes` at most.
    pub prefill_bytes: usize,
    /// Not 0: the pool is filled only from the first time on that 2 MiB and more are
    /// populated that it could have filled. A process that never populates so much takes no
    /// memory for it.
    pub prefill_on_use: usize,
    /// Not 0: all private anonymous memory that the process releases with tenure enters the
    /// pool, as if each call were `tenure_recycle()`.
    pub recycle_released: usize,
}

// SAFETY: `repr(C)`, `size` is its first field, and all are integers.
unsafe impl WithSize for tenure_pool_options {
    const FIRST_SIZE: usize = offset_of!(tenure_pool_options, prefill_on_use);
}

/// Sets the size of the process's page pool, and turns it on or off: populating takes zeroed
/// pages from there with `mremap()` or UFFDIO_MOVE before it asks the kernel for others.
///
/// `options` must not be NULL. The structure is the caller's, and tenure does not use it
/// after the call. The pool is off until it is configured, in a child of `fork()` as well.
/// With `max_bytes` 0 it is emptied and off; a changed `max_bytes` empties it first.
///
/// A thread fills the pool with `prefill_bytes` ahead of need, from the first use on with
/// `prefill_on_use`. Memory given to
/// `tenure_recycle()` enters it in whole blocks of 2 MiB until it is full; `tenure_drain()`
/// waits until that is zeroed and ready. Memory that is released otherwise, by
/// `tenure_munmap()` or `tenure_discard()`, enters it only with `recycle_released`: for
/// programs in which none of its pages is still in a pipe (`vmsplice()`) or in a socket
/// (MSG_ZEROCOPY), whose reader would find other contents.
/// `tenure_populate()` for writing and `tenure_mmap()` with `TENURE_MAP_POPULATE_WRITE` take
/// blocks for private anonymous memory.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is unchanged.
///
/// # Errors
///
/// The pool is unchanged:
///
/// * `-EFAULT`: `options` is NULL. Correct the call.
/// * `-EINVAL`: `options->size` is smaller than the structure was in the first version.
///   Set it to `sizeof(struct tenure_pool_options)`.
/// * `-ESRCH`: The process is a child of one with a pool, made without the handlers of
///   `fork()` (`_Fork()`, `clone()`). It has no pool.
/// * `-E2BIG`: The structure is a later version's and sets a field that this version does
///   not know. Use the library that the program was built for.
///
/// The pool is off:
///
/// * `-EOPNOTSUPP`: The kernel lacks MREMAP_DONTUNMAP (Linux 5.7) or MADV_POPULATE_WRITE
///   (Linux 5.14). The program runs without the pool.
/// * `-ENOMEM`: The kernel has no addresses for so many bytes (RLIMIT_AS,
///   RLIMIT_DATA, strict overcommit). Use a smaller pool.
/// * `-EAGAIN`: No thread can be started. Raise RLIMIT_NPROC or the cgroup's `pids.max`.
///
/// # Caveats
///
/// The memory in the pool counts as the process's. Blocks that nobody takes for seconds become
/// lazily free, memory pressure empties the pool, and no call of tenure fails for what it
/// holds; other processes cannot use it before.
///
/// # Notes
///
/// Recycled memory enters the pool from Linux 6.8 on, and needs `userfaultfd()`. Without it
/// the pool has what it was filled with ahead of need.
///
/// # See also
///
/// tenure_populate(3), tenure_recycle(3), tenure_drain(3), mremap(2), tenure(7)
///
/// # Safety
///
/// `options` is NULL or points to `options->size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_pool_configure(options: *const tenure_pool_options) -> c_int {
    answer_zero(|| {
        if options.is_null() {
            return Err(BAD_POINTER);
        }
        // SAFETY: not NULL, so it points to `options->size` bytes.
        let given = unsafe { read_options(options) }?;
        let options = PoolOptions::new()
            .max_bytes(given.max_bytes)
            .prefill_bytes(given.prefill_bytes)
            .prefill_on_use(given.prefill_on_use != 0)
            .recycle_released(given.recycle_released != 0);
        configure(&options)?;
        Ok(())
    })
}
