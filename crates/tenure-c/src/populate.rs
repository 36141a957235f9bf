//! populate: fault a range in now.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;

use tenure::{
    Access,
    populate::{CancelToken, PopulateOptions, Progress},
};

use crate::answer::{
    Errno, INVALID, WithSize, answer_zero, check_flags, covering_pages, read_options,
};

/// Populates for reading: maps the pages that exist. In private anonymous memory each
/// address maps the zero page, and no memory is used.
pub const TENURE_POPULATE_READ: c_uint = 1;
/// Populates for writing, without changing contents.
pub const TENURE_POPULATE_WRITE: c_uint = 2;
/// Populates although the headroom seems too small. Past the limit of a memory cgroup the
/// kernel kills the process.
pub const TENURE_POPULATE_FORCE: c_uint = 4;

/// How to populate. Set all of it to zeros, then `size`, then the fields to change.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tenure_populate_options {
    /// `sizeof(struct tenure_populate_options)` as the program was built with it.
    pub size: usize,
    /// The number of threads that share the work, the calling one included. 0 is the
    /// default: one for each CPU that the process may use, at most one for each
    /// {POPULATE_BYTES_PER_THREAD} begun.
    pub threads: usize,
    /// The number of bytes to fault in at a time, rounded up to whole pages. 0 is the
    /// default: chunks that take about {POPULATE_CHUNK_DURATION}. Another thread's
    /// `mmap()` waits for as long as a chunk takes.
    pub chunk_bytes: usize,
    /// NULL, or a function that is called on the calling thread about every
    /// {POPULATE_REPORT_EVERY}, and once at the end. If it returns anything but 0,
    /// populating ends early with `-ECANCELED`. It must return: no `longjmp()`, no C++
    /// exception.
    pub progress: Option<
        unsafe extern "C" fn(done_bytes: usize, total_bytes: usize, data: *mut c_void) -> c_int,
    >,
    /// The last argument of `progress`. tenure does not use it, and it may be NULL.
    pub data: *mut c_void,
}

/// Populates a range of memory: faults it in now with `madvise(MADV_POPULATE_READ)` or
/// `MADV_POPULATE_WRITE`, in chunks, by several threads, so that touching it later takes
/// no page fault.
///
/// `addr` must be the start of a page. `len` is in bytes and is rounded up to whole
/// pages; 0 succeeds and does nothing. `flags` is `TENURE_POPULATE_READ` or
/// `TENURE_POPULATE_WRITE`, with or without `TENURE_POPULATE_FORCE`.
///
/// Contents do not change, even while other threads write to them. A page that cannot be
/// faulted in is an error and no signal. The kernel may reclaim populated pages under
/// memory pressure; `tenure_mlock()` keeps them.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is unchanged.
///
/// # Errors
///
/// With nothing done:
///
/// * `-EINVAL`: `addr` is not the start of a page, `flags` is not one of the above,
///   the range goes past the end of the address space, or a part is a special mapping
///   of the kernel's (`[vdso]`). Correct the call.
/// * `-ENOMEM`: A part is not mapped: map it, or shorten the range. Or the range needs
///   more memory than the machine, the memory cgroup or the pool of huge pages has left:
///   free memory or raise the limit, or use `TENURE_POPULATE_FORCE`.
/// * `-EACCES`: A part cannot be read, or written. Use `mprotect()` first.
///
/// With a part populated, which is harmless:
///
/// * `-EFAULT`: A page has nothing behind it: its file is shorter than the mapping, or no
///   huge page is free. Touching it would raise SIGBUS. Make the file longer.
/// * `-EHWPOISON`: A page is on memory that has failed. Map other memory.
///
/// # Caveats
///
/// No other code may count on pages of the range being absent, as the handler of a
/// userfaultfd does.
///
/// # Notes
///
/// MADV_POPULATE_READ and MADV_POPULATE_WRITE are available since Linux 5.14. Before,
/// system calls touch the pages, with the same result and more slowly.
///
/// # See also
///
/// tenure_populate_with(3), tenure_mlock(3), madvise(2), tenure(7)
///
/// # Safety
///
/// No other code counts on pages of the range being absent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_populate(addr: *mut c_void, len: usize, flags: c_uint) -> c_int {
    answer_zero(|| {
        let options = options_of(flags)?;
        // SAFETY: handed on to the caller.
        unsafe { covering_pages(addr, len)?.populate_with(&options) }?;
        Ok(())
    })
}

/// Populates a range of memory with options: with `madvise()` as `tenure_populate()` does,
/// by a given number of threads, in chunks of a given size, with reports of the progress,
/// and until a callback ends it early.
///
/// `addr`, `len` and `flags` are as for `tenure_populate()`. `options` may be NULL for all
/// defaults. The structure is the caller's, and tenure does not use it, its callback or
/// its `data` after the call.
///
/// To end early from another thread or a signal handler, set a flag of your own and let
/// `progress` return it.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is unchanged.
///
/// # Errors
///
/// Those of `tenure_populate()`, and:
///
/// * `-EINVAL`: `options->size` is smaller than the structure was in the first version.
///   Set it to `sizeof(struct tenure_populate_options)`. Nothing was done.
/// * `-E2BIG`: The structure is a later version's and sets a field that this version does
///   not know. Use the library that the program was built for. Nothing was done.
/// * `-ECANCELED`: `progress` did not return 0. A part is populated.
///
/// # Caveats
///
/// Those of `tenure_populate()`.
///
/// # Notes
///
/// Those of `tenure_populate()`.
///
/// # See also
///
/// tenure_populate(3), tenure(7)
///
/// # Safety
///
/// * No other code counts on pages of the range being absent.
/// * `options` is NULL or points to `options->size` bytes.
/// * `progress` may be called with `data` on this thread until the call returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_populate_with(
    addr: *mut c_void,
    len: usize,
    flags: c_uint,
    options: *const tenure_populate_options,
) -> c_int {
    answer_zero(|| {
        // SAFETY: handed on to the caller.
        let populate_options = unsafe { with_options(options_of(flags)?, options) }?;
        // SAFETY: handed on to the caller.
        unsafe { covering_pages(addr, len)?.populate_with(&populate_options) }?;
        Ok(())
    })
}

/// Applies the program's structure, if there is one.
///
/// # Safety
///
/// `given` is NULL or points to `given->size` bytes.
pub(crate) unsafe fn with_options(
    options: PopulateOptions,
    given: *const tenure_populate_options,
) -> Result<PopulateOptions, Errno> {
    if given.is_null() {
        return Ok(options);
    }
    // SAFETY: not NULL, so it points to `given->size` bytes.
    Ok(apply(options, &unsafe { read_options(given) }?))
}

fn options_of(flags: c_uint) -> Result<PopulateOptions, Errno> {
    check_flags(
        flags,
        TENURE_POPULATE_READ | TENURE_POPULATE_WRITE | TENURE_POPULATE_FORCE,
    )?;
    let access = match flags & !TENURE_POPULATE_FORCE {
        TENURE_POPULATE_READ => Access::Read,
        TENURE_POPULATE_WRITE => Access::Write,
        _ => return Err(INVALID),
    };
    let options = PopulateOptions::new(access);
    Ok(if flags & TENURE_POPULATE_FORCE == 0 {
        options
    } else {
        options.force()
    })
}

// SAFETY: `repr(C)`, `size` is its first field, and the program's pointers may be anything.
unsafe impl WithSize for tenure_populate_options {
    const FIRST_SIZE: usize = offset_of!(tenure_populate_options, data) + size_of::<usize>();
}

/// The program's progress callback.
struct Callback {
    function: unsafe extern "C" fn(usize, usize, *mut c_void) -> c_int,
    data: *mut c_void,
}

// SAFETY: `report` runs only on the thread that called tenure, before the call returns.
unsafe impl Send for Callback {}
// SAFETY: as above.
unsafe impl Sync for Callback {}

impl Callback {
    fn report(&self, progress: Progress, cancel: &CancelToken) {
        // SAFETY: `progress` may be called with `data` on this thread until the call
        // returns, as the safety section of `tenure_populate_with` says.
        let returned =
            unsafe { (self.function)(progress.done_bytes, progress.total_bytes, self.data) };
        if returned != 0 {
            cancel.cancel();
        }
    }
}

fn apply(mut options: PopulateOptions, given: &tenure_populate_options) -> PopulateOptions {
    if given.threads != 0 {
        options = options.threads(given.threads);
    }
    if given.chunk_bytes != 0 {
        options = options.chunk_bytes(given.chunk_bytes);
    }
    if let Some(function) = given.progress {
        let cancel = CancelToken::new();
        let data = given.data;
        let callback = Callback { function, data };
        options = options
            .cancel(&cancel)
            .progress(move |progress| callback.report(progress, &cancel));
    }
    options
}
