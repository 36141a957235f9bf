//! Keeps the options of a jemalloc of the program's from that of the heap.
//!
//! A Rust program may have one itself, of the same crate and with the same names: the variable
//! `_RJEM_MALLOC_CONF`, the symbol `_rjem_malloc_conf`, which it exports if it was linked so, and
//! the link `/etc/_rjem_malloc.conf`. What they say is meant for the program's, and may end the
//! process where the heap's was built without it.

use std::ffi::{CStr, c_char};
use std::ptr::null;

/// The linker has jemalloc call this for `secure_getenv(3)`, and nothing else in this library
/// calls that.
#[unsafe(no_mangle)]
extern "C" fn __wrap_secure_getenv(_: *const c_char) -> *const c_char {
    null()
}

/// The linker has jemalloc and the Rust library call this for `readlink(2)`.
///
/// # Safety
///
/// The conditions are those of `readlink(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_readlink(path: *const c_char, text: *mut c_char, len: usize) -> isize {
    // SAFETY: a C string, as `readlink(2)` demands.
    if unsafe { CStr::from_ptr(path) } == c"/etc/_rjem_malloc.conf" {
        // SAFETY: `__errno_location` always points to this thread's `errno`.
        unsafe { *libc::__errno_location() = libc::ENOENT };
        return -1;
    }
    // SAFETY: the caller keeps the conditions of `readlink(2)`.
    unsafe { libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, path, text, len) as isize }
}

// The linker gives a symbol the strictest visibility that any object asks for.
std::arch::global_asm!(
    ".hidden __wrap_secure_getenv",
    ".hidden __wrap_readlink",
    ".hidden _rjem_malloc_conf"
);
