//! The border between Rust and C: results become `-errno`, and no panic crosses.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{c_int, c_uint};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tenure::{Error, PageRange};

use crate::prepare::AT_LOAD;

/// The result of a function: 0 or a positive number, or an error number.
pub(crate) type Answer = Result<c_int, Errno>;

/// An error number, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        Self(error.errno())
    }
}

/// A structure of options, whose first field is its size as the program was built with it.
///
/// # Safety
///
/// The structure is `repr(C)`, begins with a `usize`, and every bit pattern of a program's
/// structure is valid for it, all zeros included.
pub(crate) unsafe trait WithSize: Copy {
    /// The bytes of the first version. Later ones add fields at the end only.
    const FIRST_SIZE: usize;
}

/// Reads the structure of a program that may have been built with an older or a newer
/// version. Fields that the program's version lacks are zeros, and those that this version
/// lacks must be.
///
/// # Safety
///
/// `options` points to as many bytes as its first field says.
pub(crate) unsafe fn read_options<T: WithSize>(options: *const T) -> Result<T, Errno> {
    // SAFETY: every version begins with the size.
    let size = unsafe { options.cast::<usize>().read() };
    let known_size = size_of::<T>();
    if size < T::FIRST_SIZE {
        return Err(INVALID);
    }
    let bytes = options.cast::<u8>();
    for at in known_size..size.max(known_size) {
        // SAFETY: within the `size` bytes that `options` points to.
        if unsafe { bytes.add(at).read() } != 0 {
            return Err(Errno(libc::E2BIG));
        }
    }
    let mut read = MaybeUninit::<T>::zeroed();
    // SAFETY: the bytes lie within both structures, and every bit pattern is valid, zeros where
    // the program's structure ends earlier (the contract of `WithSize`).
    unsafe {
        let into = read.as_mut_ptr().cast::<u8>();
        into.copy_from_nonoverlapping(bytes, size.min(known_size));
        Ok(read.assume_init())
    }
}

/// Runs `call` as [`answer_without_memory`] does, but returns `-ENOMEM` instead where
/// `malloc()` has nothing left.
pub(crate) fn answer(call: impl FnOnce() -> Answer) -> c_int {
    answer_without_memory(|| if has_memory() { call() } else { Err(NO_MEMORY) })
}

/// Returns whether the allocator has memory left for a call.
///
/// The calls below allocate with Rust's collections, which end the process when that fails.
/// The check takes 22 ns with glibc. It narrows the case and does not exclude it: other
/// threads take memory meanwhile, and a call over many mappings needs more.
fn has_memory() -> bool {
    /// More than a call needs over few mappings, and more than glibc keeps free for each
    /// thread (1 KiB), where the check would find its own block again and again.
    const CALL_BYTES: Layout = match Layout::from_size_align(16 << 10, 16) {
        Ok(layout) => layout,
        Err(_) => unreachable!(),
    };
    // SAFETY: the size is not zero.
    let block = unsafe { alloc(CALL_BYTES) };
    // The compiler may remove an allocation that nothing observes.
    let block = black_box(block);
    if block.is_null() {
        return false;
    }
    // SAFETY: `alloc` returned the block for this layout.
    unsafe { dealloc(block, CALL_BYTES) };
    true
}

/// Runs `call` for a C program and returns its result or `-errno`: for calls that need no
/// memory of the allocator, or give memory back.
///
/// `errno` itself keeps its value. The thread cannot be cancelled during the call, because
/// cancellation would end it with tenure's locks held. A panic becomes
/// `-ENOTRECOVERABLE`: the work of the call may be half done.
pub(crate) fn answer_without_memory(call: impl FnOnce() -> Answer) -> c_int {
    // A linker takes only what is used from a static archive.
    black_box(&AT_LOAD);
    // SAFETY: always points to this thread's `errno`.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let errno_before = unsafe { *errno };
    let cancel_state = set_cancel_state(PTHREAD_CANCEL_DISABLE);
    // Nothing that the call owned is used after a panic, and the library's own state is
    // behind mutexes that tolerate poisoning.
    let answer = catch_unwind(AssertUnwindSafe(call));
    set_cancel_state(cancel_state);
    // SAFETY: as above.
    unsafe { *errno = errno_before };
    match answer {
        Ok(Ok(result)) => result,
        Ok(Err(Errno(errno))) => -errno,
        Err(_) => -libc::ENOTRECOVERABLE,
    }
}

/// Runs `call` as [`answer`] does and returns 0 when it succeeds.
pub(crate) fn answer_zero(call: impl FnOnce() -> Result<(), Errno>) -> c_int {
    answer(|| call().map(|()| 0))
}

/// The value in glibc and in musl.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

fn set_cancel_state(state: c_int) -> c_int {
    let mut before = 0;
    // SAFETY: writes to `before` only, and fails only for states that do not exist.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// Returns the pages from `addr` to `addr + len`, which must be whole: for verbs that
/// lose contents.
pub(crate) fn whole_pages<T>(addr: *const T, len: usize) -> Result<PageRange, Errno> {
    Ok(PageRange::new(addr.expose_provenance(), len)?)
}

/// Returns the pages that hold the bytes from `addr` to `addr + len`: for verbs that keep
/// contents.
pub(crate) fn covering_pages<T>(addr: *const T, len: usize) -> Result<PageRange, Errno> {
    Ok(PageRange::covering(addr.expose_provenance(), len)?)
}

pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
const NO_MEMORY: Errno = Errno(libc::ENOMEM);
pub(crate) const BAD_POINTER: Errno = Errno(libc::EFAULT);

/// Refuses flags that this version does not know.
pub(crate) fn check_flags(flags: c_uint, known: c_uint) -> Result<(), Errno> {
    if flags & !known == 0 {
        Ok(())
    } else {
        Err(INVALID)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Options {
        size: usize,
        first: usize,
        /// The second version has it.
        added: usize,
    }

    // SAFETY: `repr(C)`, `size` is its first field, and all are integers.
    unsafe impl WithSize for Options {
        const FIRST_SIZE: usize = offset_of!(Options, added);
    }

    #[test]
    fn options_of_first_version_lack_fields_added_since() {
        let read = |size| {
            let options = Options {
                size,
                first: 5,
                added: 6,
            };
            // SAFETY: no size is larger than the structure.
            let read = unsafe { read_options(&raw const options) };
            read.map(|read| (read.first, read.added))
        };
        assert_eq!(read(Options::FIRST_SIZE - 1), Err(INVALID));
        assert_eq!(read(Options::FIRST_SIZE), Ok((5, 0)));
        assert_eq!(read(size_of::<Options>()), Ok((5, 6)));
    }

    #[test]
    fn answer_panicking_call_is_enotrecoverable() {
        assert_eq!(answer(|| panic!("on purpose")), -libc::ENOTRECOVERABLE);
    }

    #[test]
    fn answer_failing_call_keeps_errno() {
        // SAFETY: this thread's own `errno`.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        unsafe { *errno = 77 };
        let answered = answer_zero(|| {
            // SAFETY: as above.
            unsafe { *errno = 78 };
            Err(INVALID)
        });
        // SAFETY: as above.
        assert_eq!((answered, unsafe { *errno }), (-libc::EINVAL, 77));
    }

    #[test]
    fn answer_any_call_disables_cancellation_meanwhile() {
        let before = set_cancel_state(0);
        answer(|| {
            assert_eq!(
                set_cancel_state(PTHREAD_CANCEL_DISABLE),
                PTHREAD_CANCEL_DISABLE
            );
            Ok(0)
        });
        assert_eq!(set_cancel_state(before), 0);
    }
}
