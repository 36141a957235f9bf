//! Revoking offers.

use super::state::Engine;
use crate::ground::error::Result;
use crate::ground::range::PageRange;
use crate::ground::sys::{guard, map, page_runs};
use crate::observation::stats;
use crate::verbs::volatile::error::{at, explain_pages};
use crate::verbs::volatile::outcome::Outcome;

impl Engine {
    /// Revokes the offer of the range and returns which pages are purged:
    /// `ioctl(PAGEMAP_SCAN)`, `madvise(MADV_POPULATE_WRITE)` and
    /// `ioctl(UFFDIO_UNREGISTER)`. On an error the range is still offered, and the pages
    /// that were found purged stay recorded.
    pub(crate) fn revoke_offer(&mut self, range: PageRange) -> Result<Outcome> {
        // First of all, because no page can be populated behind a guard.
        for part in self.guarded.parts(range) {
            // SAFETY: `check` has seen that the range could be read and written before
            // `purge` installed the guard.
            unsafe { guard::remove(part) }.map_err(at("madvise(MADV_GUARD_REMOVE)", part))?;
            self.guarded.remove(part);
        }
        for vma in self.offered_vmas(range)? {
            if !self.protects(vma.range.start()) {
                stats::UNPROTECTED_BYTES.add(self.purged.insert(vma.range));
                if self.is_child_without_access && !vma.readable {
                    // SAFETY: `check` has seen that the range could be read and written
                    // before the fork handler made it inaccessible.
                    unsafe { map::protect_read_write(vma.range) }
                        .map_err(at("mprotect", vma.range))?;
                }
            } else if let Some(uffd) = &self.uffd {
                let purged = &mut self.purged;
                page_runs::repopulate(uffd, vma.range, |absent| {
                    stats::PURGED_BY_KERNEL_BYTES.add(purged.insert(absent));
                })
                .map_err(explain_pages)?;
            }
        }
        self.unregister(range);
        Ok(self.take_report(range))
    }

    /// Forgets a range whose contents or mappings go away, and the arenas in it.
    pub(crate) fn forget(&mut self, range: PageRange) {
        self.arenas.remove_within(range);
        self.forget_contents(range);
    }

    /// Forgets what is offered, purged or guarded of a range whose contents go away.
    pub(super) fn forget_contents(&mut self, range: PageRange) {
        if !self.offered.is_empty() {
            self.unregister(range);
        }
        if !self.purged.is_empty() {
            self.purged.remove(range);
        }
        for part in self.guarded.parts(range) {
            // SAFETY: `check` has seen that the range could be read and written before
            // `purge` installed the guard. Where it is unmapped by now, the call fails
            // and changes nothing.
            let _ = unsafe { guard::remove(part) };
            self.guarded.remove(part);
        }
    }

    fn unregister(&mut self, range: PageRange) {
        for part in self.offered.parts(range) {
            let is_own = !self.arenas.is_registered(part);
            if let Some(uffd) = self.uffd.as_ref().filter(|uffd| is_own && uffd.is_open()) {
                // Parts that were mapped over are not registered: the kernel skips them.
                let _ = uffd.unregister(part);
            }
            self.offered.remove(part);
            self.set_offered_bytes(self.offered_bytes - part.len());
        }
    }

    fn take_report(&mut self, range: PageRange) -> Outcome {
        let runs = self.purged.parts(range);
        if runs.is_empty() {
            return Outcome::Intact;
        }
        self.purged.remove(range);
        Outcome::Purged(runs)
    }
}
