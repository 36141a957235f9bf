//! Lazy free: contents are no longer needed; the kernel reclaims the pages when it needs
//! memory.
//!
//! `madvise(MADV_FREE)` (Linux 4.5) gives contents up without freeing pages. Until the
//! kernel needs memory the pages stay where they are, and writing to one makes it
//! ordinary memory again, without a page fault that allocates and zeroes. So lazy
//! freeing suits memory that is reused often: an allocator's free blocks, per-request
//! buffers.
//!
//! [`Mapping::lazy_free`] and [`PageRange::lazy_free`] always free lazily.
//! [`Mapping::free`] and [`PageRange::free`] take a [`FreePolicy`]; with
//! [`FreePolicy::Adaptive`] they free lazily while memory is plentiful and eagerly under
//! pressure.
//!
//! # Ranges and units
//!
//! A [`PageRange`] is whole pages; a [`Mapping`] is freed whole. An empty range succeeds.
//! The memory must be private and anonymous, without holes and not locked.
//!
//! Until a page is written again, its old contents may turn into zeros at any time, even
//! between two reads. The safe form therefore consumes the mapping, and
//! [`LazilyFreed::reuse`] returns it. The `unsafe` form only requires that a byte is
//! written before it is read.
//!
//! # What it costs
//!
//! The call walks the pages and frees none, which is cheaper than `MADV_DONTNEED`. The
//! kernel marks pages in batches of 31 per CPU. tenure makes a second, tiny call that
//! flushes the batch, so that the pages are counted (`LazyFree` in smaps) and
//! reclaimable when the call returns. RSS counts them until the kernel reclaims them;
//! [`Residency`](crate::Residency) tells them apart.
//!
//! # How `FreePolicy::Adaptive` works
//!
//! tenure records the ranges that it has freed lazily. When
//! [pressure](crate::pressure) becomes severe, it has the kernel reclaim them with
//! `MADV_PAGEOUT`, which reclaims the pages that are still lazily free and destroys no
//! others: the program may have written some since, without a report. A range whose
//! mappings were checked once is not checked again before it is unmapped through tenure,
//! because that would cost more than freeing; each call only finds out, with one system
//! call, whether a part has been locked since.
//!
//! # Droppable memory
//!
//! Linux 6.11 has a third kind of memory whose pages the kernel may reclaim, for which tenure
//! has no verb: `mmap(MAP_DROPPABLE)`.
//!
//! | | lazy free | [volatile] | MAP_DROPPABLE |
//! | --- | --- | --- | --- |
//! | contents are | given up | wanted | wanted |
//! | a page may go | until it is written again | until the range is unmarked | at any time, written or not |
//! | a page that is gone is | zeros | SIGBUS (or SIGSEGV) | zeros |
//! | the program learns which pages are gone | no | when it unmarks the range | no |
//! | a child after `fork` has | the same pages | its own copy, volatile | zeros |
//! | begins and ends with | a call for any range, a write | a word within the offer delay | the mapping |
//!
//! It suits contents that tell by themselves whether they are there, such as the state of a
//! random number generator. Populating, freeing, discarding and unmapping such memory work as
//! for other private anonymous memory; [`lock`](crate::PageRange::lock) refuses it, because the
//! kernel passes over it and drops its pages all the same. It must not be marked volatile.
//!
//! # When not to use it
//!
//! - For contents that you want back if possible: the kernel replaces pages by zeros
//!   without a report. Mark them [volatile] instead.
//! - For memory that must leave RSS now, or that will not be used for long: use
//!   [`discard`](crate::PageRange::discard) or [`FreePolicy::Eager`].
//! - For shared memory and files: use [`punch`](crate::PageRange::punch).

mod adaptive;
mod freed_ranges;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod policy;

pub(crate) use freed_ranges::register_fork_handlers;
pub(super) use freed_ranges::{forget, forget_freed};
pub use policy::FreePolicy;

use crate::ground::error::{Error, Refused, Result};
use crate::ground::mapping::Mapping;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{DestructiveAdvice, advise_destructive, flush_lazyfree_batch};
use crate::ground::sys::exclusive::{free_exclusive, may_share_pages};
use crate::ground::sys::pagemap::Scanner;
use crate::ground::sys::{Errno, fork, merged};
use crate::observation::stats;
use crate::verbs::populate::Access;
use crate::verbs::{check_private_anonymous, volatile};

const VERB: &str = "lazily free";

/// A [`Mapping`] whose contents were given up with
/// [`lazy_free`](Mapping::lazy_free) or [`free`](Mapping::free). The kernel may
/// replace its pages by zeros at any time, so it lends no bytes.
#[derive(Debug)]
#[must_use = "dropping it unmaps the memory"]
pub struct LazilyFreed {
    mapping: Mapping,
}

impl LazilyFreed {
    /// Returns the pages of the mapping.
    pub fn range(&self) -> PageRange {
        self.mapping.range()
    }

    /// Makes the memory usable again: `madvise(MADV_POPULATE_WRITE)`. Afterwards the
    /// kernel reclaims no page any more, and each page holds its old contents or zeros.
    ///
    /// # Errors
    ///
    /// As for [`Mapping::populate`]; the memory stays lazily free.
    pub fn reuse(self) -> Result<Mapping, Refused<Self>> {
        match self.mapping.populate(.., Access::Write) {
            Ok(()) => Ok(self.mapping),
            Err(error) => Err(Refused { value: self, error }),
        }
    }
}

impl Mapping {
    /// Gives the contents up, and the pages when the kernel needs them:
    /// `madvise(MADV_FREE)` (Linux 4.5). [`LazilyFreed::reuse`] makes the memory
    /// usable again, which is cheaper than fresh memory as long as the kernel has not
    /// taken the pages.
    ///
    /// The process's RSS counts the pages until the kernel reclaims them.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::lazy_free`], with the mapping returned.
    ///
    /// ```
    /// use tenure::Mapping;
    ///
    /// let buffer = Mapping::anonymous(1 << 20).map()?;
    /// let idle = buffer.lazy_free()?;
    /// let mut buffer = idle.reuse()?;
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

/// Lets the kernel reclaim the pages of a range: `madvise(MADV_FREE)`. Unless all are this
/// process's own, those that other processes have, too, leave it at once: `madvise(MADV_DONTNEED)`.
///
/// # Safety
///
/// As for [`PageRange::lazy_free`].
unsafe fn mark(range: PageRange, is_own: bool) -> Result<(), Errno> {
    // SAFETY: the caller gives the contents up.
    let discard = |part| unsafe { advise_destructive(part, DestructiveAdvice::DontNeed) };
    if merged::may_be_any() {
        return discard(range);
    }
    // SAFETY: as above.
    unsafe {
        match is_own {
            true => advise_destructive(range, DestructiveAdvice::Free),
            false => {
                // A child would have the file.
                let _no_fork = fork::block_forks();
                free_exclusive(range, &mut Scanner::new(), discard)
            }
        }
    }
}

impl PageRange {
    /// Gives the contents up, and the pages when the kernel needs them:
    /// `madvise(MADV_FREE)` (Linux 4.5). An empty range succeeds.
    ///
    /// Until a page is written again its contents may turn into zeros at any
    /// time; from the first write on it is ordinary memory. A read does not change
    /// that. Pages that are swapped out are dropped at once. Memory
    /// without access (`PROT_NONE`, `PROT_READ`) can be freed as well. The kernel
    /// splits a huge page of which a part is freed. Volatility of the range ends.
    ///
    /// When the call returns, smaps counts the freed pages as `LazyFree`, however few
    /// they are. With `madvise` alone it may not: the kernel marks pages in batches of
    /// 31 for each CPU, and the pages of an incomplete batch (a whole range of up to 30
    /// pages) are neither counted nor reclaimable. The next call on the same CPU
    /// flushes the batch, so tenure makes a second call, on a page of its own, which
    /// takes 0.2 to 0.7 µs more. Up to 30 pages still stay uncounted if the thread
    /// moves to another CPU between the two calls, or if it faulted pages in on
    /// another CPU a moment before: those are in a batch of that CPU, and the kernel
    /// skips them. It also skips pages that it is migrating (compaction).
    ///
    /// Pages that another process has, too, since a `fork` leave this process at once
    /// (`MADV_DONTNEED`), and all do where pages of this process may have been merged (KSM):
    /// Linux could discard them in the other process as well, where they may be in use. Of a
    /// huge page that the other process has a part of, nothing may happen.
    ///
    /// # Errors
    ///
    /// With nothing done:
    /// * [`Error::Hole`] when a part is not mapped,
    /// * [`Error::WrongKind`] for shared, file-backed and hugetlb memory,
    /// * [`Error::Locked`] when a part is locked,
    /// * [`Error::Sealed`] when a part is sealed (`mseal(2)`) and not writable,
    /// * [`Error::Unsupported`] where the kernel has no `MADV_FREE`,
    /// * [`Error::MappingLimit`] for a part of an offered volatile range, when too few
    ///   mappings are left to split its registration.
    ///
    /// # Safety
    ///
    /// * No code may rely on the contents of the range any more.
    /// * No byte of the range may be read, nor a shared reference to it exist,
    ///   before it has been written again: until then its value may change.
    pub unsafe fn lazy_free(self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        check_private_anonymous(VERB, self)?;
        // A page that the kernel reclaims must read as zeros instead of SIGBUS.
        volatile::forget_contents(self)?;
        // SAFETY: the caller gives the contents up.
        let marked = unsafe { mark(self, !may_share_pages()) };
        marked.map_err(|errno| match errno {
            // The check above rules out the other causes of EINVAL.
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
        flush_lazyfree_batch();
        stats::LAZY_FREE.done(self.len());
        Ok(())
    }
}
