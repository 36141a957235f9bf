//! Purging volatile memory at once.

use super::state::{Engine, can_offer};
use crate::ground::error::Result;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{DestructiveAdvice, advise_destructive};
use crate::ground::sys::guard;
use crate::ground::sys::page_runs::{PageError, each_with_contents};
use crate::observation::stats::Counter;
use crate::verbs::volatile::error::explain_pages;

impl Engine {
    /// Discards the contents of the range, which is volatile: `madvise(MADV_DONTNEED)`,
    /// or guards where it cannot be offered. Adds the purged bytes to `cause` and returns
    /// them.
    ///
    /// # Safety
    ///
    /// As for [`Engine::offer`].
    pub(crate) unsafe fn purge(&mut self, range: PageRange, cause: Counter) -> Result<usize> {
        let mut purged_bytes = 0;
        // SAFETY: the caller keeps this function's contract, which is that of `offer`.
        if !self.is_offered(range) && (!can_offer() || unsafe { self.offer(range) }.is_err()) {
            // SAFETY: as above; the contract is the same.
            purged_bytes += unsafe { self.purge_behind_guards(range) }?;
        }
        for vma in self.offered_vmas(range)? {
            if self.protects(vma.range.start()) {
                each_with_contents(vma.range, |run| {
                    // SAFETY: the run is offered, so its contents may go, and registered,
                    // so that each purged page is SIGBUS.
                    unsafe { advise_destructive(run, DestructiveAdvice::DontNeed) }
                        .map_err(PageError::call("madvise(MADV_DONTNEED)", run))?;
                    purged_bytes += self.purged.insert(run);
                    Ok(())
                })
                .map_err(explain_pages)?;
            }
        }
        cause.add(purged_bytes);
        Ok(purged_bytes)
    }

    /// Discards the contents of the parts that are not offered and installs guards there:
    /// an access is SIGSEGV. Returns the purged bytes.
    ///
    /// # Safety
    ///
    /// As for [`Engine::offer`].
    unsafe fn purge_behind_guards(&mut self, range: PageRange) -> Result<usize> {
        let mut purged_bytes = 0;
        self.check(range)?;
        for unguarded in self.guarded.gaps(range) {
            for part in self.offered.gaps(unguarded) {
                each_with_contents(part, |run| {
                    // SAFETY: the contents may go by this function's contract; `check`
                    // has seen private anonymous memory.
                    unsafe { guard::install(run) }
                        .map_err(PageError::call("madvise(MADV_GUARD_INSTALL)", run))?;
                    self.guarded.insert(run);
                    purged_bytes += self.purged.insert(run);
                    Ok(())
                })
                .map_err(explain_pages)?;
            }
        }
        Ok(purged_bytes)
    }
}
