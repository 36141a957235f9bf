//! Revoking offers.

use super::offer::CHUNK_BYTES;
use super::state::Engine;
use crate::ground::error::{Error, MemoryKind, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::page_runs::{self, chunk_end};
use crate::ground::sys::{Errno, guard, map, page_size, vma};
use crate::observation::stats;
use crate::verbs::volatile::error::{at, explain_pages};
use crate::verbs::volatile::outcome::Outcome;

/// How many registrations are ended under one ENGINE lock: about a millisecond. Each mapping
/// has its own.
const MAX_UNREGISTERED: usize = 256;

/// How far the revocation of a range has come.
pub(crate) enum Revoked {
    /// Up to this address.
    To(usize),
    /// Nothing of the range is offered any more.
    All,
}

impl Engine {
    /// Refuses to revoke the offer of a part if that would take more than the engine's
    /// share of the mappings: what is left of the registration lies on both sides.
    pub(crate) fn check_split(&self, range: PageRange) -> Result<()> {
        let is_full = self.offered.len() >= self.max_spans;
        match is_full && self.offered.would_split_at(range) {
            true => Err(Error::MappingLimit {
                call: "UFFDIO_UNREGISTER",
                range,
            }),
            false => Ok(()),
        }
    }

    /// Revokes the offer of the range, a chunk of it from the address `from` on:
    /// `ioctl(PAGEMAP_SCAN)`, `madvise(MADV_POPULATE_WRITE)` and
    /// `ioctl(UFFDIO_UNREGISTER)`. The range stays
    /// registered until all of it is populated: then to end the registration of a whole
    /// mapping splits none. After an error the range is volatile still, and the pages that
    /// were found purged stay recorded. A part that has lost its protection is reported as
    /// purged whole; its pages do not change any more either.
    pub(crate) fn revoke_chunk(&mut self, range: PageRange, from: usize) -> Result<Revoked> {
        let rest = PageRange::between(from, range.end());
        // Another thread may have offered what was populated before.
        let next = self.first_unusable(rest);
        if let Some(start) = next.or_else(|| self.first_unusable(range)) {
            let chunk_end = chunk_end(start, CHUNK_BYTES).min(range.end());
            let chunk = self.first_spans_and_mappings(PageRange::between(start, chunk_end));
            let end = self.repopulate_first(chunk)?;
            let chunk = PageRange::between(start, end);
            for part in self.offered.each_part(chunk) {
                self.repopulated.insert(part);
            }
            if end < range.end() || self.first_unusable(range).is_some() {
                return Ok(Revoked::To(end));
            }
        }
        match self.unregister(range)? {
            true => Ok(Revoked::All),
            false => Ok(Revoked::To(range.end())),
        }
    }

    /// Returns the first page of the range that the kernel may purge or that has a guard.
    fn first_unusable(&self, range: PageRange) -> Option<usize> {
        let mut offered = self.offered.each_part(range);
        let offered = offered.find_map(|part| self.repopulated.first_gap(part));
        let guarded = self.guarded.each_part(range).next();
        let starts = [offered, guarded].into_iter().flatten();
        starts.map(PageRange::start).min()
    }

    /// Repopulates the first runs of the chunk's offered pages. Returns where they end.
    fn repopulate_first(&mut self, chunk: PageRange) -> Result<usize> {
        // First of all, because no page can be populated behind a guard.
        self.remove_guards(chunk)?;
        let mut max_runs = page_runs::MAX_RUNS;
        for vma in self.offered_vmas(chunk)? {
            if !self.protects(vma.range.start()) {
                stats::UNPROTECTED_BYTES.add(self.purged.insert(vma.range));
                let restores_access = self.is_child_without_access && !vma.readable;
                if restores_access {
                    // SAFETY: `check` has seen that the range could be read and written
                    // before the fork handler made it inaccessible.
                    unsafe { map::protect_read_write(vma.range) }
                        .map_err(at("mprotect", vma.range))?;
                }
                // Otherwise the kernel could still reclaim pages under a borrow. (Memory
                // of another kind was mapped over the range.)
                let is_anonymous = vma.kind == MemoryKind::PrivateAnonymous;
                if is_anonymous && (vma.readable || restores_access) {
                    page_runs::repopulate_unregistered(vma.range).map_err(explain_pages)?;
                }
            } else if let Some(uffd) = &self.uffd {
                let purged = &mut self.purged;
                let end = page_runs::repopulate(uffd, vma.range, &mut max_runs, |absent| {
                    stats::PURGED_BY_KERNEL_BYTES.add(purged.insert(absent));
                })
                .map_err(explain_pages)?;
                if end < vma.range.end() {
                    return Ok(end);
                }
            }
        }
        Ok(chunk.end())
    }

    /// Removes the guards in the range.
    pub(crate) fn remove_guards(&mut self, range: PageRange) -> Result<()> {
        for part in self.guarded.parts(range) {
            // SAFETY: `check` has seen that the range could be read and written before
            // `purge` installed the guard.
            unsafe { guard::remove(part) }.map_err(at("madvise(MADV_GUARD_REMOVE)", part))?;
            self.guarded.remove(part);
        }
        Ok(())
    }

    /// Forgets a range whose contents or mappings go away, a chunk of it: up to the address
    /// that this returns. With its mappings goes what cannot be unregistered.
    pub(crate) fn forget_chunk(&mut self, range: PageRange) -> usize {
        let spans = self.first_spans(range);
        for &part in &spans {
            let _ = self.unregister_part(part);
            self.remove_offered(part);
        }
        let end = match spans.last() {
            Some(last) if self.offered.overlaps(range) => last.end(),
            _ => range.end(),
        };
        let forgotten = PageRange::between(range.start(), end);
        self.set_incomplete(forgotten, false);
        self.forget_purged(forgotten);
        end
    }

    /// Ends the registration of the parts of the range whose spans reach beyond it: only
    /// this splits mappings and can fail; then nothing has been done. Returns the parts,
    /// of which nothing is recorded any more.
    pub(crate) fn unregister_cut_spans(
        &mut self,
        range: PageRange,
    ) -> Result<impl Iterator<Item = PageRange> + use<>> {
        let (before, last) = (range.start() - page_size(), range.end() - page_size());
        let cut = |outside, inside| {
            let is_cut = self.offered.contains(outside);
            is_cut
                .then(|| self.offered.part_at(inside, range))
                .flatten()
        };
        let (first, last) = (cut(before, range.start()), cut(range.end(), last));
        let last = last.filter(|last| Some(*last) != first);
        if let Some(part) = first {
            self.unregister_part(part)?;
        }
        if let Some(part) = last {
            self.unregister_part(part).inspect_err(|_| {
                if let (Some(first), Some(uffd)) = (first, &self.uffd) {
                    // Unregistered a moment ago: pages that the kernel has purged since
                    // are absent, and so purged pages again.
                    let _ = uffd.register(first);
                }
            })?;
        }
        let parts = [first, last].into_iter().flatten();
        for part in parts.clone() {
            self.remove_offered(part);
            self.forget_purged(part);
        }
        Ok(parts)
    }

    /// Forgets what is purged or guarded of a range whose contents go away.
    pub(crate) fn forget_purged(&mut self, range: PageRange) {
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

    /// Ends the registration of offered parts of the range. Returns whether none is left.
    fn unregister(&mut self, range: PageRange) -> Result<bool> {
        let spans = self.first_spans(range);
        for &part in &spans {
            self.unregister_part(part)?;
            self.remove_offered(part);
        }
        Ok(!self.offered.overlaps(range))
    }

    /// Returns the first offered parts of the range, [`MAX_UNREGISTERED`] mappings of them at
    /// most. A part ends where a mapping does: to unregister a whole one splits none.
    fn first_spans(&self, range: PageRange) -> Vec<PageRange> {
        let (mut spans, mut left) = (Vec::new(), MAX_UNREGISTERED);
        for part in self.offered.each_part(range) {
            // It cannot have more mappings than pages; the mappings are asked of a longer one.
            let (span, count) = match part.pages() <= left {
                true => (part, part.pages()),
                false => vma::first_part(part, left),
            };
            spans.push(span);
            left -= count;
            if left == 0 {
                break;
            }
        }
        spans
    }

    fn unregister_part(&self, part: PageRange) -> Result<()> {
        let Some(uffd) = self.uffd.as_ref().filter(|uffd| uffd.is_open()) else {
            return Ok(());
        };
        let answer = match uffd.unregister(part) {
            // A file was mapped over a part of it: the kernel refuses all of it.
            Err(Errno::INVAL) => {
                let mapped = vma::within(part)?.into_iter();
                mapped
                    .filter(|vma| vma.kind == MemoryKind::PrivateAnonymous)
                    .try_for_each(|vma| uffd.unregister(vma.range))
            }
            answer => answer,
        };
        answer.map_err(|errno| {
            // All of it stays registered, as the record says.
            let _ = uffd.register(part);
            match errno {
                Errno::NOMEM => Error::MappingLimit {
                    call: "UFFDIO_UNREGISTER",
                    range: part,
                },
                errno => at("UFFDIO_UNREGISTER", part)(errno),
            }
        })
    }

    fn remove_offered(&mut self, part: PageRange) {
        self.offered.remove(part);
        self.repopulated.remove(part);
        self.set_offered_bytes(self.offered_bytes - part.len());
    }

    /// Returns which pages of the range are purged, and forgets them.
    pub(crate) fn take_report(&mut self, range: PageRange) -> Outcome {
        let runs = self.purged.parts(range);
        if runs.is_empty() {
            return Outcome::Intact;
        }
        self.purged.remove(range);
        Outcome::Purged(runs)
    }

    /// Records runs as purged whose report could not be returned.
    pub(crate) fn put_report_back(&mut self, runs: &[PageRange]) {
        for &run in runs {
            self.purged.insert(run);
        }
    }
}
