//! The engine's state, and questions about it.

use super::arenas::Arenas;
use super::page_set::PageSet;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::features::Features;
use crate::ground::sys::page_runs;
use crate::ground::sys::userfaultfd::Userfaultfd;
use crate::ground::sys::vma::{self, Vma};
use crate::observation::stats;
use crate::verbs::volatile::error::{VERB, explain_pages};

/// The record of all memory that the kernel has been offered, or has purged.
pub(crate) struct Engine {
    /// Opened when it is first needed.
    pub(super) uffd: Option<Userfaultfd>,
    pub(super) arenas: Arenas,
    /// The pages that the kernel may purge; registered with the userfaultfd.
    pub(super) offered: PageSet,
    /// The size of `offered`.
    pub(super) offered_bytes: usize,
    /// Pages that are known to be purged and have not been reported.
    pub(super) purged: PageSet,
    /// The purged pages that have guards, because userfaultfd is unavailable.
    pub(super) guarded: PageSet,
    /// An offer has failed since the last [`take_offer_failed`](Self::take_offer_failed).
    pub(super) offer_failed: bool,
    /// This is a child that could not register all it inherited: some of `offered` is
    /// inaccessible instead.
    pub(super) is_child_without_access: bool,
}

/// Returns whether the kernel can be offered memory: it has to show which pages it
/// purges, and to give the others back without a gap.
pub(crate) fn can_offer() -> bool {
    let features = Features::get();
    features.sigbus_on_missing() && features.madv_populate.is_ok()
}

impl Engine {
    pub(crate) const fn new() -> Self {
        Self {
            uffd: None,
            arenas: Arenas::new(),
            offered: PageSet::new(),
            offered_bytes: 0,
            purged: PageSet::new(),
            guarded: PageSet::new(),
            offer_failed: false,
            is_child_without_access: false,
        }
    }

    /// Returns whether a userfaultfd is open or anything is recorded.
    pub(crate) fn is_in_use(&self) -> bool {
        self.uffd.is_some() || !self.offered.is_empty() || !self.arenas.is_empty()
    }

    /// Returns whether the kernel has been offered the whole range.
    pub(crate) fn is_offered(&self, range: PageRange) -> bool {
        self.offered.contains_all(range)
    }

    /// Returns whether a page of the range is known to be purged.
    pub(crate) fn has_purged(&self, range: PageRange) -> bool {
        self.purged.overlaps(range)
    }

    /// Returns whether a page of the range has a guard.
    pub(crate) fn has_guards(&self, range: PageRange) -> bool {
        self.guarded.overlaps(range)
    }

    /// Returns whether an offer has failed since the last call.
    pub(crate) fn take_offer_failed(&mut self) -> bool {
        std::mem::take(&mut self.offer_failed)
    }

    /// Returns whether the kernel has reclaimed a page that it has been offered of the
    /// range. (Pages that were never touched have the zero page.)
    pub(crate) fn misses_pages(&self, range: PageRange) -> Result<bool> {
        for part in self.offered.parts(range) {
            if page_runs::has_absent(part).map_err(explain_pages)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns whether everything that was read of the range is what the program wrote
    /// there: no page is known to be purged, and all that is offered is protected.
    pub(crate) fn contents_valid(&self, range: PageRange) -> Result<bool> {
        let is_protected = |vma: &Vma| self.protects(vma.range.start());
        Ok(!self.has_purged(range) && self.offered_vmas(range)?.iter().all(is_protected))
    }

    /// Returns whether a missing page of the mapping at `at`, which was registered, is
    /// still SIGBUS. A kernel that cannot tell is assumed to say yes.
    pub(super) fn protects(&self, at: usize) -> bool {
        let is_registered = |uffd: &Userfaultfd| uffd.registration(at) != Some(false);
        let open = self.uffd.as_ref().filter(|uffd| uffd.is_open());
        open.is_some_and(is_registered)
    }

    /// Returns the parts of the range that the kernel may purge, each within one of its
    /// mappings.
    pub(super) fn offered_vmas(&self, range: PageRange) -> Result<Vec<Vma>> {
        let mut mapped = Vec::new();
        for part in self.offered.parts(range) {
            mapped.extend(vma::within(part)?);
        }
        Ok(mapped)
    }

    pub(super) fn set_offered_bytes(&mut self, bytes: usize) {
        self.offered_bytes = bytes;
        stats::OFFERED_BYTES.set(bytes);
    }

    /// Returns the process's userfaultfd; opens it if there is none, or if the program
    /// has closed it: `userfaultfd(2)`.
    pub(super) fn open(&mut self) -> Result<&Userfaultfd> {
        if let Some(closed) = self.uffd.take_if(|uffd| !uffd.is_open()) {
            closed.forget();
            for arena in self.arenas.iter_mut() {
                arena.is_registered = false;
            }
        }
        match self.uffd {
            Some(ref uffd) => Ok(uffd),
            None => Ok(self.uffd.insert(open_userfaultfd()?)),
        }
    }
}

fn open_userfaultfd() -> Result<Userfaultfd> {
    let features = Features::get();
    features
        .madv_populate
        .map_err(|answer| Error::Unsupported {
            verb: VERB,
            feature: "MADV_POPULATE_WRITE",
            answer,
            remedy: "it needs Linux 5.14",
        })?;
    features.userfaultfd.and_then(|_| Userfaultfd::open()).map_err(|answer| Error::Unsupported {
        verb: VERB,
        feature: "userfaultfd",
        answer,
        remedy: "containers often refuse it (as Docker's default seccomp profile does): allow the system call, or access to /dev/userfaultfd",
    })
}
