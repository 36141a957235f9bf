//! `free`: gives contents up, with a policy that decides when the kernel gets the
//! pages.

use super::{LazilyFreed, adaptive, freed_ranges};
use crate::ground::error::{Refused, Result};
use crate::ground::mapping::Mapping;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::DestructiveAdvice;
use crate::observation::stats;
use crate::verbs::{advise_in_chunks, check_private_anonymous, volatile};

/// When the kernel gets the pages of freed memory.
///
/// To the caller all three policies mean the same: the contents are given up, and
/// the range can be written again at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FreePolicy {
    /// At once, before the call returns: `madvise(MADV_DONTNEED)`.
    ///
    /// [`PageRange::discard`] frees the pages of large ranges in the background
    /// instead.
    Eager,
    /// When the kernel needs them: `madvise(MADV_FREE)`, exactly as
    /// [`PageRange::lazy_free`].
    Lazy,
    /// Lazily while memory is plentiful, eagerly under [pressure](crate::pressure),
    /// some or severe. When pressure becomes severe, tenure also has the kernel
    /// reclaim the ranges that were freed lazily before (`MADV_PAGEOUT`).
    ///
    /// Freeing lazily under some pressure was slower: in `tenure bench lazy_free` it
    /// reached 0.68 times the records of `MADV_DONTNEED` under the heaviest
    /// pressure, instead of 1.04 (Linux 6.18, 2 CPUs).
    ///
    /// Each process notices by itself, after freeing about 16 MiB, that the kernel
    /// reclaims much of its lazily free memory because a limit is met. It then raises
    /// the level, and frees lazily again after ten seconds without such reclaim.
    ///
    /// The first call starts the thread that watches pressure. Where pressure cannot
    /// be watched, memory is freed eagerly.
    #[default]
    Adaptive,
}

impl Mapping {
    /// Gives the contents up, and the pages when the policy decides:
    /// `madvise(MADV_FREE)` or `madvise(MADV_DONTNEED)`. [`LazilyFreed::reuse`] makes
    /// the memory usable again.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::free`], with the mapping returned.
    ///
    /// ```
    /// use tenure::{Mapping, lazy_free::FreePolicy};
    ///
    /// let buffer = Mapping::anonymous(1 << 20).map()?;
    /// let idle = buffer.free(FreePolicy::Adaptive)?;
    /// let mut buffer = idle.reuse()?;
    /// buffer.as_mut_slice()?.fill(7);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn free(self, policy: FreePolicy) -> Result<LazilyFreed, Refused<Self>> {
        // SAFETY: no reference to the bytes exists while `self` is owned, and
        // `LazilyFreed` lends none.
        match unsafe { self.range().free(policy) } {
            Ok(()) => Ok(LazilyFreed { mapping: self }),
            Err(error) => Err(Refused { value: self, error }),
        }
    }
}

impl PageRange {
    /// Gives the contents up, and the pages when the policy decides:
    /// `madvise(MADV_FREE)` or `madvise(MADV_DONTNEED)`. An empty range succeeds.
    ///
    /// Until a page is written again its contents may turn into zeros at any
    /// time, as with [`lazy_free`](PageRange::lazy_free); from the first write on
    /// it is ordinary memory.
    ///
    /// With [`FreePolicy::Adaptive`] the range is recorded until it is
    /// [reused](PageRange::reuse), so that the kernel can reclaim it under severe
    /// pressure. That keeps pages that were written in the meantime, reported or not.
    /// With this policy the mappings of a range are checked once, and not again before
    /// it is unmapped through tenure. If other code has unmapped or sealed a part, the
    /// others may have been freed when [`Error::Hole`](crate::Error::Hole) or
    /// [`Error::Sealed`](crate::Error::Sealed) is returned; if other code has mapped memory over it, the contents of that memory
    /// are given up.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::lazy_free`], whatever the policy, with nothing done.
    /// [`Error::SystemAt`](crate::Error::SystemAt) when the kernel refuses to
    /// free the pages at once; a part may have been freed.
    ///
    /// # Safety
    ///
    /// * No code may rely on the contents of the range any more.
    /// * No byte of the range may be read, nor a shared reference to it exist,
    ///   before it has been written again: until then its value may change.
    pub unsafe fn free(self, policy: FreePolicy) -> Result<()> {
        match policy {
            // SAFETY: each function below has the `# Safety` section of this one.
            FreePolicy::Eager => unsafe { free_eagerly(self) },
            // SAFETY: as above.
            FreePolicy::Lazy => unsafe { self.lazy_free() },
            // SAFETY: as above.
            FreePolicy::Adaptive => unsafe { adaptive::free(self) },
        }
    }

    /// Reports that a freed range is in use again, to keep
    /// [`FreePolicy::Adaptive`] from reclaiming it. It makes no system call.
    ///
    /// No contents are lost without the report. But when pressure becomes severe, the
    /// kernel has to reclaim the freed pages, and to tell the pages that were written
    /// since apart takes it 1.5 µs each; with swap it writes them out. The report takes
    /// some 100 ns. Unmapping, discarding, locking, populating for writing and marking
    /// volatile through tenure imply it.
    pub fn reuse(self) {
        freed_ranges::forget_freed(self);
    }
}

/// Frees the pages of a range after checking it: `madvise(MADV_DONTNEED)`.
///
/// # Safety
///
/// As for [`PageRange::free`].
pub(super) unsafe fn free_eagerly(range: PageRange) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    check_private_anonymous(super::VERB, range)?;
    volatile::forget_contents(range)?;
    freed_ranges::forget_freed(range);
    // SAFETY: the caller gives the contents up.
    unsafe { dontneed(range) }
}

/// Frees the pages of a range: `madvise(MADV_DONTNEED)` in chunks.
///
/// # Safety
///
/// As for [`PageRange::free`].
pub(super) unsafe fn dontneed(range: PageRange) -> Result<()> {
    // SAFETY: the caller gives the contents up.
    unsafe { advise_in_chunks(range, DestructiveAdvice::DontNeed, "madvise(MADV_DONTNEED)") }?;
    stats::EAGER_FREE.done(range.len());
    Ok(())
}
