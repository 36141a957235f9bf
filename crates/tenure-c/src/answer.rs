//! What every function does at the border: results to `-errno`, and nothing else
//! gets out.

use std::ffi::{c_int, c_uint};
use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tenure::{Error, PageRange};

use crate::load::AT_LOAD;

/// What a function answers: 0 or a positive result, or an error number.
pub(crate) type Answer = Result<c_int, Errno>;

/// An error number, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        Self(error.errno())
    }
}

/// Runs a call for a C program. `errno` stays as it is. The thread cannot be
/// cancelled meanwhile, for that would end it with our locks held. A panic is
/// `-ENOTRECOVERABLE`: what was asked for may be half done.
pub(crate) fn answer(call: impl FnOnce() -> Answer) -> c_int {
    // A linker takes from the archive what is used, and nothing else.
    black_box(&AT_LOAD);
    // SAFETY: always points to this thread's `errno`.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let errno_before = unsafe { *errno };
    let cancelling = set_cancelling(PTHREAD_CANCEL_DISABLE);
    // What the call had in hand is not looked at after a panic; the state of the
    // library is behind mutexes that stand it.
    let answer = catch_unwind(AssertUnwindSafe(call));
    set_cancelling(cancelling);
    // SAFETY: as above.
    unsafe { *errno = errno_before };
    match answer {
        Ok(Ok(result)) => result,
        Ok(Err(Errno(errno))) => -errno,
        Err(_) => -libc::ENOTRECOVERABLE,
    }
}

/// The same for calls without a result of their own.
pub(crate) fn done(call: impl FnOnce() -> Result<(), Errno>) -> c_int {
    answer(|| call().map(|()| 0))
}

/// The same value in glibc and musl.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

fn set_cancelling(state: c_int) -> c_int {
    let mut before = 0;
    // SAFETY: writes to `before`. It is refused for unknown states only.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// The whole pages named: for verbs that lose contents.
pub(crate) fn exactly<T>(addr: *const T, len: usize) -> Result<PageRange, Errno> {
    Ok(PageRange::new(addr.expose_provenance(), len)?)
}

/// The pages that hold the bytes named: for verbs that lose nothing.
pub(crate) fn covering<T>(addr: *const T, len: usize) -> Result<PageRange, Errno> {
    Ok(PageRange::covering(addr.expose_provenance(), len)?)
}

pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
pub(crate) const BAD_POINTER: Errno = Errno(libc::EFAULT);

/// Refuses flags that this version does not know.
pub(crate) fn only(flags: c_uint, known: c_uint) -> Result<(), Errno> {
    if flags & !known == 0 {
        Ok(())
    } else {
        Err(INVALID)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_does_not_get_out() {
        assert_eq!(answer(|| panic!("on purpose")), -libc::ENOTRECOVERABLE);
    }

    #[test]
    fn errno_stays() {
        // SAFETY: this thread's own `errno`.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        unsafe { *errno = 77 };
        let answered = done(|| {
            // SAFETY: as above.
            unsafe { *errno = 78 };
            Err(INVALID)
        });
        // SAFETY: as above.
        assert_eq!((answered, unsafe { *errno }), (-libc::EINVAL, 77));
    }

    #[test]
    fn a_thread_is_not_cancelled_inside_and_can_be_after() {
        let before = set_cancelling(0);
        answer(|| {
            assert_eq!(
                set_cancelling(PTHREAD_CANCEL_DISABLE),
                PTHREAD_CANCEL_DISABLE
            );
            Ok(0)
        });
        assert_eq!(set_cancelling(before), 0);
    }
}
