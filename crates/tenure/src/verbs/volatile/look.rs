//! Looking at memory: whether it can be volatile, what is there, and whether what is
//! offered is protected still.

use super::VERB;
use super::engine::{Engine, can_offer, gap_bytes, lose, parts};
use super::registration::protect_children;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::pagemap::{self, PageRun, PageState};
use crate::ground::sys::userfaultfd::Userfaultfd;
use crate::ground::sys::vma::{self, Vma};
use crate::observation::stats;
use crate::verbs::check_private_anonymous;

impl Engine {
    /// Whether a missing page of the mapping at `at`, which was registered, is
    /// SIGBUS still. Kernels that do not tell have to be believed.
    pub(super) fn protects(&self, at: usize) -> bool {
        let is_registered = |uffd: &Userfaultfd| uffd.registration(at) != Some(false);
        let open = self.uffd.as_ref().filter(|uffd| uffd.is_open());
        open.is_some_and(is_registered)
    }

    /// The parts of the range that the kernel may take pages of, each within one
    /// of its mappings.
    pub(super) fn offered_parts(&self, range: PageRange) -> Result<Vec<Vma>> {
        let mut mapped = Vec::new();
        for part in parts(&self.offered, range) {
            mapped.extend(vma::within(part)?);
        }
        Ok(mapped)
    }

    /// The parts of the mappings that have to be registered: those that are not,
    /// and those that have lost their protection, which from here on count as
    /// lost.
    pub(super) fn unprotected(&mut self, mapped: &[Vma]) -> Vec<PageRange> {
        let mut found = Vec::new();
        for vma in mapped.iter().map(|vma| vma.range) {
            let is_protected = self.protects(vma.start());
            let vma_std = vma.as_std();
            let gaps = self.offered.gaps(&vma_std).map(PageRange::from);
            found.extend(gaps.filter(|part| !(is_protected && self.in_arena(*part))));
            if !is_protected {
                for part in parts(&self.offered, vma) {
                    stats::UNPROTECTED_BYTES.add(lose(&mut self.lost, part));
                    found.push(part);
                }
            }
        }
        found
    }

    /// Whether the range can be volatile: private anonymous memory that can be
    /// read and written, but for bars of ours, and is not locked.
    pub(super) fn check(&self, range: PageRange) -> Result<Vec<Vma>> {
        let vmas = check_private_anonymous(VERB, range)?;
        let is_barred = |vma: &Vma| gap_bytes(&self.barred, vma.range) == 0;
        for vma in &vmas {
            let missing = match (vma.readable, vma.writable) {
                (true, true) => continue,
                (true, false) => "write",
                (false, _) if is_barred(vma) => continue,
                (false, _) => "read",
            };
            return Err(Error::NoAccess {
                verb: VERB,
                range,
                part: vma.range,
                missing,
            });
        }
        Ok(vmas)
    }

    /// Looks whether the range is fit to be volatile, when it is met for the
    /// first time.
    pub(super) fn look_at(&mut self, range: PageRange) -> Result<()> {
        protect_children()?;
        let vmas = self.check(range)?;
        if !can_offer() {
            return Ok(());
        }
        self.open()?;
        let starts = vmas.iter().map(|vma| vma.range.start());
        let is_busy = |at: usize| {
            let uffd = self.uffd.as_ref().and_then(|uffd| uffd.registration(at));
            uffd == Some(true) && !self.offered.contains(&at)
        };
        match starts.into_iter().any(is_busy) {
            true => Err(Error::Busy { range }),
            false => Ok(()),
        }
    }

    /// Whether what has been read of the range is what was written there: none of
    /// it is lost, and all that is offered is protected.
    pub(super) fn vouches_for(&self, range: PageRange) -> Result<bool> {
        let is_protected = |vma: &Vma| self.protects(vma.range.start());
        Ok(parts(&self.lost, range).is_empty()
            && self.offered_parts(range)?.iter().all(is_protected))
    }

    /// Whether a page of the range is known to be lost.
    pub(super) fn has_lost(&self, range: PageRange) -> bool {
        self.lost.overlaps(&range.as_std())
    }

    /// Whether a page of what the kernel has been offered of the range has been
    /// taken. (What was never touched has the page of zeros there.)
    pub(super) fn misses_pages(&self, range: PageRange) -> Result<bool> {
        for part in parts(&self.offered, range) {
            let runs = scan(part)?;
            if runs.iter().any(|run| run.state == PageState::Absent) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the range is registered with the arena that it lies in.
    pub(super) fn in_arena(&self, range: PageRange) -> bool {
        let arena = self.arenas.range(..=range.start()).next_back();
        arena.is_some_and(|(_, arena)| arena.is_watched && arena.range.contains(range))
    }
}

pub(super) fn scan(range: PageRange) -> Result<Vec<PageRun>> {
    pagemap::scan(range).map_err(|answer| Error::Unsupported {
        verb: VERB,
        feature: "/proc/self/pagemap",
        answer,
        remedy: "it needs /proc; after a change of user it belongs to root until prctl(PR_SET_DUMPABLE, 1)",
    })
}
