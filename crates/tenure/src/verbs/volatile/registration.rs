//! What has to be done so that the kernel shows what it takes: a userfaultfd, and ranges
//! registered with it.

use super::look::scan;
use super::{VERB, at, fork};
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Harmless, advise};
use crate::ground::sys::features::Features;
use crate::ground::sys::pagemap::PageState;
use crate::ground::sys::userfaultfd::Userfaultfd;
use crate::ground::sys::{Errno, page_size};

pub(super) fn protect_children() -> Result<()> {
    fork::protect_children().map_err(|errno| Error::System {
        call: "pthread_atfork",
        errno,
    })
}

pub(super) fn open_userfaultfd() -> Result<Userfaultfd> {
    protect_children()?;
    let features = Features::get();
    features
        .madv_populate
        .map_err(|answer| Error::Unsupported {
            verb: VERB,
            feature: "MADV_POPULATE_WRITE",
            answer,
            remedy: "it needs Linux 5.14",
        })?;
    features.userfaultfd.and_then(|_| Userfaultfd::open()).map_err(|answer| Error::Unsupported {
        verb: VERB,
        feature: "userfaultfd",
        answer,
        remedy: "it needs Linux 5.11, and containers often refuse it (as Docker's default seccomp profile does): allow the system call, or access to /dev/userfaultfd",
    })
}

/// Ends the merging of its pages with others that are alike (KSM): the kernel does
/// not take a merged page, and to take the range back would unmerge it.
pub(super) fn unmerge(range: PageRange) -> Result<()> {
    match advise(range, Harmless::Unmergeable) {
        // Kernels that merge nothing do not know the advice.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(errno) => Err(at("madvise(MADV_UNMERGEABLE)", range)(errno)),
    }
}

/// Maps the page of zeros wherever the range has no page, so that a page which
/// is missing later is one that was lost. Before the range is registered: a
/// thread that reads such a page meanwhile must not meet SIGBUS.
pub(super) fn map_zeros_where_absent(range: PageRange) -> Result<()> {
    let runs = scan(range)?;
    for run in runs.iter().filter(|run| run.state == PageState::Absent) {
        advise(run.range, Harmless::PopulateRead)
            .map_err(at("madvise(MADV_POPULATE_READ)", run.range))?;
    }
    Ok(())
}

/// Registers the range, which lies in one mapping, and has fork copy its pages.
///
/// The kernel leaves a mapping out at fork in which nothing has been written: the
/// child's pages of zeros would be missing, where missing is lost. UFFDIO_ZEROPAGE
/// makes it a mapping with contents (gives it its `anon_vma`), also where a page
/// is, which it leaves alone.
pub(super) fn register_copied(uffd: &Userfaultfd, range: PageRange) -> Result<(), Errno> {
    uffd.register(range)?;
    let first = PageRange::between(range.start(), range.start() + page_size());
    uffd.fill_with_zeros(first).inspect_err(|_| {
        let _ = uffd.unregister(range);
    })
}

pub(super) fn explain_register(range: PageRange, errno: Errno) -> Error {
    match errno {
        Errno::BUSY => Error::Busy { range },
        Errno::NOMEM => Error::NoRoom {
            call: "UFFDIO_REGISTER",
            range,
        },
        errno => at("UFFDIO_REGISTER", range)(errno),
    }
}
