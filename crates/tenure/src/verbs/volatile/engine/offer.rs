//! Offering memory to the kernel.

use super::state::Engine;
use super::validate::first_mappings;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{DestructiveAdvice, advise_destructive};
use crate::ground::sys::exclusive::{free_exclusive, may_share_pages};
use crate::ground::sys::page_runs::{chunk_end, first_populated_span};
use crate::ground::sys::pagemap::Scanner;
use crate::ground::sys::registration::{map_zero_page_where_absent, register_inherited, unmerge};
use crate::ground::sys::userfaultfd::Userfaultfd;
use crate::ground::sys::vma::Vma;
use crate::ground::sys::{Errno, merged};
use crate::observation::stats;
use crate::verbs::volatile::error::{at, explain_pages, explain_register};

/// The most that is offered, revoked or purged under one ENGINE lock: other threads wait
/// about a millisecond for it. The lock is free between the chunks of a longer range.
pub(crate) const CHUNK_BYTES: usize = 16 << 20;

/// How much of the page tables is searched under one lock for a page that is populated.
/// Searching it takes about a millisecond where all of its page tables exist.
pub(crate) const SEARCH_BYTES: usize = 256 << 20;

/// A gap that is shorter becomes a part of the span around it, filled with the zero page:
/// it needs one page table at most, and no mapping of its own.
const MAX_GAP_BYTES: usize = 2 << 20;

/// How far an offer has come.
pub(crate) struct Offered {
    /// The part of the range that is left.
    pub(crate) rest: PageRange,
    /// The pages before the rest that were left out, because another process has them, too.
    pub(crate) left_out: Vec<PageRange>,
}

/// Returns the parts in the range of those left out, which are in order.
pub(crate) fn left_out_of(
    range: PageRange,
    left_out: &[PageRange],
) -> impl Iterator<Item = PageRange> {
    let first = left_out.partition_point(|part| part.end() <= range.start());
    let parts = left_out[first..].iter();
    parts.map_while(move |part| part.intersection(range))
}

/// Lets the kernel purge the pages of a registered range, but for those that another process has,
/// too, if one `may_share` any. Returns these.
///
/// # Safety
///
/// As for [`Engine::offer_chunk`].
pub(super) unsafe fn free_unshared(
    range: PageRange,
    may_share: bool,
    scanner: &mut Scanner,
) -> Result<Vec<PageRange>, Errno> {
    let mut left_out = Vec::new();
    if merged::may_be_any() {
        unmerge(range)?;
    }
    let leave_out = |shared| {
        left_out.push(shared);
        Ok(())
    };
    // SAFETY: the range is volatile (the caller's contract).
    unsafe {
        match may_share {
            true => free_exclusive(range, scanner, leave_out)?,
            false => advise_destructive(range, DestructiveAdvice::Free)?,
        }
    }
    Ok(left_out)
}

impl Engine {
    /// Lets the kernel purge pages of the range, as [`offer_chunk`](Self::offer_chunk)
    /// does, all under one lock. Returns which were left out, in order.
    ///
    /// # Safety
    ///
    /// As for [`Engine::offer_chunk`].
    pub(crate) unsafe fn offer(&mut self, range: PageRange) -> Result<Vec<PageRange>> {
        let (mut rest, mut left_out) = (range, Vec::new());
        while !rest.is_empty() {
            // SAFETY: a part of the range, for which the caller keeps the same contract.
            let offered = unsafe { self.offer_chunk(rest) }?;
            rest = offered.rest;
            left_out.extend(offered.left_out);
        }
        Ok(left_out)
    }

    /// Lets the kernel purge the first populated pages of the range, a chunk of them at
    /// most: `ioctl(UFFDIO_REGISTER)` and `madvise(MADV_FREE)`. Asks the kernel again
    /// what is mapped there, because that may have changed since the range was marked.
    /// On an error nothing has been done.
    ///
    /// # Safety
    ///
    /// The range is volatile: its contents may go at any time.
    pub(crate) unsafe fn offer_chunk(&mut self, range: PageRange) -> Result<Offered> {
        let (span, rest) = self.next_span(first_mappings(range))?;
        let mut left_out = Vec::new();
        if let Some(span) = span {
            self.register(span)?;
            // If the kernel refuses the advice (for memory that was locked since the
            // check), the pages stay resident.
            // SAFETY: the caller lets the kernel discard the contents; the registration
            // makes each purged page SIGBUS.
            let freed = unsafe { free_unshared(span, may_share_pages(), &mut Scanner::new()) };
            left_out = freed.unwrap_or_default();
        }
        Ok(Offered {
            rest: PageRange::between(rest.start(), range.end()),
            left_out,
        })
    }

    /// Finds the first span of populated pages in the range, a chunk at most. Returns it
    /// and what follows it; no span if there is none in the part that was searched.
    pub(super) fn next_span(&self, range: PageRange) -> Result<(Option<PageRange>, PageRange)> {
        let max_gap_bytes = match 2 * self.offered.len() < self.max_spans {
            true => MAX_GAP_BYTES,
            // Few registrations are left.
            false => CHUNK_BYTES,
        };
        let mut searched_to = range.start();
        for bytes in [CHUNK_BYTES, SEARCH_BYTES] {
            let end = chunk_end(searched_to, bytes).min(range.end());
            let window = PageRange::between(searched_to, end);
            let span = first_populated_span(window, max_gap_bytes, CHUNK_BYTES);
            if let Some(span) = span.map_err(explain_pages)? {
                let rest = PageRange::between(span.end(), range.end());
                // A short gap after what is offered belongs to the span before it.
                let is_next = span.start() - range.start() < max_gap_bytes
                    && self.offered.contains(range.start() - 1);
                let start = if is_next { range.start() } else { span.start() };
                return Ok((Some(PageRange::between(start, span.end())), rest));
            }
            searched_to = end;
        }
        Ok((None, PageRange::between(searched_to, range.end())))
    }

    /// Registers the span and records it as offered, so that each of its pages that is
    /// absent from now on is a purged page: `ioctl(UFFDIO_REGISTER)`. On an error nothing
    /// has been done.
    pub(super) fn register(&mut self, span: PageRange) -> Result<()> {
        let mapped = self.check(span)?;
        self.open()?;
        self.check_capacity(span)?;
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
                return Err(explain_register(span, errno));
            }
        }
        let new_bytes = self.offered.insert(span);
        self.set_offered_bytes(self.offered_bytes + new_bytes);
        if !self.repopulated.is_empty() {
            self.repopulated.remove(span);
        }
        Ok(())
    }

    /// Refuses a registration that would take more than the engine's share of the mappings
    /// that the process may have: without any left, threads cannot be started, and other
    /// libraries cannot map memory.
    pub(crate) fn check_capacity(&self, range: PageRange) -> Result<()> {
        let is_full = self.offered.len() >= self.max_spans && !self.offered.is_empty();
        match is_full && self.offered.would_grow_by(range) {
            true => Err(Error::MappingLimit {
                call: "UFFDIO_REGISTER",
                range,
            }),
            false => Ok(()),
        }
    }

    /// Returns the parts of the mappings that have to be registered: those that were
    /// never offered, and those that have lost their protection, which this records as
    /// purged.
    fn record_unprotected(&mut self, mapped: &[Vma]) -> Vec<PageRange> {
        let mut unregistered = Vec::new();
        for vma in mapped.iter().map(|vma| vma.range) {
            let is_protected = self.protects(vma.start());
            unregistered.extend(self.offered.gaps(vma));
            if !is_protected {
                for part in self.offered.parts(vma) {
                    stats::UNPROTECTED_BYTES.add(self.purged.insert(part));
                    unregistered.push(part);
                }
            }
        }
        unregistered
    }

    /// Returns what was offered if the program has closed the userfaultfd since.
    pub(crate) fn offered_without_protection(&self) -> Vec<PageRange> {
        if self.offered.is_empty() || self.uffd.as_ref().is_some_and(Userfaultfd::is_open) {
            return Vec::new();
        }
        self.offered.iter().collect()
    }

    /// Registers the offered parts of a chunk anew if they have lost their protection:
    /// they count as purged and are emptied. Returns the rest of the chunk.
    pub(crate) fn rearm(&mut self, chunk: PageRange) -> PageRange {
        let first = first_mappings(chunk);
        for part in self.offered.parts(first) {
            // SAFETY: only volatile memory is in `offered`; `register` has recorded the
            // part as purged, and makes its pages SIGBUS.
            let _ = !self.protects(part.start())
                && self.register(part).is_ok()
                && unsafe { advise_destructive(part, DestructiveAdvice::DontNeed) }.is_ok();
        }
        PageRange::between(first.end(), chunk.end())
    }
}
