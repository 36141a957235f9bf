//! lazy free: contents are no longer needed; the kernel takes the pages when it
//! must, or when a policy says so.

mod adaptive;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod known;
mod policy;

pub(crate) use known::prepare;
pub(super) use known::{forget, forget_freed};
pub use policy::FreePolicy;

use crate::ground::error::{Error, Refused, Result};
use crate::ground::mapping::Mapping;
use crate::ground::range::PageRange;
use crate::ground::sys::Errno;
use crate::ground::sys::advise::{Losing, advise_losing, finish_batch};
use crate::observation::stats;
use crate::verbs::populate::Access;
use crate::verbs::{check_private_anonymous, volatile};

const VERB: &str = "lazily free";

/// A [`Mapping`] whose contents have been given up with
/// [`lazy_free`](Mapping::lazy_free) or [`free`](Mapping::free): the kernel may
/// replace its pages by zeros at any time, so its bytes cannot be looked at.
#[derive(Debug)]
#[must_use = "dropping it unmaps the memory"]
pub struct LazilyFreed {
    mapping: Mapping,
}

impl LazilyFreed {
    /// The pages given up.
    pub fn range(&self) -> PageRange {
        self.mapping.range()
    }

    /// Takes the memory back for use: `madvise(MADV_POPULATE_WRITE)`. From then
    /// on no page disappears. Each page holds its old contents or zeros.
    ///
    /// # Errors
    ///
    /// As for [`Mapping::populate`]; the memory stays given up.
    pub fn take_back(self) -> Result<Mapping, Refused<Self>> {
        match self.mapping.populate(.., Access::Write) {
            Ok(()) => Ok(self.mapping),
            Err(error) => Err(Refused { value: self, error }),
        }
    }
}

impl Mapping {
    /// Gives the contents up, and the pages when the kernel needs them:
    /// `madvise(MADV_FREE)` (Linux 4.5). [`LazilyFreed::take_back`] makes it
    /// usable again, cheaper than fresh memory as long as the kernel has not
    /// taken the pages.
    ///
    /// The process's RSS counts the pages until they are taken.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::lazy_free`], with the mapping given back.
    ///
    /// ```
    /// use tenure::Mapping;
    ///
    /// let buffer = Mapping::anonymous(1 << 20).map()?;
    /// let idle = buffer.lazy_free()?;
    /// let mut buffer = idle.take_back()?;
    /// buffer.as_mut_slice()?.fill(7);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn lazy_free(self) -> Result<LazilyFreed, Refused<Self>> {
        // SAFETY: no reference to the bytes exists while `self` is owned, and
        // `LazilyFreed` lends none.
        match unsafe { self.range().lazy_free() } {
            Ok(()) => Ok(LazilyFreed { mapping: self }),
            Err(error) => Err(Refused { value: self, error }),
        }
    }
}

impl PageRange {
    /// Gives the contents up, and the pages when the kernel needs them:
    /// `madvise(MADV_FREE)` (Linux 4.5). An empty range succeeds.
    ///
    /// Until a page is written again its contents may turn into zeros at any
    /// time; from the first write on it is ordinary memory. Reading does not
    /// take a page back. Pages that are swapped out are dropped at once. Memory
    /// without access (`PROT_NONE`, `PROT_READ`) can be freed as well. A huge
    /// page of which a part is freed is split. Volatility of the range ends.
    ///
    /// What was freed is `LazyFree` in `/proc/self/smaps` when the call returns,
    /// however little it is. Of `madvise` alone that is not so: the kernel marks
    /// pages in batches of 31 for each CPU, and what is in an unfinished batch
    /// (all of a range of up to 30 pages) is neither counted nor can it be
    /// taken. A batch is finished by the next call on its CPU, so a second call
    /// is made, on a page of tenure's, which takes 0.2 to 0.7 µs more. A thread
    /// that moves to another CPU between the two leaves up to 30 pages behind,
    /// as does one that brought pages in on another CPU a moment before: the
    /// kernel has them in a batch of that CPU's, too, and passes them over. So it
    /// does with pages that it is just moving to another place (compaction).
    ///
    /// Pages that a child of a fork shares are `LazyFree`, too, but nothing is
    /// gained by them while the child has them.
    ///
    /// # Errors
    ///
    /// With nothing done:
    /// * [`Error::Hole`] when a part is not mapped,
    /// * [`Error::WrongKind`] for shared, file-backed and hugetlb memory,
    /// * [`Error::Locked`] when a part is locked,
    /// * [`Error::Unsupported`] where the kernel has no `MADV_FREE`.
    ///
    /// # Safety
    ///
    /// * Nothing may rely on the contents of the range any more.
    /// * No byte of the range may be read, nor a shared reference to it exist,
    ///   before it has been written again: until then its value may change.
    pub unsafe fn lazy_free(self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        check_private_anonymous(VERB, self)?;
        // What is taken reads as zeros, which must not be SIGBUS.
        volatile::forget(self);
        // SAFETY: the caller gives the contents up.
        let marked = unsafe { advise_losing(self, Losing::Free) };
        marked.map_err(|errno| match errno {
            // The kind has been looked at: what is left is the advice.
            Errno::INVAL => Error::Unsupported {
                verb: VERB,
                feature: "MADV_FREE",
                answer: errno,
                remedy: "it needs Linux 4.5, and memory that can be freed lazily at all (not secret or device memory)",
            },
            errno => Error::SystemAt {
                call: "madvise(MADV_FREE)",
                range: self,
                errno,
            },
        })?;
        finish_batch();
        stats::LAZY_FREE.done(self.len());
        Ok(())
    }
}
