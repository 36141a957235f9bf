//! populate: fault a range in now, for reading or for writing.

use std::ops::RangeBounds;

use crate::ground::error::{Error, MemoryKind, Result};
use crate::ground::mapping::Mapping;
use crate::ground::range::PageRange;
use crate::ground::sys::Errno;
use crate::ground::sys::advise::{Harmless, advise};
use crate::ground::sys::vma::{self, Vma};

/// What populated pages are made ready for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading: maps what is there (`MADV_POPULATE_READ`). On private
    /// anonymous memory that is the page of zeros, and no memory is taken.
    Read,
    /// Writing, without changing contents (`MADV_POPULATE_WRITE`).
    Write,
}

/// What one call brings in at most. The kernel holds the address space's lock
/// throughout a call, and with it every other thread's `mmap` and `munmap`.
const CHUNK_BYTES: usize = 64 << 20;

const VERB: &str = "populate";

impl Mapping {
    /// Faults the bytes named in now, so that touching them later takes no page
    /// fault: `madvise(MADV_POPULATE_READ)` or `MADV_POPULATE_WRITE` (Linux
    /// 5.14), in chunks. The bounds are in bytes and are rounded out to pages.
    ///
    /// Pages brought in may be taken out again under memory pressure; locking
    /// keeps them.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::populate`]; [`Error::OutOfBounds`] for bounds that
    /// are not inside the mapping.
    ///
    /// ```
    /// use tenure::{Access, Mapping};
    ///
    /// let memory = Mapping::anonymous(1 << 20).map()?;
    /// memory.populate(.., Access::Write)?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn populate(&self, bounds: impl RangeBounds<usize>, access: Access) -> Result<()> {
        let range = self.pages_covering(bounds)?;
        // SAFETY: the range is this mapping's own.
        unsafe { range.populate(access) }
    }
}

impl PageRange {
    /// Faults the range in now: `madvise(MADV_POPULATE_READ)` or
    /// `MADV_POPULATE_WRITE` (Linux 5.14), in chunks. An empty range succeeds.
    ///
    /// # Errors
    ///
    /// With nothing done:
    /// * [`Error::Hole`] when a part is not mapped,
    /// * [`Error::NoAccess`] when a part cannot be read or, for
    ///   [`Access::Write`], written,
    /// * [`Error::WrongKind`] for the kernel's own special mappings,
    /// * [`Error::Unsupported`] where the kernel has no `MADV_POPULATE`.
    ///
    /// With a part populated, which is harmless:
    /// * [`Error::NoBacking`] for pages that touching would answer with SIGBUS,
    /// * [`Error::Poisoned`] for a page on broken memory,
    /// * [`Error::SystemAt`] for anything else, ENOMEM among it. A process in a
    ///   memory cgroup without room is killed rather than refused.
    ///
    /// # Safety
    ///
    /// No other code may count on pages of the range being absent, as the user
    /// of a userfaultfd does who fills them in.
    pub unsafe fn populate(self, access: Access) -> Result<()> {
        check(self, access)?;
        let advice = match access {
            Access::Read => Harmless::PopulateRead,
            Access::Write => Harmless::PopulateWrite,
        };
        for chunk in self.chunks(CHUNK_BYTES) {
            populate_chunk(chunk, advice).map_err(|errno| explain(chunk, errno))?;
        }
        Ok(())
    }
}

fn check(range: PageRange, access: Access) -> Result<()> {
    for vma in vma::cover(range)? {
        let Vma {
            range: part, kind, ..
        } = vma;
        if kind == MemoryKind::Special {
            return Err(Error::WrongKind {
                verb: VERB,
                range,
                part,
                found: kind,
                wanted: "memory and files",
            });
        }
        let missing = match access {
            Access::Write if !vma.writable => "write",
            Access::Read if !vma.readable => "read",
            _ => continue,
        };
        return Err(Error::NoAccess {
            verb: VERB,
            range,
            part,
            missing,
        });
    }
    Ok(())
}

fn populate_chunk(chunk: PageRange, advice: Harmless) -> std::result::Result<(), Errno> {
    loop {
        match advise(chunk, advice) {
            // A signal came in between: what is done stays done.
            Err(Errno::INTR | Errno::AGAIN) => {}
            answer => return answer,
        }
    }
}

fn explain(chunk: PageRange, errno: Errno) -> Error {
    match errno {
        Errno::FAULT => Error::NoBacking {
            verb: VERB,
            range: chunk,
        },
        Errno::HWPOISON => Error::Poisoned {
            verb: VERB,
            range: chunk,
        },
        // Access and kind have been looked at: what is left is the advice.
        Errno::INVAL => Error::Unsupported {
            verb: VERB,
            feature: "MADV_POPULATE",
            answer: errno,
            remedy: "it needs Linux 5.14, and memory that can be populated at all (not secret or device memory)",
        },
        errno => Error::SystemAt {
            call: "madvise(MADV_POPULATE)",
            range: chunk,
            errno,
        },
    }
}
