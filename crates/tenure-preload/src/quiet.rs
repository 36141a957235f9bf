//! Calls of tenure's verbs in the middle of a program that does not expect them.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use crate::next;

/// Does what `work` does, and leaves `errno` as it was.
#[inline]
pub(crate) fn keep_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: always points to this thread's `errno`.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let answer = work();
    // SAFETY: as above.
    unsafe { *errno = before };
    answer
}

thread_local! {
    /// Whether this thread is in [`inside`].
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread does something that must not ask the next allocator for memory.
pub(crate) fn is_inside() -> bool {
    IS_INSIDE.get()
}

/// Calls a verb so that the program sees nothing of it but its effect, and answers
/// whether it succeeded. The thread cannot be cancelled meanwhile. A panic is a
/// failure.
pub(crate) fn quietly(verb: impl FnOnce() -> tenure::Result<()>) -> bool {
    inside(|| {
        let mut cancelling = 0;
        // SAFETY: the old state goes to storage of our own.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut cancelling) };
        // The verbs' state is behind mutexes that stand a panic.
        let answer = catch_unwind(AssertUnwindSafe(verb));
        // SAFETY: the call above has written it.
        unsafe { pthread_setcancelstate(cancelling, null_mut()) };
        matches!(answer, Ok(Ok(())))
    })
}

/// Does something with locks of tenure's, or of [`aside`](crate::aside). Signals
/// wait: a handler may unmap memory or fork, and would wait for a lock that this very
/// thread has. What the C library asks for meanwhile (a thread that is started needs
/// memory) comes from aside. `errno` stays as it is.
pub(crate) fn inside<T>(work: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut signals = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset writes the set that pthread_sigmask then reads; the old mask
    // goes to storage of our own.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), signals.as_mut_ptr());
    }
    next::be_careful();
    let was_inside = IS_INSIDE.replace(true);
    let answer = keep_errno(work);
    IS_INSIDE.set(was_inside);
    next::be_careless();
    // SAFETY: the call above has written the mask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, signals.as_ptr(), null_mut()) };
    answer
}

/// The same value in glibc and musl.
const PTHREAD_CANCEL_DISABLE: i32 = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: i32, old: *mut i32) -> i32;
}
