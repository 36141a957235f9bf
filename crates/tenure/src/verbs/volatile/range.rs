//! The verb's `unsafe` form: any range of private anonymous memory.

use super::engine::can_offer;
use super::offer_thread::{notify_marked, offer_delay, offer_in_chunks, resume_in_child};
use super::options::VolatileOptions;
use super::outcome::Outcome;
use super::priority::Timestamp;
use super::registry::{Candidate, ENGINE, lock_validated, purge, revoke_range};
use super::word::Unmarked;
use crate::ground::error::Result;
use crate::ground::range::PageRange;
use crate::ground::sys::vma;
use crate::observation::stats;

impl PageRange {
    /// Lets the kernel reclaim pages of the range when it needs them:
    /// `userfaultfd(2)` in SIGBUS mode (Linux 5.11 for processes without
    /// privilege) and `madvise(MADV_FREE)`. An empty range succeeds.
    ///
    /// From now on, until [`mark_nonvolatile`](PageRange::mark_nonvolatile):
    /// * Pages that are present read as before. A write keeps the kernel from
    ///   purging its page with the earlier contents; the page stays volatile.
    /// * Touching a purged page is SIGBUS with its address in `si_addr`; a system
    ///   call that is given such an address fails with EFAULT.
    /// * Pages that were never touched are not purged; they read as zeros.
    ///
    /// Pages that were never touched take no memory, and long parts of them no time. Other threads
    /// wait for a chunk of the range at most, about a millisecond.
    ///
    /// Marking again is harmless and offers pages written since. A range is checked
    /// when it is marked for the first time only: if it has been locked since then,
    /// marking succeeds and its pages stay (`offer_failed_bytes` in
    /// [`Stats`](crate::Stats)). Ranges may overlap. When the range is offered to the
    /// kernel, pages in swap are purged, and pages that were merged with other memory
    /// (KSM) are unmerged.
    ///
    /// Where userfaultfd or MADV_POPULATE_WRITE (Linux 5.14) is missing or refused,
    /// the kernel is offered nothing: tenure itself purges the range under memory
    /// pressure, and touching a purged page is SIGSEGV.
    ///
    /// After `fork` the range is volatile in the child as well, each process
    /// with its own copy. A child made in another way (`clone`), and memory
    /// moved with `mremap` by other code, are not protected: purged pages
    /// read as zeros there.
    ///
    /// # Errors
    ///
    /// With nothing done:
    /// * [`Error::Hole`] when a part is not mapped,
    /// * [`Error::WrongKind`] for anything but private anonymous memory,
    /// * [`Error::NoAccess`] when a part cannot be read and written,
    /// * [`Error::Locked`] when a part is locked,
    /// * [`Error::Sealed`] when a part is sealed (`mseal(2)`) and not writable,
    /// * [`Error::Busy`] when a part is registered with another userfaultfd,
    /// * [`Error::Unsupported`] when userfaultfd worked before, and yet none can be
    ///   opened now (refused since, by a seccomp filter or a sysctl),
    /// * [`Error::MappingLimit`] when the range is to be offered inside the call, and
    ///   another registration would take more than a quarter of the mappings that the
    ///   process may have (`vm.max_map_count`): each splits its mapping in up to three,
    /// * [`Error::System`] when no descriptor is left to read the mappings (EMFILE),
    /// * [`Error::SystemAt`] for anything else.
    ///
    /// # Safety
    ///
    /// * No reference to bytes of the range may exist until it is nonvolatile
    ///   again; use pointers, and expect SIGBUS.
    /// * The range must not be unmapped, moved or mapped over except through
    ///   tenure, which then ends its volatility.
    /// * It must not be droppable memory (MAP_DROPPABLE, Linux 6.11), whose pages the kernel
    ///   turns into zeros without a report: no call tells it from other memory.
    ///
    /// [`Error::Hole`]: crate::Error::Hole
    /// [`Error::WrongKind`]: crate::Error::WrongKind
    /// [`Error::NoAccess`]: crate::Error::NoAccess
    /// [`Error::Locked`]: crate::Error::Locked
    /// [`Error::Sealed`]: crate::Error::Sealed
    /// [`Error::Busy`]: crate::Error::Busy
    /// [`Error::Unsupported`]: crate::Error::Unsupported
    /// [`Error::System`]: crate::Error::System
    /// [`Error::MappingLimit`]: crate::Error::MappingLimit
    /// [`Error::SystemAt`]: crate::Error::SystemAt
    pub unsafe fn mark_volatile(self) -> Result<()> {
        // SAFETY: the caller keeps the contract of `mark_volatile_with`, which is this
        // function's own.
        unsafe { self.mark_volatile_with(VolatileOptions::new()) }
    }

    /// Does what [`mark_volatile`](PageRange::mark_volatile) does, with a priority,
    /// or with the offer made inside the call. A page that cannot be offered then
    /// stays resident and counts as `offer_failed_bytes` in
    /// [`stats`](crate::stats()).
    ///
    /// # Errors
    ///
    /// As for [`mark_volatile`](PageRange::mark_volatile).
    ///
    /// # Safety
    ///
    /// As for [`mark_volatile`](PageRange::mark_volatile).
    pub unsafe fn mark_volatile_with(self, options: VolatileOptions) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let (priority, timestamp) = (options.priority, Timestamp::now());
        let offers_now = (options.offer_now || offer_delay().is_zero()) && can_offer();
        let mut registry = ENGINE.lock_to_insert()?;
        if offers_now {
            registry.engine.check_capacity(self)?;
        }
        let before_bytes = registry.marks.volatile_bytes();
        if registry.marks.mark(self, priority, timestamp) {
            stats::VOLATILE_BYTES.add(registry.marks.volatile_bytes() - before_bytes);
        } else {
            drop(registry);
            registry = lock_validated(self)?;
            let mut rest = registry.mark_part(self, priority, timestamp);
            while !rest.is_empty() {
                registry = ENGINE.relock_in_turn(registry);
                rest = registry.mark_part(rest, priority, timestamp);
            }
        }
        stats::MARK_VOLATILE.done(self.len());
        drop(registry);
        if offers_now {
            // On failure the pages stay resident and protected.
            offer_in_chunks(&Candidate::Range(self));
        }
        notify_marked();
        Ok(())
    }

    /// Makes the range ordinary memory again and reports exactly which pages were
    /// purged; they read as zeros: `madvise(MADV_POPULATE_WRITE)`. Parts that are not
    /// volatile are skipped, and an empty range is [`Outcome::Intact`].
    ///
    /// Without PAGEMAP_SCAN (before Linux 6.7) pages of an offered range that were never
    /// touched take memory afterwards.
    ///
    /// A part whose protection ended without tenure's doing (something else was mapped
    /// there, or the userfaultfd was closed and the thread `tenure-files` could not be
    /// started) is reported as purged whole; its contents are left as they are.
    ///
    /// # Errors
    ///
    /// With nothing done:
    /// * [`Error::Hole`] when a part is not mapped,
    /// * [`Error::MappingLimit`] for the inner part of an offered range, when to split its
    ///   registration would take more than a quarter of the mappings that the process may
    ///   have (`vm.max_map_count`). To unmark the whole range works always.
    ///
    /// [`Error::SystemAt`] when there is no memory to repopulate a page (ENOMEM). The
    /// range stays volatile (where another thread marks it during the call, a part of it
    /// may), and the next call that succeeds reports the pages that this one found purged.
    ///
    /// # Safety
    ///
    /// The range must be the caller's: another owner may count on SIGBUS.
    ///
    /// [`Error::Hole`]: crate::Error::Hole
    /// [`Error::MappingLimit`]: crate::Error::MappingLimit
    /// [`Error::SystemAt`]: crate::Error::SystemAt
    pub unsafe fn mark_nonvolatile(self) -> Result<Outcome> {
        if self.is_empty() {
            return Ok(Outcome::Intact);
        }
        resume_in_child();
        let mut registry = ENGINE.lock();
        let before_bytes = registry.marks.volatile_bytes();
        // A part of an earlier call that has failed may have no mark, and a report.
        if !registry.engine.has_purged(self) && registry.marks.unmark(self) != Unmarked::NeedsEngine
        {
            let done_bytes = before_bytes - registry.marks.volatile_bytes();
            stats::VOLATILE_BYTES.sub(done_bytes);
            stats::MARK_NONVOLATILE.done(done_bytes);
            return Ok(Outcome::Intact);
        }
        registry.engine.keep_open();
        drop(registry);
        vma::cover(self)?;
        let mut done_bytes = 0;
        let outcome = revoke_range(self, |registry, part| {
            done_bytes += registry.set_nonvolatile(part);
        })?;
        stats::MARK_NONVOLATILE.done(done_bytes);
        Ok(outcome)
    }

    /// Purges the volatile parts of the range now, as the kernel would under memory
    /// pressure: `madvise(MADV_DONTNEED)` on the pages that are present. Other parts
    /// are left alone.
    ///
    /// # Errors
    ///
    /// [`Error::Hole`] when a part is not mapped, with nothing done.
    /// For memory that was locked after it was marked, [`Error::Locked`] as long
    /// as the kernel has not been offered it, and [`Error::SystemAt`] afterwards,
    /// as for everything else that the kernel refuses.
    ///
    /// # Safety
    ///
    /// The range must be the caller's.
    ///
    /// [`Error::Hole`]: crate::Error::Hole
    /// [`Error::Locked`]: crate::Error::Locked
    /// [`Error::SystemAt`]: crate::Error::SystemAt
    pub unsafe fn purge(self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        resume_in_child();
        ENGINE.lock().engine.keep_open();
        vma::cover(self)?;
        let cause = stats::PURGED_ON_REQUEST_BYTES;
        purge(&Candidate::Range(self), cause).map(drop)
    }
}
