//! The system calls and the loader's functions that the library needs. Errors are those
//! of the C functions: -1 and `errno`.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;

/// Returns the next definition of a symbol behind this library (RTLD_NEXT).
pub(crate) fn next_symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a C string.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// Returns the definition of a symbol that the program uses (RTLD_DEFAULT).
#[cfg(test)]
pub(crate) fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a C string.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Loads a library (dlopen); null if that fails.
///
/// # Safety
///
/// Its constructors may run here.
pub(crate) unsafe fn load(file: &CStr) -> *mut c_void {
    // SAFETY: a C string; the rest is the caller's contract.
    unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) }
}

/// Returns the definition of a symbol in a loaded library, or in one that it needs; null if
/// there is none.
pub(crate) fn symbol_in(library: *mut c_void, name: &CStr) -> *mut c_void {
    if library.is_null() {
        return null_mut();
    }
    // SAFETY: the libraries are never closed; a C string.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

pub(crate) fn abort() -> ! {
    // SAFETY: `abort` has no preconditions.
    unsafe { libc::abort() }
}

/// # Safety
///
/// The conditions are those of `munmap(2)`.
pub(crate) unsafe fn munmap(addr: *mut c_void, len: usize) -> c_int {
    // SAFETY: the caller keeps the conditions of `munmap(2)`.
    unsafe { libc::syscall(libc::SYS_munmap, addr, len) as c_int }
}

/// # Safety
///
/// The conditions are those of `madvise(2)`.
pub(crate) unsafe fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: the caller keeps the conditions of `madvise(2)`.
    unsafe { libc::syscall(libc::SYS_madvise, addr, len, advice) as c_int }
}

/// # Safety
///
/// The conditions are those of `mmap(2)`.
pub(crate) unsafe fn mmap(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller keeps the conditions of `mmap(2)`.
    let answer = unsafe { libc::syscall(libc::SYS_mmap, addr, len, prot, flags, fd, offset) };
    std::ptr::with_exposed_provenance_mut(answer as usize)
}

/// # Safety
///
/// The conditions are those of `mremap(2)`.
pub(crate) unsafe fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    // SAFETY: the caller keeps the conditions of `mremap(2)`.
    let answer = unsafe { libc::syscall(libc::SYS_mremap, old, old_len, new_len, flags, new) };
    std::ptr::with_exposed_provenance_mut(answer as usize)
}

/// Reserves addresses (mmap, PROT_NONE).
pub(crate) fn reserve(len: usize) -> Option<*mut c_void> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, at an address that the kernel picks.
    let start = unsafe { mmap(null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
    (start != libc::MAP_FAILED).then_some(start)
}

/// Makes reserved addresses readable and writable (mprotect).
///
/// # Safety
///
/// The range must be whole pages of the caller's own reservation.
pub(crate) unsafe fn make_usable(start: *mut c_void, len: usize) -> bool {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the range is the caller's own reservation, as it ensures.
    unsafe { libc::syscall(libc::SYS_mprotect, start, len, access) == 0 }
}

pub(crate) fn exit_group(status: c_int) -> ! {
    loop {
        // SAFETY: ends the process, which is what callers of `_exit` want.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

pub(crate) fn pid() -> i32 {
    // SAFETY: `getpid` has no preconditions.
    unsafe { libc::getpid() }
}

/// Returns whether the program has more privileges than its caller (`AT_SECURE`), who
/// must therefore not change what it does.
pub(crate) fn is_secure() -> bool {
    // SAFETY: `getauxval` has no preconditions.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Writes what one call can write; errors are ignored, because nobody could be told. Writes
/// nothing where that would wait for a reader, or raise SIGPIPE because there is none.
pub(crate) fn write(fd: c_int, text: &[u8]) {
    let mut wanted = libc::pollfd {
        fd,
        events: libc::POLLOUT,
        revents: 0,
    };
    let at_once = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let no_mask = std::ptr::null::<libc::sigset_t>();
    // SAFETY: the call reads and writes local variables.
    let ready = unsafe {
        libc::syscall(
            libc::SYS_ppoll,
            &raw mut wanted,
            1,
            &raw const at_once,
            no_mask,
            0,
        )
    };
    // A pipe is ready for a line as a whole. Where a filter refuses the call, the write is tried.
    if ready >= 0 && wanted.revents != libc::POLLOUT {
        return;
    }
    // SAFETY: pointer and length are a slice's.
    unsafe { libc::syscall(libc::SYS_write, fd, text.as_ptr(), text.len()) };
}

/// Returns the device and inode of a descriptor's file.
pub(crate) fn identity(fd: c_int) -> Option<(u64, u64)> {
    // SAFETY: a `stat` of zeros is valid.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes to a local variable.
    let answer = unsafe { libc::fstat(fd, &raw mut stat) };
    (answer == 0).then_some((stat.st_dev, stat.st_ino))
}

/// Copies a descriptor to the first free number from `min_fd` on, with FD_CLOEXEC.
pub(crate) fn copy_descriptor(fd: c_int, min_fd: c_int) -> Option<c_int> {
    // SAFETY: `fcntl` has no preconditions on memory here.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, min_fd) };
    (copy >= 0).then_some(copy)
}

pub(crate) fn close(fd: c_int) {
    // SAFETY: the callers close their own descriptors.
    unsafe { libc::close(fd) };
}

/// Returns the name of the program, without its folder.
pub(crate) fn program_name() -> &'static CStr {
    unsafe extern "C" {
        static program_invocation_short_name: *const std::ffi::c_char;
    }
    // SAFETY: the C library sets it before any constructor runs.
    let name = unsafe { program_invocation_short_name };
    if name.is_null() {
        return c"?";
    }
    // SAFETY: a part of argv[0], which stays valid.
    unsafe { CStr::from_ptr(name) }
}

/// Returns the file that a function's code comes from, and its load address.
pub(crate) fn object_of(function: *const c_void) -> Option<(&'static CStr, usize)> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: null_mut(),
    };
    // SAFETY: the call writes to a local variable.
    let answer = unsafe { libc::dladdr(function, &raw mut info) };
    if answer == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own string, which lives as long as the object.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some((name, info.dli_fbase.addr()))
}
