//! When memory that is freed goes back to the kernel.

use super::{LazilyFreed, adaptive, known};
use crate::ground::error::{Refused, Result};
use crate::ground::mapping::Mapping;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::Losing;
use crate::observation::stats;
use crate::verbs::{advise_in_chunks, check_private_anonymous, volatile};

/// When memory that is freed goes back to the kernel.
///
/// To the caller all three mean the same: the contents are given up, and the
/// range can be written again at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FreePolicy {
    /// At once, before the call returns: `madvise(MADV_DONTNEED)`.
    ///
    /// [`PageRange::discard`] is for callers that do not want to wait for it.
    Eager,
    /// When the kernel needs it: `madvise(MADV_FREE)`, as
    /// [`PageRange::lazy_free`].
    Lazy,
    /// Lazily while memory is plentiful, eagerly while there is
    /// [pressure](crate::pressure), some or severe. When it becomes severe, what
    /// was freed lazily before is given back, too.
    ///
    /// To go on lazily while there is some pressure was slower: in `tenure bench
    /// lazy`, 0.68 times the records of `MADV_DONTNEED` under the heaviest
    /// pressure instead of 1.04 (Linux 6.18, 2 CPUs).
    ///
    /// Each process notices by itself, after freeing 16 MiB or so, that the kernel
    /// takes much of what is lazily free because a limit of its is met, and raises
    /// the level; after ten seconds without it frees lazily again.
    ///
    /// The first call starts the thread that watches pressure; where it cannot
    /// be watched, memory is freed eagerly.
    #[default]
    Adaptive,
}

impl Mapping {
    /// Gives the contents up, and the pages when the policy says so.
    /// [`LazilyFreed::take_back`] makes the memory usable again.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::free`], with the mapping given back.
    ///
    /// ```
    /// use tenure::{FreePolicy, Mapping};
    ///
    /// let buffer = Mapping::anonymous(1 << 20).map()?;
    /// let idle = buffer.free(FreePolicy::Adaptive)?;
    /// let mut buffer = idle.take_back()?;
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
    /// Gives the contents up, and the pages when the policy says so. An empty
    /// range succeeds.
    ///
    /// Until a page is written again its contents may turn into zeros at any
    /// time, as with [`lazy_free`](PageRange::lazy_free); from the first write on
    /// it is ordinary memory. With [`FreePolicy::Adaptive`] the range is
    /// remembered until it is [used again](PageRange::reuse), so that it can be
    /// given back under severe pressure. What has been written meanwhile is kept
    /// then, whether tenure has been told or not.
    ///
    /// With that policy a range is not looked at again before it is unmapped
    /// through tenure. If it was unmapped by others, what lies on both sides of
    /// the hole may be free when [`Error::Hole`](crate::Error::Hole) is returned;
    /// contents of other memory that was mapped over it are given up.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::lazy_free`], whatever the policy, with nothing done.
    /// [`Error::SystemAt`](crate::Error::SystemAt) when the kernel refuses to
    /// free the pages at once; a part may be free then.
    ///
    /// # Safety
    ///
    /// * Nothing may rely on the contents of the range any more.
    /// * No byte of the range may be read, nor a shared reference to it exist,
    ///   before it has been written again: until then its value may change.
    pub unsafe fn free(self, policy: FreePolicy) -> Result<()> {
        match policy {
            // SAFETY: handed on to the caller.
            FreePolicy::Eager => unsafe { free_at_once(self) },
            // SAFETY: as above.
            FreePolicy::Lazy => unsafe { self.lazy_free() },
            // SAFETY: as above.
            FreePolicy::Adaptive => unsafe { adaptive::free(self) },
        }
    }

    /// Says that a range that was freed is in use again.
    ///
    /// Nothing is lost without it. But when pressure becomes severe the kernel is
    /// asked to take what was freed, and what has been written since must be
    /// told apart from it page by page, at 1.5 µs for each; with swap it is
    /// written out. This call takes some 100 ns. Unmapping, discarding, locking,
    /// populating for writing and marking volatile through tenure say it, too.
    pub fn reuse(self) {
        known::forget_freed(self);
    }
}

/// # Safety
///
/// As for [`PageRange::free`].
pub(super) unsafe fn free_at_once(range: PageRange) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    check_private_anonymous(super::VERB, range)?;
    volatile::forget(range);
    known::forget_freed(range);
    // SAFETY: private anonymous memory that is not locked, as just checked; the
    // caller gives the contents up.
    unsafe { discard(range) }
}

/// # Safety
///
/// As for [`PageRange::free`].
pub(super) unsafe fn discard(range: PageRange) -> Result<()> {
    // SAFETY: handed on to the caller.
    unsafe { advise_in_chunks(range, Losing::DontNeed, "madvise(MADV_DONTNEED)") }?;
    stats::EAGER_FREE.done(range.len());
    Ok(())
}
