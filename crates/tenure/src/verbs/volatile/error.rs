//! Errors of the verb, from what the kernel answered.

use crate::ground::error::Error;
use crate::ground::range::PageRange;
use crate::ground::sys::Errno;
use crate::ground::sys::page_runs::PageError;

/// The name of the verb in errors.
pub(super) const VERB: &str = "mark volatile";

/// Says which call on which range failed.
pub(super) fn at(call: &'static str, range: PageRange) -> impl Fn(Errno) -> Error {
    move |errno| Error::SystemAt { call, range, errno }
}

/// Explains why a loop over the pages of a range stopped.
pub(super) fn explain_pages(error: PageError) -> Error {
    match error {
        PageError::Scan(errno @ (Errno::MFILE | Errno::NFILE)) => Error::System {
            call: "open(/proc/self/pagemap)",
            errno,
        },
        PageError::Scan(answer) => Error::Unsupported {
            verb: VERB,
            feature: "/proc/self/pagemap",
            answer,
            remedy: "it needs /proc; after a change of user it belongs to root until prctl(PR_SET_DUMPABLE, 1)",
        },
        PageError::Call(call, range, errno) => at(call, range)(errno),
    }
}

/// Explains why the range could not be registered with the userfaultfd.
pub(super) fn explain_register(range: PageRange, errno: Errno) -> Error {
    match errno {
        Errno::BUSY => Error::Busy { range },
        Errno::NOMEM => Error::MappingLimit {
            call: "UFFDIO_REGISTER",
            range,
        },
        errno => at("UFFDIO_REGISTER", range)(errno),
    }
}
