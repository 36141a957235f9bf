//! The engine's state, and questions about it.

use super::page_set::PageSet;
use super::validate::{MAX_MAPPINGS, first_mappings};
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::features::Features;
use crate::ground::sys::userfaultfd::Userfaultfd;
use crate::ground::sys::vma::{self, Vma};
use crate::ground::sys::{page_runs, process};
use crate::verbs::volatile::error::{VERB, explain_pages};

/// Which part of the mappings that a process may have the engine's registrations take at
/// most. Each can split its mapping in three, which are two more.
const MAPPINGS_DIVISOR: usize = 4;

/// The record of all memory that the kernel has been offered, or has purged.
pub(crate) struct Engine {
    /// Opened when it is first needed.
    pub(super) uffd: Option<Userfaultfd>,
    /// Counts the userfaultfds that were opened.
    pub(super) epoch: u64,
    /// The pages that the kernel may purge; registered with the userfaultfd. Long gaps
    /// in an offered range, in which nothing is populated, are left out.
    pub(super) offered: PageSet,
    /// The size of `offered`.
    pub(super) offered_bytes: usize,
    /// The offered pages that are populated again, and will be unregistered.
    pub(super) repopulated: PageSet,
    /// The ranges of objects whose offer has failed or is under way.
    pub(super) incomplete: PageSet,
    /// How many ranges `offered` may consist of.
    pub(super) max_spans: usize,
    /// Pages that are known to be purged and have not been reported.
    pub(super) purged: PageSet,
    /// The purged pages that have guards, because userfaultfd is unavailable.
    pub(super) guarded: PageSet,
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
            epoch: 0,
            offered: PageSet::new(),
            offered_bytes: 0,
            repopulated: PageSet::new(),
            incomplete: PageSet::new(),
            max_spans: 0,
            purged: PageSet::new(),
            guarded: PageSet::new(),
            is_child_without_access: false,
        }
    }

    /// Returns whether a userfaultfd is open or anything is recorded.
    pub(crate) fn is_in_use(&self) -> bool {
        self.uffd.is_some() || !self.offered.is_empty()
    }

    /// Returns whether the userfaultfd is open and nothing is registered with it, but for what
    /// arenas have registered.
    pub(crate) fn is_idle(&self) -> bool {
        self.uffd.is_some() && self.offered.is_empty()
    }

    /// Returns whether a page of the range is known to be purged.
    pub(crate) fn has_purged(&self, range: PageRange) -> bool {
        self.purged.overlaps(range)
    }

    /// Returns where the first `count` purged runs of the range end; the end of the range if
    /// it has fewer.
    pub(crate) fn end_after_purged(&self, range: PageRange, count: usize) -> usize {
        self.purged.end_after(range, count)
    }

    /// Returns whether a page of the range has a guard.
    pub(crate) fn has_guards(&self, range: PageRange) -> bool {
        self.guarded.overlaps(range)
    }

    /// Says whether the offer of an object has to be continued or tried again.
    pub(crate) fn set_incomplete(&mut self, range: PageRange, is_incomplete: bool) {
        if is_incomplete {
            self.incomplete.insert(range);
        } else if !self.incomplete.is_empty() {
            self.incomplete.remove(range);
        }
    }

    /// Returns whether the offer of an object has to be continued or tried again.
    pub(crate) fn is_incomplete(&self, range: PageRange) -> bool {
        self.incomplete.overlaps(range)
    }

    /// Returns the parts of the range whose offer has to be continued or tried again.
    pub(crate) fn incomplete_parts(&self, range: PageRange) -> impl Iterator<Item = PageRange> {
        self.incomplete.each_part(range)
    }

    /// Returns all of which the offer has to be continued or tried again.
    pub(crate) fn incomplete(&self) -> impl Iterator<Item = PageRange> {
        self.incomplete.iter()
    }

    /// Returns whether any offer has to be continued or tried again.
    pub(crate) fn has_incomplete(&self) -> bool {
        !self.incomplete.is_empty()
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

    /// Returns the first part of the range that has few enough mappings and offered spans.
    pub(super) fn first_spans_and_mappings(&self, range: PageRange) -> PageRange {
        let end = self.offered.end_after(range, MAX_MAPPINGS);
        first_mappings(PageRange::between(range.start(), end))
    }

    /// Returns whether everything that was read of the first part of the range is what the
    /// program wrote there: no page is known to be purged, and all that is offered is
    /// protected. Returns also where the part ends.
    pub(crate) fn first_contents_valid(&self, range: PageRange) -> Result<(bool, usize)> {
        let part = self.first_spans_and_mappings(range);
        let is_protected = |vma: &Vma| self.protects(vma.range.start());
        let is_valid = !self.has_purged(part) && self.offered_vmas(part)?.iter().all(is_protected);
        Ok((is_valid, part.end()))
    }

    /// Returns whether a missing page of the mapping at `at`, which was registered, is
    /// still SIGBUS. A kernel that cannot tell is assumed to say yes.
    pub(super) fn protects(&self, at: usize) -> bool {
        let is_registered = |uffd: &Userfaultfd| uffd.registration(at) != Some(false);
        self.uffd.as_ref().is_some_and(is_registered)
    }

    /// Has the registrations outlive what the program does to its descriptors. A child's
    /// first call does so, because its fork handler can start no thread.
    pub(crate) fn keep_open(&self) {
        if !self.offered.is_empty() {
            self.uffd.iter().for_each(Userfaultfd::keep_open);
        }
    }

    /// Returns the parts of the range that the kernel may purge, each within one of its
    /// mappings. These are read once, however many parts there are.
    pub(super) fn offered_vmas(&self, range: PageRange) -> Result<Vec<Vma>> {
        self.keep_open();
        if !self.offered.overlaps(range) {
            return Ok(Vec::new());
        }
        let mapped = vma::within(range)?.into_iter();
        let offered = mapped.flat_map(|vma| {
            let parts = self.offered.each_part(vma.range);
            parts.map(move |range| Vma { range, ..vma })
        });
        Ok(offered.collect())
    }

    /// Returns how much of plain ranges and of buffers with their own mapping is offered.
    pub(crate) fn offered_bytes(&self) -> usize {
        self.offered_bytes
    }

    /// Returns whether the protection of what is offered outlives all that the program
    /// does to its descriptors.
    pub(crate) fn is_kept(&self) -> bool {
        self.uffd.as_ref().is_some_and(Userfaultfd::is_kept)
    }

    pub(super) fn set_offered_bytes(&mut self, bytes: usize) {
        self.offered_bytes = bytes;
    }

    /// Closes the userfaultfd and ends the thread that keeps it. Nothing is registered.
    pub(crate) fn close(&mut self) {
        self.uffd.take().into_iter().for_each(Userfaultfd::close);
    }

    /// Returns the process's userfaultfd; opens it if there is none, or if the program
    /// has closed it: `userfaultfd(2)`.
    pub(super) fn open(&mut self) -> Result<&Userfaultfd> {
        let uffd = self.open_to_ask()?;
        uffd.keep_open();
        Ok(uffd)
    }

    /// Opens it for a question. Only the offer thread ends the thread that keeps it open, and
    /// there may be none.
    pub(super) fn open_to_ask(&mut self) -> Result<&Userfaultfd> {
        if let Some(closed) = self.uffd.take_if(|uffd| !uffd.is_open()) {
            closed.forget();
        }
        match self.uffd {
            Some(ref uffd) => Ok(uffd),
            None => {
                let opened = open_userfaultfd()?;
                self.max_spans = process::max_map_count() / MAPPINGS_DIVISOR / 2;
                self.epoch += 1;
                Ok(self.uffd.insert(opened))
            }
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
