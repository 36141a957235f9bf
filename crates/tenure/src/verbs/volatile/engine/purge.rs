//! Purging volatile memory at once.

use super::state::{Engine, can_offer};
use super::validate::first_mappings;
use crate::ground::error::Result;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{DestructiveAdvice, advise_destructive};
use crate::ground::sys::page_runs::{PageError, each_with_contents};
use crate::ground::sys::{guard, page_size};
use crate::observation::stats::Counter;
use crate::verbs::volatile::error::explain_pages;

impl Engine {
    /// Discards the first contents of the range, which is volatile, a chunk of them at
    /// most: `madvise(MADV_DONTNEED)`, or guards where it cannot be offered. Pages that
    /// were populated since the last offer are offered first. Adds the purged bytes to
    /// `cause`; returns the rest of the range and those bytes.
    ///
    /// # Safety
    ///
    /// As for [`Engine::offer_chunk`].
    pub(crate) unsafe fn purge_chunk(
        &mut self,
        range: PageRange,
        cause: Counter,
    ) -> Result<(PageRange, usize)> {
        let (span, rest) = self.next_span(first_mappings(range))?;
        let rest = PageRange::between(rest.start(), range.end());
        let Some(span) = span else {
            return Ok((rest, 0));
        };
        let mut purged_bytes = 0;
        if !self.offered.contains_all(span) && (!can_offer() || self.register(span).is_err()) {
            // SAFETY: the caller keeps this function's contract, which is the same.
            purged_bytes += unsafe { self.install_guards(span) }?;
        }
        // The pages that are purged may have been populated for an unmark under way.
        self.repopulated.remove(span);
        for vma in self.offered_vmas(span)? {
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
        Ok((rest, purged_bytes))
    }

    /// Discards the contents of a range of an arena that cannot be offered: installs
    /// guards. Adds the purged bytes to `cause`, and returns them.
    ///
    /// # Safety
    ///
    /// As for [`Engine::offer_chunk`].
    pub(crate) unsafe fn purge_behind_guards(
        &mut self,
        range: PageRange,
        cause: Counter,
    ) -> Result<usize> {
        // SAFETY: the caller keeps this function's contract, which is the same.
        let purged_bytes = unsafe { self.install_guards(range) }?;
        cause.add(purged_bytes);
        Ok(purged_bytes)
    }

    /// Discards the contents of the parts that are not offered and installs guards there:
    /// an access is SIGSEGV. Returns the purged bytes.
    ///
    /// # Safety
    ///
    /// As for [`Engine::offer_chunk`].
    unsafe fn install_guards(&mut self, range: PageRange) -> Result<usize> {
        let mut purged_bytes = 0;
        self.check(range)?;
        for unguarded in self.guarded.gaps(range) {
            for part in self.offered.gaps(unguarded) {
                each_with_contents(part, |run| {
                    // SAFETY: the contents may go by this function's contract; `check`
                    // has seen private anonymous memory.
                    if unsafe { guard::install(run) }.is_ok() {
                        self.guarded.insert(run);
                        purged_bytes += self.purged.insert(run);
                        return Ok(());
                    }
                    // A part of it has been locked meanwhile. Some pages may have guards:
                    // to install them again tells which.
                    let mut answer = Ok(());
                    for page in run.chunks(page_size()) {
                        // SAFETY: as above.
                        match unsafe { guard::install(page) } {
                            Ok(()) => {
                                self.guarded.insert(page);
                                purged_bytes += self.purged.insert(page);
                            }
                            Err(errno) => {
                                let call = "madvise(MADV_GUARD_INSTALL)";
                                answer = Err(PageError::Call(call, page, errno));
                            }
                        }
                    }
                    answer
                })
                .map_err(explain_pages)?;
            }
        }
        Ok(purged_bytes)
    }
}
