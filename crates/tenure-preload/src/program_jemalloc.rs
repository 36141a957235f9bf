//! Keeps the options of a jemalloc of the program's from that of the heap.
//!
//! A Rust program may have one itself, of the same crate and with the same names: the variable
//! `_RJEM_MALLOC_CONF`, and the symbol `_rjem_malloc_conf`, which it exports if it was linked
//! so. What they say is meant for the program's, and may end the process where the heap's was
//! built without it.

use std::ffi::c_char;
use std::ptr::null;

/// The linker has jemalloc call this for `secure_getenv(3)`, and nothing else in this library
/// calls that.
#[unsafe(no_mangle)]
extern "C" fn __wrap_secure_getenv(_: *const c_char) -> *const c_char {
    null()
}

// The linker gives a symbol the strictest visibility that any object asks for.
std::arch::global_asm!(".hidden __wrap_secure_getenv", ".hidden _rjem_malloc_conf");
