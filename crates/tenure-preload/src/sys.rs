//! The system calls and the loader's functions that the library needs, with the
//! errors of their C functions: -1 and `errno`.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;

/// The next definition of a symbol behind this library.
pub(crate) fn next_symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a string that ends with a NUL.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// The definition of a symbol that the program has.
pub(crate) fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: as above.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

pub(crate) fn abort() -> ! {
    // SAFETY: has no conditions.
    unsafe { libc::abort() }
}

/// # Safety
///
/// As for `munmap(2)`.
pub(crate) unsafe fn munmap(addr: *mut c_void, len: usize) -> c_int {
    // SAFETY: handed on to the caller; so below.
    unsafe { libc::syscall(libc::SYS_munmap, addr, len) as c_int }
}

/// # Safety
///
/// As for `madvise(2)`.
pub(crate) unsafe fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: handed on to the caller.
    unsafe { libc::syscall(libc::SYS_madvise, addr, len, advice) as c_int }
}

/// # Safety
///
/// As for `mmap(2)`.
pub(crate) unsafe fn mmap(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: handed on to the caller.
    let answer = unsafe { libc::syscall(libc::SYS_mmap, addr, len, prot, flags, fd, offset) };
    std::ptr::with_exposed_provenance_mut(answer as usize)
}

/// # Safety
///
/// As for `mremap(2)`.
pub(crate) unsafe fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    // SAFETY: handed on to the caller.
    let answer = unsafe { libc::syscall(libc::SYS_mremap, old, old_len, new_len, flags, new) };
    std::ptr::with_exposed_provenance_mut(answer as usize)
}

/// Reserves addresses.
pub(crate) fn reserve(len: usize) -> Option<*mut c_void> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, at a place that the kernel picks.
    let start = unsafe { mmap(null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
    (start != libc::MAP_FAILED).then_some(start)
}

/// Makes reserved addresses readable and writable.
///
/// # Safety
///
/// They must be whole pages of the caller's own.
pub(crate) unsafe fn make_usable(start: *mut c_void, len: usize) -> bool {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: handed on to the caller.
    unsafe { libc::syscall(libc::SYS_mprotect, start, len, access) == 0 }
}

pub(crate) fn exit_group(status: c_int) -> ! {
    loop {
        // SAFETY: ends the process, as the caller of `_exit` wants it.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

pub(crate) fn pid() -> i32 {
    // SAFETY: has no conditions.
    unsafe { libc::getpid() }
}

/// Whether the program has rights that who started it has not (`AT_SECURE`), who
/// therefore must not change what it does.
pub(crate) fn is_secure() -> bool {
    // SAFETY: has no conditions.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Writes what can be written at once; there is nobody to tell of errors.
pub(crate) fn write(fd: c_int, text: &[u8]) {
    // SAFETY: the text is a slice.
    unsafe { libc::syscall(libc::SYS_write, fd, text.as_ptr(), text.len()) };
}

/// Which file a descriptor stands for.
pub(crate) fn identity(fd: c_int) -> Option<(u64, u64)> {
    // SAFETY: all zeros is a `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: writes to `stat`.
    let answer = unsafe { libc::fstat(fd, &raw mut stat) };
    (answer == 0).then_some((stat.st_dev, stat.st_ino))
}

/// Copies a descriptor to the first free number from `least` on; it is closed by
/// exec.
pub(crate) fn copy_descriptor(fd: c_int, least: c_int) -> Option<c_int> {
    // SAFETY: has no conditions.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, least) };
    (copy >= 0).then_some(copy)
}

pub(crate) fn close(fd: c_int) {
    // SAFETY: the caller's own descriptor.
    unsafe { libc::close(fd) };
}

/// Whether locked memory has no limit.
pub(crate) fn may_lock_any_amount() -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: writes to `limit`.
    let answer = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    answer == 0 && limit.rlim_cur == libc::RLIM_INFINITY
}

/// The name of the program, without its folder.
pub(crate) fn program_name() -> &'static CStr {
    unsafe extern "C" {
        static program_invocation_short_name: *const std::ffi::c_char;
    }
    // SAFETY: the C library sets it before any constructor runs.
    let name = unsafe { program_invocation_short_name };
    if name.is_null() {
        return c"?";
    }
    // SAFETY: a part of argv[0], which stays.
    unsafe { CStr::from_ptr(name) }
}

/// The file that a function's code comes from, and where that is loaded.
pub(crate) fn object_of(function: *const c_void) -> Option<(&'static CStr, usize)> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: null_mut(),
    };
    // SAFETY: writes to `info`.
    let answer = unsafe { libc::dladdr(function, &raw mut info) };
    if answer == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own string, which lives as long as the object.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some((name, info.dli_fbase.addr()))
}
