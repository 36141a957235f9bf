//! The order of fork handlers.
//!
//! Handlers that run before a fork run in the reverse order of their registration. Those
//! of the heap take its locks, so they must come last: a handler of the program may wait
//! for a thread that allocates. A library whose constructor registers handlers runs before
//! this library's own constructor; therefore the first registration, by whatever library,
//! has the heap register its own before.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{start, sys};

type Handler = Option<unsafe extern "C" fn()>;
type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;

/// The function behind `pthread_atfork(3)`, which is a part of every program.
///
/// # Safety
///
/// The handlers may be called at any fork until the object of `dso` is unloaded.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __register_atfork(
    prepare: Handler,
    parent: Handler,
    child: Handler,
    dso: *mut c_void,
) -> c_int {
    static IS_FIRST: AtomicBool = AtomicBool::new(true);
    if IS_FIRST.swap(false, Ordering::Relaxed) && start::wants_heap() {
        // The registrations that this makes come here again.
        tenure_heap::register_fork_handlers();
    }
    let real = sys::next_symbol(c"__register_atfork");
    if real.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the C library's function of this name has this type.
    let real: Register = unsafe { std::mem::transmute(real) };
    // SAFETY: the caller's conditions are the same.
    unsafe { real(prepare, parent, child, dso) }
}
