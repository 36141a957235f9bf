//! volatile: contents are wanted, but the kernel may take them; using a taken
//! page is SIGBUS, and unmarking tells what was lost.

mod engine;
mod fork;
mod take_back;

pub(super) use engine::forget;

use crate::ground::error::{Refused, Result};
use crate::ground::mapping::Mapping;
use crate::ground::range::PageRange;

/// What became of a volatile range.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "contents that were lost read as zeros"]
pub enum Outcome {
    /// Every byte is as it was.
    Intact,
    /// These pages were lost and read as zeros, in order of address; all others
    /// are as they were.
    Purged(Vec<PageRange>),
}

/// A [`Mapping`] that is volatile: the kernel may take its pages at any time,
/// so its bytes cannot be looked at until
/// [`mark_nonvolatile`](VolatileMapping::mark_nonvolatile) has said which are
/// still there.
#[derive(Debug)]
#[must_use = "dropping it unmaps the memory"]
pub struct VolatileMapping {
    mapping: Mapping,
}

impl VolatileMapping {
    /// The volatile pages.
    pub fn range(&self) -> PageRange {
        self.mapping.range()
    }

    /// Makes the memory ordinary again and tells exactly which of its pages
    /// were lost; they read as zeros.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::mark_nonvolatile`]; the memory stays volatile.
    pub fn mark_nonvolatile(self) -> Result<(Mapping, Outcome), Refused<Self>> {
        // SAFETY: the range is this mapping's own.
        match unsafe { self.range().mark_nonvolatile() } {
            Ok(outcome) => Ok((self.mapping, outcome)),
            Err(error) => Err(Refused { value: self, error }),
        }
    }

    /// Has the contents taken now, as the kernel would under memory pressure.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::purge`].
    pub fn purge(&mut self) -> Result<()> {
        // SAFETY: the range is this mapping's own, and nothing can borrow from it.
        unsafe { self.range().purge() }
    }
}

impl Mapping {
    /// Lets the kernel take the pages of this private anonymous memory when it
    /// needs them: `userfaultfd(2)` in SIGBUS mode (Linux 5.11 for processes
    /// without privilege) and `madvise(MADV_FREE)`.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::mark_volatile`], with the mapping given back.
    ///
    /// ```
    /// use tenure::{Mapping, Outcome};
    ///
    /// # fn main() -> Result<(), tenure::Error> {
    /// # if !tenure::Features::get().sigbus_on_missing() { return Ok(()); }
    /// let mut thumbnail = Mapping::anonymous(1 << 20).map()?;
    /// thumbnail.as_mut_slice()?.fill(7);
    ///
    /// let cached = thumbnail.mark_volatile()?; // the kernel may take it
    ///
    /// let (thumbnail, outcome) = cached.mark_nonvolatile()?;
    /// match outcome {
    ///     Outcome::Intact => assert_eq!(thumbnail.as_slice()[0], 7),
    ///     Outcome::Purged(runs) => println!("draw it again, {} parts are gone", runs.len()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn mark_volatile(self) -> Result<VolatileMapping, Refused<Self>> {
        // SAFETY: no reference to the bytes exists while `self` is owned, and
        // `VolatileMapping` lends none.
        match unsafe { self.range().mark_volatile() } {
            Ok(()) => Ok(VolatileMapping { mapping: self }),
            Err(error) => Err(Refused { value: self, error }),
        }
    }
}

impl PageRange {
    /// Lets the kernel take pages of the range when it needs them:
    /// `userfaultfd(2)` in SIGBUS mode (Linux 5.11 for processes without
    /// privilege) and `madvise(MADV_FREE)`. An empty range succeeds.
    ///
    /// From now on, until [`mark_nonvolatile`](PageRange::mark_nonvolatile):
    /// * What is still there reads as before. A write keeps its page from being
    ///   taken with the contents from before; the page stays volatile.
    /// * Touching a page that was taken is SIGBUS with its address in `si_addr`;
    ///   a system call that is given such an address answers EFAULT.
    /// * Pages that were never touched are not lost; they read as zeros.
    ///
    /// Marking again is harmless and offers pages written since. Ranges may
    /// overlap. Pages that are swapped out at the call are lost by it.
    ///
    /// After `fork` the range is volatile in the child as well, each process
    /// with its own copy. A child made in another way (`clone`), and memory
    /// moved with `mremap` by somebody else, are not protected: pages taken
    /// there read as zeros.
    ///
    /// # Errors
    ///
    /// With nothing done:
    /// * [`Error::Hole`] when a part is not mapped,
    /// * [`Error::WrongKind`] for anything but private anonymous memory,
    /// * [`Error::NoAccess`] when a part cannot be read and written,
    /// * [`Error::Locked`] when a part is locked,
    /// * [`Error::Busy`] when a part is registered with another userfaultfd,
    /// * [`Error::Unsupported`] where userfaultfd or MADV_POPULATE is missing
    ///   or refused,
    /// * [`Error::NoRoom`] when the kernel cannot split a mapping,
    /// * [`Error::SystemAt`] for anything else.
    ///
    /// # Safety
    ///
    /// * No reference to bytes of the range may exist until it is nonvolatile
    ///   again; use pointers, and count on SIGBUS.
    /// * The range must not be unmapped, moved or mapped over but through
    ///   tenure, which then ends its volatility.
    ///
    /// [`Error::Hole`]: crate::Error::Hole
    /// [`Error::WrongKind`]: crate::Error::WrongKind
    /// [`Error::NoAccess`]: crate::Error::NoAccess
    /// [`Error::Locked`]: crate::Error::Locked
    /// [`Error::Busy`]: crate::Error::Busy
    /// [`Error::Unsupported`]: crate::Error::Unsupported
    /// [`Error::NoRoom`]: crate::Error::NoRoom
    /// [`Error::SystemAt`]: crate::Error::SystemAt
    pub unsafe fn mark_volatile(self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        // SAFETY: handed on to the caller.
        unsafe { engine::mark(self) }
    }

    /// Makes the range ordinary memory again and tells exactly which pages were
    /// lost; they read as zeros. Parts that are not volatile are passed over,
    /// and an empty range is [`Outcome::Intact`].
    ///
    /// A part whose protection ended without tenure's doing (its userfaultfd
    /// was closed, or something else was mapped there) is reported as lost
    /// whole; what it holds is left as it is.
    ///
    /// # Errors
    ///
    /// [`Error::Hole`] when a part is not mapped, with nothing done.
    /// [`Error::SystemAt`] when the kernel cannot take a page back (ENOMEM). The
    /// range stays volatile, and what was found to be lost is told by the next
    /// call that succeeds.
    ///
    /// # Safety
    ///
    /// The range must be the caller's: another owner may count on SIGBUS.
    ///
    /// [`Error::Hole`]: crate::Error::Hole
    /// [`Error::SystemAt`]: crate::Error::SystemAt
    pub unsafe fn mark_nonvolatile(self) -> Result<Outcome> {
        if self.is_empty() {
            return Ok(Outcome::Intact);
        }
        engine::unmark(self)
    }

    /// Has the contents of the volatile parts of the range taken now, as the
    /// kernel would under memory pressure: `madvise(MADV_DONTNEED)` on the pages
    /// that are there. Other parts are left alone.
    ///
    /// # Errors
    ///
    /// [`Error::Hole`] when a part is not mapped, with nothing done.
    /// [`Error::SystemAt`] when the kernel refuses, as for memory that was
    /// locked after it was marked.
    ///
    /// # Safety
    ///
    /// The range must be the caller's.
    ///
    /// [`Error::Hole`]: crate::Error::Hole
    /// [`Error::SystemAt`]: crate::Error::SystemAt
    pub unsafe fn purge(self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        engine::purge(self)
    }
}
