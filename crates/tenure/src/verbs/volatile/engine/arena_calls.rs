//! Calls of arenas to the engine: arenas record themselves what is registered and offered.

use super::offer::free_unshared;
use super::state::Engine;
use crate::ground::error::Result;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Advice, DestructiveAdvice, advise, advise_destructive};
use crate::ground::sys::page_runs::{self, PageError, each_with_contents};
use crate::ground::sys::pagemap::Scanner;
use crate::ground::sys::registration::{map_zero_page_where_absent, register_inherited};
use crate::ground::sys::userfaultfd::Userfaultfd;
use crate::ground::sys::{Errno, vma};
use crate::observation::stats::{self, Counter};
use crate::verbs::volatile::error::{at, explain_pages, explain_register};

impl Engine {
    /// Returns a number that differs for each userfaultfd that the engine has opened.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the userfaultfd of an epoch, if that is still open.
    pub(crate) fn uffd_of(&self, epoch: u64) -> Option<&Userfaultfd> {
        let uffd = self.uffd.as_ref()?;
        (self.epoch == epoch && uffd.is_open()).then_some(uffd)
    }

    /// Opens the userfaultfd if need be, and returns its epoch.
    pub(crate) fn open_epoch(&mut self) -> Result<u64> {
        self.open()?;
        Ok(self.epoch)
    }

    /// Registers a part of an arena with the userfaultfd of its epoch. Absent pages of the
    /// part were never touched, or belong to no buffer: `madvise(MADV_POPULATE_READ)` for
    /// these and `ioctl(UFFDIO_REGISTER)`.
    pub(crate) fn register_part(&mut self, part: PageRange, epoch: u64) -> Result<()> {
        map_zero_page_where_absent(part).map_err(explain_pages)?;
        // The program may just have closed it. Another one would leave what is registered
        // already unprotected.
        let uffd = self.uffd_of(epoch);
        let uffd = uffd.ok_or_else(|| at("UFFDIO_REGISTER", part)(Errno::BADF))?;
        // Memory that the program has locked is a mapping of its own.
        for vma in vma::within(part)? {
            if let Err(errno) = register_inherited(uffd, vma.range) {
                let _ = uffd.unregister(part);
                return Err(explain_register(vma.range, errno));
            }
        }
        Ok(())
    }

    /// Repopulates the pages of a registered part, and records and fills the purged ones:
    /// `ioctl(PAGEMAP_SCAN)`, `madvise(MADV_POPULATE_WRITE)` and `ioctl(UFFDIO_ZEROPAGE)`.
    pub(crate) fn repopulate_part(&mut self, part: PageRange) -> Result<()> {
        let Some(uffd) = &self.uffd else {
            return self.keep_present(part);
        };
        let purged = &mut self.purged;
        let mut max_runs = usize::MAX;
        let end = page_runs::repopulate(uffd, part, &mut max_runs, |absent| {
            stats::PURGED_BY_KERNEL_BYTES.add(purged.insert(absent));
        });
        end.map(drop).map_err(explain_pages)
    }

    /// Repopulates the pages of a part that are present, and leaves the others absent.
    pub(crate) fn keep_present(&self, part: PageRange) -> Result<()> {
        each_with_contents(part, |run| {
            let call = "madvise(MADV_POPULATE_WRITE)";
            advise(run, Advice::PopulateWrite).map_err(PageError::call(call, run))
        })
        .map_err(explain_pages)
    }

    /// Records a range as purged because its protection has ended.
    pub(crate) fn record_unprotected_part(&mut self, range: PageRange) {
        stats::UNPROTECTED_BYTES.add(self.purged.insert(range));
    }

    /// Discards the contents of a registered part: `madvise(MADV_DONTNEED)`. Adds the
    /// purged bytes to `cause`, and returns them.
    ///
    /// # Safety
    ///
    /// The part is volatile: its contents may go at any time.
    pub(crate) unsafe fn purge_part(&mut self, part: PageRange, cause: Counter) -> Result<usize> {
        let mut purged_bytes = 0;
        let purged = each_with_contents(part, |run| {
            // SAFETY: the run is volatile (the caller's contract), and registered, so that
            // each purged page is SIGBUS.
            unsafe { advise_destructive(run, DestructiveAdvice::DontNeed) }
                .map_err(PageError::call("madvise(MADV_DONTNEED)", run))?;
            purged_bytes += self.purged.insert(run);
            Ok(())
        });
        cause.add(purged_bytes);
        purged.map_err(explain_pages)?;
        Ok(purged_bytes)
    }

    /// Lets the kernel purge a registered part: `madvise(MADV_FREE)`. Returns the pages that were
    /// left out: those that another process has, too, if one `may_share` any.
    ///
    /// # Safety
    ///
    /// As for [`purge_part`](Self::purge_part).
    pub(crate) unsafe fn free_part(
        &self,
        part: PageRange,
        may_share: bool,
        scanner: &mut Scanner,
    ) -> Result<Vec<PageRange>> {
        // SAFETY: the caller keeps this function's contract; the registration makes each
        // purged page SIGBUS.
        unsafe { free_unshared(part, may_share, scanner) }.map_err(at("madvise(MADV_FREE)", part))
    }
}
