//! populate: fault a range in now.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;

use tenure::{Access, CancelToken, PopulateOptions, Progress};

use crate::answer::{Errno, INVALID, covering, done, only};

/// For reading: maps what is there. Of private anonymous memory that is the page of
/// zeros, and no memory is taken.
pub const TENURE_POPULATE_READ: c_uint = 1;
/// For writing, without changing contents.
pub const TENURE_POPULATE_WRITE: c_uint = 2;
/// Goes on although there seems to be too little memory. Past the limit of a memory
/// cgroup the kernel kills the process.
pub const TENURE_POPULATE_FORCE: c_uint = 4;

/// How to populate. Set all of it to zeros, then `size`, then what is wanted.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tenure_populate_options {
    /// `sizeof(struct tenure_populate_options)`: what the program was built with.
    pub size: usize,
    /// How many threads share the work, the calling one included; 0 is the number
    /// that helps: one for each CPU that the process may use, at most one for each
    /// 64 MiB begun.
    pub threads: usize,
    /// How many bytes to bring in at a time, rounded up to whole pages; 0 is what
    /// takes about 2 ms. Another thread's `mmap()` waits for as long as a chunk takes.
    pub chunk_bytes: usize,
    /// NULL, or what is called on the calling thread about every 50 ms, and once
    /// when all is done. Anything but 0 as its answer ends populating early with
    /// `-ECANCELED`. It must return: no `longjmp()`, no C++ exception.
    pub progress: Option<
        unsafe extern "C" fn(done_bytes: usize, total_bytes: usize, data: *mut c_void) -> c_int,
    >,
    /// What `progress` is given.
    pub data: *mut c_void,
}

/// Populates a range of memory: faults it in now, so that touching it later takes
/// no page fault. It is `madvise(MADV_POPULATE_READ)` or `MADV_POPULATE_WRITE`, in
/// chunks, by several threads.
///
/// `addr` must be the start of a page. `len` is in bytes and is rounded up to whole
/// pages; 0 succeeds and does nothing. `flags` is `TENURE_POPULATE_READ` or
/// `TENURE_POPULATE_WRITE`, with or without `TENURE_POPULATE_FORCE`.
///
/// Contents do not change, also while other threads write to them. A page that
/// cannot be brought in is an error and no signal. Populated pages may be taken out
/// again under memory pressure; `tenure_mlock()` keeps them.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is not touched.
///
/// # Errors
///
/// With nothing done:
///
/// * `-EINVAL`: `addr` is not the start of a page, `flags` is not one of the above,
///   the range goes past the end of the address space, or a part is a special mapping
///   of the kernel's (`[vdso]`). Correct the call.
/// * `-ENOMEM`: A part is not mapped; or it would take more memory than the machine,
///   the memory cgroup or the pool of huge pages has left. Map it all; free memory or
///   raise the limit, or give `TENURE_POPULATE_FORCE`.
/// * `-EACCES`: A part cannot be read, or written. Use `mprotect()` first.
///
/// With a part populated, which is harmless:
///
/// * `-EFAULT`: There is nothing to bring in for a page: its file is shorter than the
///   mapping, or no huge page is free. Touching it would be SIGBUS. Make the file
///   longer.
/// * `-EHWPOISON`: A page is on memory that has failed. Map other memory.
///
/// # Caveats
///
/// No other code may count on pages of the range being absent, as the user of a
/// userfaultfd does who fills them in.
///
/// # Notes
///
/// MADV_POPULATE_READ and MADV_POPULATE_WRITE are there from Linux 5.14. Before,
/// pages are touched by system calls, which is slower and means the same.
///
/// # See also
///
/// tenure_populate_with(3), tenure_mlock(3), madvise(2), tenure(7)
///
/// # Safety
///
/// As the caveats say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_populate(addr: *mut c_void, len: usize, flags: c_uint) -> c_int {
    done(|| {
        let options = wanted(flags)?;
        // SAFETY: handed on to the caller.
        unsafe { covering(addr, len)?.populate_with(&options) }?;
        Ok(())
    })
}

/// Populates a range of memory as `tenure_populate()` does, as the options say: with
/// so many threads, in chunks of such a size, telling its progress, and ending early
/// when that is wanted.
///
/// `addr`, `len` and `flags` are as for `tenure_populate()`. `options` may be NULL,
/// which leaves everything to tenure; it is not used after the call.
///
/// To end early from another thread or a signal handler, set a flag of your own and
/// have `progress` return it.
///
/// # Return value
///
/// 0, or one of the errors below, negative. `errno` is not touched.
///
/// # Errors
///
/// Those of `tenure_populate()`, and:
///
/// * `-EINVAL`: `options->size` is smaller than the structure was in the first version.
///   Set it to `sizeof(struct tenure_populate_options)`. Nothing was done.
/// * `-E2BIG`: The structure is a later version's, and has something set that this
///   version does not know. Use the library that the program was built for. Nothing
///   was done.
/// * `-ECANCELED`: `progress` answered anything but 0. A part is populated.
///
/// # Caveats
///
/// As for `tenure_populate()`.
///
/// # Notes
///
/// As for `tenure_populate()`.
///
/// # See also
///
/// tenure_populate(3), tenure(7)
///
/// # Safety
///
/// As the caveats say; `options` is NULL or points to `options->size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_populate_with(
    addr: *mut c_void,
    len: usize,
    flags: c_uint,
    options: *const tenure_populate_options,
) -> c_int {
    done(|| {
        let mut wanted = wanted(flags)?;
        if !options.is_null() {
            // SAFETY: handed on to the caller.
            wanted = with_options(wanted, &unsafe { read_options(options) }?);
        }
        // SAFETY: handed on to the caller.
        unsafe { covering(addr, len)?.populate_with(&wanted) }?;
        Ok(())
    })
}

fn wanted(flags: c_uint) -> Result<PopulateOptions, Errno> {
    only(
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

/// What the structure held in its first version.
const FIRST_SIZE: usize = offset_of!(tenure_populate_options, data) + size_of::<*mut c_void>();

/// Reads the structure of a program that may have been built with an older or a
/// newer version: what it lacks is zeros, what we do not know must be zeros.
///
/// # Safety
///
/// `options` points to `options->size` bytes.
unsafe fn read_options(
    options: *const tenure_populate_options,
) -> Result<tenure_populate_options, Errno> {
    // SAFETY: the first field is there in every version.
    let size = unsafe { (&raw const (*options).size).read() };
    if size < FIRST_SIZE {
        return Err(INVALID);
    }
    let ours = size_of::<tenure_populate_options>();
    let bytes = options.cast::<u8>();
    for at in ours..size.max(ours) {
        // SAFETY: inside of the `size` bytes that the caller has promised.
        if unsafe { bytes.add(at).read() } != 0 {
            return Err(Errno(libc::E2BIG));
        }
    }
    // SAFETY: it has one version so far, so it is at least as long as ours.
    Ok(unsafe { options.read() })
}

/// Where the program is told of the progress.
struct Listener {
    call: unsafe extern "C" fn(usize, usize, *mut c_void) -> c_int,
    data: *mut c_void,
}

// SAFETY: it is called on the thread that called us, before we return.
unsafe impl Send for Listener {}
// SAFETY: as above.
unsafe impl Sync for Listener {}

impl Listener {
    fn hear(&self, progress: Progress, cancel: &CancelToken) {
        // SAFETY: the program gave us the function and what it is to be given, for
        // as long as the call lasts.
        let answer = unsafe { (self.call)(progress.done_bytes, progress.total_bytes, self.data) };
        if answer != 0 {
            cancel.cancel();
        }
    }
}

fn with_options(wanted: PopulateOptions, options: &tenure_populate_options) -> PopulateOptions {
    let mut wanted = wanted;
    if options.threads != 0 {
        wanted = wanted.threads(options.threads);
    }
    if options.chunk_bytes != 0 {
        wanted = wanted.chunk_bytes(options.chunk_bytes);
    }
    if let Some(call) = options.progress {
        let cancel = CancelToken::new();
        let data = options.data;
        let listener = Listener { call, data };
        wanted = wanted
            .cancel(&cancel)
            .progress(move |progress| listener.hear(progress, &cancel));
    }
    wanted
}
