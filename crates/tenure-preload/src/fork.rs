//! The order of fork handlers.
//!
//! Handlers that run before a fork run in the reverse order of their registration. Those
//! of the heap take its locks, so they must come last: a handler of the program may wait
//! for a thread that allocates. A library whose constructor registers handlers runs before
//! this library's own constructor; therefore the first registration, by whatever library,
//! has the heap register its own before.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

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
    let Some(real) = real() else {
        return libc::ENOMEM;
    };
    // SAFETY: the caller's conditions are the same.
    unsafe { real(prepare, parent, child, dso) }
}

/// Returns the C library's function. The loader is asked in the first call, which [`start`]
/// makes: later ones may be of a thread for which one waits that has the loader's lock.
fn real() -> Option<Register> {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let mut real = REAL.load(Ordering::Relaxed);
    if real.is_null() {
        real = sys::next_symbol(c"__register_atfork");
        REAL.store(real, Ordering::Relaxed);
    }
    // SAFETY: the C library's function of this name has this type, and null is no function.
    unsafe { std::mem::transmute::<*mut c_void, Option<Register>>(real) }
}
