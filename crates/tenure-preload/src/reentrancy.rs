//! Calls of tenure's verbs from inside a program that does not expect them.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use crate::real;

/// Runs `work`, and restores `errno` afterwards.
#[inline]
pub(crate) fn preserve_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: `__errno_location` always points to this thread's `errno`.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: a valid pointer, from above.
    let before = unsafe { *errno };
    let answer = work();
    // SAFETY: a valid pointer, from above.
    unsafe { *errno = before };
    answer
}

thread_local! {
    /// Whether this thread is in [`run_inside`].
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread is in code that must not ask the real allocator for
/// memory.
pub(crate) fn is_inside_tenure() -> bool {
    IS_INSIDE.get()
}

/// Calls a verb of which the program must see only the effect. Returns whether it
/// succeeded; a panic is a failure. The thread cannot be cancelled meanwhile.
pub(crate) fn try_verb(verb: impl FnOnce() -> tenure::Result<()>) -> bool {
    run_inside(|| {
        let mut cancelling = 0;
        // SAFETY: the call writes the old state to a local variable.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut cancelling) };
        // The verbs' state is behind mutexes that tolerate a panic.
        let answer = catch_unwind(AssertUnwindSafe(verb));
        // SAFETY: the call above has written the old state.
        unsafe { pthread_setcancelstate(cancelling, null_mut()) };
        matches!(answer, Ok(Ok(())))
    })
}

/// Runs `work`, which may take locks of tenure's or of the [private
/// heap](crate::private_heap). Blocks all signals meanwhile: a handler that unmaps
/// memory or forks would wait for a lock of its own thread. The C library's own
/// requests (starting a thread needs memory) are served by the private heap. `errno`
/// stays as it was.
pub(crate) fn run_inside<T>(work: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut signals = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset writes the set that pthread_sigmask then reads; the old mask
    // goes to a local variable.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), signals.as_mut_ptr());
    }
    real::enable_checks();
    let was_inside = IS_INSIDE.replace(true);
    let answer = preserve_errno(work);
    IS_INSIDE.set(was_inside);
    real::disable_checks();
    // SAFETY: the call above has written the mask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, signals.as_ptr(), null_mut()) };
    answer
}

/// glibc and musl have the same value.
const PTHREAD_CANCEL_DISABLE: i32 = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: i32, old: *mut i32) -> i32;
}
