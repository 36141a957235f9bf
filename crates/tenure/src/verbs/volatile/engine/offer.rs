//! Offering memory to the kernel.

use super::state::Engine;
use crate::ground::error::Result;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{DestructiveAdvice, advise_destructive};
use crate::ground::sys::registration::{map_zero_page_where_absent, register_inherited, unmerge};
use crate::ground::sys::userfaultfd::Userfaultfd;
use crate::ground::sys::vma::Vma;
use crate::observation::stats;
use crate::verbs::volatile::error::{at, explain_pages, explain_register};

impl Engine {
    /// Lets the kernel purge pages of the range: `ioctl(UFFDIO_REGISTER)` and
    /// `madvise(MADV_FREE)`. Asks the kernel again what is mapped there, because that may
    /// have changed since the range was marked. On an error nothing has been done.
    ///
    /// # Safety
    ///
    /// The range is volatile: its contents may go at any time.
    pub(crate) unsafe fn offer(&mut self, range: PageRange) -> Result<()> {
        // SAFETY: the caller keeps this function's contract, which is the same.
        let answer = unsafe { self.try_offer(range) };
        self.offer_failed |= answer.is_err();
        answer
    }

    /// # Safety
    ///
    /// As for [`Engine::offer`].
    unsafe fn try_offer(&mut self, range: PageRange) -> Result<()> {
        let mapped = self.check(range)?;
        self.open()?;
        let unregistered = self.record_unprotected(&mapped);
        let uffd = self.open()?;
        for part in &unregistered {
            unmerge(*part).map_err(at("madvise(MADV_UNMERGEABLE)", *part))?;
            map_zero_page_where_absent(*part).map_err(explain_pages)?;
        }
        for (index, part) in unregistered.iter().enumerate() {
            if let Err(errno) = register_inherited(uffd, *part) {
                for registered in &unregistered[..index] {
                    // Registered a moment ago: to undo that splits no mapping.
                    let _ = uffd.unregister(*registered);
                }
                return Err(explain_register(range, errno));
            }
        }
        let new_bytes = self.offered.insert(range);
        self.set_offered_bytes(self.offered_bytes + new_bytes);
        // If the kernel refuses the advice (for memory that was locked since the check),
        // the pages stay resident.
        // SAFETY: the caller lets the kernel discard the contents; from here on the
        // registration makes each purged page SIGBUS.
        let _ = unsafe { advise_destructive(range, DestructiveAdvice::Free) };
        Ok(())
    }

    /// Returns the parts of the mappings that have to be registered: those that were
    /// never offered, and those that have lost their protection, which this records as
    /// purged.
    fn record_unprotected(&mut self, mapped: &[Vma]) -> Vec<PageRange> {
        let mut unregistered = Vec::new();
        for vma in mapped.iter().map(|vma| vma.range) {
            let is_protected = self.protects(vma.start());
            let gaps = self.offered.gaps(vma).into_iter();
            let registered = |part: &PageRange| is_protected && self.arenas.is_registered(*part);
            unregistered.extend(gaps.filter(|part| !registered(part)));
            if !is_protected {
                for part in self.offered.parts(vma) {
                    stats::UNPROTECTED_BYTES.add(self.purged.insert(part));
                    unregistered.push(part);
                }
            }
        }
        unregistered
    }

    /// Offers everything anew if the program has closed the userfaultfd: all that was
    /// offered counts as purged, is emptied, and registered again.
    pub(crate) fn rearm(&mut self) {
        if self.offered.is_empty() || self.uffd.as_ref().is_some_and(Userfaultfd::is_open) {
            return;
        }
        let all: Vec<PageRange> = self.offered.iter().collect();
        for range in all {
            // SAFETY: only volatile memory is in `offered`.
            if unsafe { self.offer(range) }.is_ok() {
                // SAFETY: `offer` has recorded the range as purged, and the registration
                // makes its pages SIGBUS.
                let _ = unsafe { advise_destructive(range, DestructiveAdvice::DontNeed) };
            }
        }
    }
}
