//! What the kernel knows of volatile memory: which ranges it may take pages of,
//! and what it has taken.

use std::sync::LazyLock;

use rangemap::RangeSet;

use super::arena::{Arenas, Region};
use super::fork;
use super::marks::Marks;
use super::objects::Objects;
use super::take_back::take_back;
use super::{Outcome, at};
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Harmless, Losing, advise, advise_losing};
use crate::ground::sys::features::Features;
use crate::ground::sys::fork::ForkMutex;
use crate::ground::sys::pagemap::{self, PageState};
use crate::ground::sys::touch::Toucher;
use crate::ground::sys::userfaultfd::Userfaultfd;
use crate::ground::sys::vma::{self, Vma};
use crate::ground::sys::{Errno, bars, map, page_size};
use crate::observation::stats::{self, Counter};
use crate::verbs::check_private_anonymous;

pub(super) const VERB: &str = "mark volatile";

/// The process's volatile memory.
pub(super) struct Engine {
    /// Opened when it is first needed.
    pub(super) uffd: Option<Userfaultfd>,
    /// Ranges of plain addresses.
    pub(super) marks: Marks,
    /// Ranges with a word of their own.
    pub(super) objects: Objects,
    pub(super) arenas: Arenas,
    /// What the kernel may take pages of; registered with the userfaultfd.
    pub(super) offered: RangeSet<usize>,
    /// The sum of it.
    pub(super) offered_bytes: usize,
    /// Pages that are known to be lost and have not been reported.
    pub(super) lost: RangeSet<usize>,
    /// Pages of those that are barred, for want of a userfaultfd.
    pub(super) barred: RangeSet<usize>,
    /// Something could not be offered since this was last looked at: the keeper looks
    /// for objects to try again only then, for there may be very many.
    pub(super) has_refused: bool,
    /// This is a child that could not protect all it inherited: some of
    /// `offered` cannot be accessed at all instead.
    pub(super) closed_to_child: bool,
}

/// Held by who changes anything but a word. What is in a word's state Busy is in
/// the hands of the holder.
pub(super) static ENGINE: LazyLock<ForkMutex<Engine>> = LazyLock::new(|| {
    stats::before_reading(|| ENGINE.lock().count());
    // Before anybody can hold it: also who only unmaps memory does, and a child that
    // is forked in that moment could not go on. Who puts something in asks again
    // whether that has worked.
    let _ = protect_children();
    ForkMutex::new(Engine {
        uffd: None,
        marks: Marks::new(),
        objects: Objects::new(),
        arenas: Arenas::new(),
        offered: RangeSet::new(),
        offered_bytes: 0,
        lost: RangeSet::new(),
        barred: RangeSet::new(),
        has_refused: false,
        closed_to_child: false,
    })
});

/// Whether the kernel can be offered memory: it has to tell what it takes, and
/// to give the rest back without a gap.
pub(super) fn can_offer() -> bool {
    let features = Features::get();
    features.sigbus_on_missing() && features.madv_populate.is_ok()
}

impl Engine {
    /// The process's userfaultfd; opened if there is none, or if somebody has
    /// closed it.
    pub(super) fn open(&mut self) -> Result<&Userfaultfd> {
        if let Some(closed) = self.uffd.take_if(|uffd| !uffd.is_open()) {
            closed.forget();
            for arena in self.arenas.values_mut() {
                arena.is_watched = false;
            }
        }
        match self.uffd {
            Some(ref uffd) => Ok(uffd),
            None => Ok(self.uffd.insert(open_userfaultfd()?)),
        }
    }

    /// Whether a missing page of the mapping at `at`, which was registered, is
    /// SIGBUS still. Kernels that do not tell have to be believed.
    pub(super) fn protects(&self, at: usize) -> bool {
        let is_registered = |uffd: &Userfaultfd| uffd.registration(at) != Some(false);
        let open = self.uffd.as_ref().filter(|uffd| uffd.is_open());
        open.is_some_and(is_registered)
    }

    /// The parts of the range that the kernel may take pages of, each within one
    /// of its mappings.
    fn offered_parts(&self, range: PageRange) -> Result<Vec<Vma>> {
        let mut mapped = Vec::new();
        for part in parts(&self.offered, range) {
            mapped.extend(vma::within(part)?);
        }
        Ok(mapped)
    }

    /// The parts of the mappings that have to be registered: those that are not,
    /// and those that have lost their protection, which from here on count as
    /// lost.
    fn unprotected(&mut self, mapped: &[Vma]) -> Vec<PageRange> {
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
    fn check(&self, range: PageRange) -> Result<Vec<Vma>> {
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
    fn in_arena(&self, range: PageRange) -> bool {
        let arena = self.arenas.range(..=range.start()).next_back();
        arena.is_some_and(|(_, arena)| arena.is_watched && arena.range.contains(range))
    }

    /// Lets the kernel take pages of the range. It is asked again what is mapped
    /// there: since the range was marked that may have changed. With an error
    /// nothing has been done.
    ///
    /// # Safety
    ///
    /// The range is volatile: its contents may go at any time.
    pub(super) unsafe fn offer(&mut self, range: PageRange) -> Result<()> {
        // SAFETY: handed on to the caller.
        let answer = unsafe { self.try_to_offer(range) };
        self.has_refused |= answer.is_err();
        answer
    }

    /// # Safety
    ///
    /// As for [`Engine::offer`].
    unsafe fn try_to_offer(&mut self, range: PageRange) -> Result<()> {
        let mapped = self.check(range)?;
        self.open()?;
        let new = self.unprotected(&mapped);
        let uffd = self.open()?;
        for part in &new {
            unmerge(*part)?;
            map_zeros_where_absent(*part)?;
        }
        for (index, part) in new.iter().enumerate() {
            if let Err(errno) = register_copied(uffd, *part) {
                for done in &new[..index] {
                    // Registered a moment ago; taking that back needs no room.
                    let _ = uffd.unregister(*done);
                }
                return Err(explain_register(range, errno));
            }
        }
        let more_bytes = gap_bytes(&self.offered, range);
        self.offered.insert(range.as_std());
        self.set_offered_bytes(self.offered_bytes + more_bytes);
        // Where the advice is refused (memory locked since it was looked at), the
        // pages simply stay.
        // SAFETY: the caller lets the kernel take the contents; from here on the
        // registration shows each loss.
        let _ = unsafe { advise_losing(range, Losing::Free) };
        Ok(())
    }

    /// Takes the range back from the kernel, and tells what is lost of it. With
    /// an error it is offered still, and no loss is forgotten.
    pub(super) fn withdraw(&mut self, range: PageRange) -> Result<Outcome> {
        // Before the rest: no page can be taken back from behind a bar.
        for part in parts(&self.barred, range) {
            // SAFETY: only memory that could be read and written is marked.
            unsafe { bars::take_down(part) }.map_err(at("madvise(MADV_GUARD_REMOVE)", part))?;
            self.barred.remove(part.as_std());
        }
        for vma in self.offered_parts(range)? {
            if !self.protects(vma.range.start()) {
                stats::UNPROTECTED_BYTES.add(lose(&mut self.lost, vma.range));
                if self.closed_to_child && !vma.readable {
                    // SAFETY: only memory that could be read and written is
                    // offered; the fork handler took that away.
                    unsafe { map::protect_read_write(vma.range) }
                        .map_err(at("mprotect", vma.range))?;
                }
            } else if let Some(uffd) = &self.uffd {
                take_back(uffd, vma.range, &mut self.lost)?;
            }
        }
        self.stop_watching(range);
        Ok(self.take_report(range))
    }

    /// Takes the contents of the range now, which is volatile, and counts what it
    /// took. Returns that, in bytes.
    ///
    /// # Safety
    ///
    /// As for [`Engine::offer`].
    pub(super) unsafe fn purge(&mut self, range: PageRange, cause: Counter) -> Result<usize> {
        let mut taken_bytes = 0;
        let is_offered = self.offered.gaps(&range.as_std()).next().is_none();
        // SAFETY: handed on to the caller.
        if !is_offered && (!can_offer() || unsafe { self.offer(range) }.is_err()) {
            // SAFETY: as above.
            taken_bytes += unsafe { self.bar(range) }?;
        }
        for vma in self.offered_parts(range)? {
            if self.protects(vma.range.start()) {
                let runs = scan(vma.range)?;
                each_with_contents(runs, |run| {
                    // SAFETY: the run is offered and registered: whoever marked it
                    // lets its contents go, and the registration shows the loss.
                    unsafe { advise_losing(run, Losing::DontNeed) }
                        .map_err(at("madvise(MADV_DONTNEED)", run))?;
                    taken_bytes += lose(&mut self.lost, run);
                    Ok(())
                })?;
            }
        }
        cause.add(taken_bytes);
        Ok(taken_bytes)
    }

    /// Takes the contents of what is not offered, and puts up bars: an access is
    /// SIGSEGV.
    ///
    /// # Safety
    ///
    /// As for [`Engine::offer`].
    unsafe fn bar(&mut self, range: PageRange) -> Result<usize> {
        let mut taken_bytes = 0;
        self.check(range)?;
        protect_children()?;
        let open: Vec<PageRange> = self
            .barred
            .gaps(&range.as_std())
            .map(PageRange::from)
            .collect();
        for part in open {
            let not_offered: Vec<_> = self
                .offered
                .gaps(&part.as_std())
                .map(PageRange::from)
                .collect();
            for part in not_offered {
                let runs = scan(part)?;
                each_with_contents(runs, |run| {
                    // SAFETY: the caller gives the contents up; `check` has seen
                    // private anonymous memory.
                    unsafe { bars::put_up(run) }.map_err(at("madvise(MADV_GUARD_INSTALL)", run))?;
                    self.barred.insert(run.as_std());
                    taken_bytes += lose(&mut self.lost, run);
                    Ok(())
                })?;
            }
        }
        Ok(taken_bytes)
    }

    /// Ends the volatility of a range whose mappings go away.
    pub(super) fn forget(&mut self, range: PageRange) {
        let before_bytes = self.marks.volatile_bytes();
        self.marks.forget(range);
        stats::VOLATILE_BYTES.sub(before_bytes - self.marks.volatile_bytes());
        let within = |(_, arena): &(&usize, &Region)| range.contains(arena.range);
        let gone: Vec<usize> = self
            .arenas
            .range(range.as_std())
            .filter(within)
            .map(|(&start, _)| start)
            .collect();
        for start in gone {
            self.arenas.remove(&start);
        }
        self.forget_contents(range);
    }

    /// Ends the volatility of a range whose contents go away.
    pub(super) fn forget_contents(&mut self, range: PageRange) {
        if !self.offered.is_empty() {
            self.stop_watching(range);
        }
        if !self.lost.is_empty() {
            self.lost.remove(range.as_std());
        }
        for part in parts(&self.barred, range) {
            // SAFETY: only memory that could be read and written is marked. What
            // is not there any more has no bars either.
            let _ = unsafe { bars::take_down(part) };
            self.barred.remove(part.as_std());
        }
    }

    fn stop_watching(&mut self, range: PageRange) {
        for part in parts(&self.offered, range) {
            let watched = !self.in_arena(part);
            if let Some(uffd) = self.uffd.as_ref().filter(|uffd| watched && uffd.is_open()) {
                // What is not registered any more (mapped over) stays as it is.
                let _ = uffd.unregister(part);
            }
            self.offered.remove(part.as_std());
            self.set_offered_bytes(self.offered_bytes - part.len());
        }
    }

    pub(super) fn set_offered_bytes(&mut self, bytes: usize) {
        self.offered_bytes = bytes;
        stats::OFFERED_BYTES.set(bytes);
    }

    /// All that is volatile.
    pub(super) fn volatile_bytes(&self) -> usize {
        let objects = self.objects.volatile().map(|object| object.range.len());
        self.marks.volatile_bytes() + objects.sum::<usize>()
    }

    /// Brings the process's counters up to date.
    pub(super) fn count(&mut self) {
        for object in self.objects.all() {
            object.count();
        }
        self.count_volatile();
    }

    /// The same for those that say how much is volatile at the moment.
    pub(super) fn count_volatile(&self) {
        let volatile_bytes = self.volatile_bytes();
        stats::VOLATILE_BYTES.set(volatile_bytes);
        let kept_bytes = if can_offer() { 0 } else { volatile_bytes };
        stats::KEPT_FROM_KERNEL_BYTES.set(kept_bytes);
    }

    /// Notices that somebody has closed the userfaultfd: what was offered counts
    /// as lost, is emptied, and protected anew.
    pub(super) fn rearm(&mut self) {
        if self.offered.is_empty() || self.uffd.as_ref().is_some_and(Userfaultfd::is_open) {
            return;
        }
        let all: Vec<PageRange> = self.offered.iter().cloned().map(PageRange::from).collect();
        for range in all {
            // SAFETY: what is offered is volatile.
            if unsafe { self.offer(range) }.is_ok() {
                // SAFETY: it counts as lost, and the registration shows that.
                let _ = unsafe { advise_losing(range, Losing::DontNeed) };
            }
        }
    }

    fn take_report(&mut self, range: PageRange) -> Outcome {
        let runs = parts(&self.lost, range);
        if runs.is_empty() {
            return Outcome::Intact;
        }
        self.lost.remove(range.as_std());
        Outcome::Purged(runs)
    }
}

/// Notes a loss. Returns how many bytes of it are news: what was purged is found
/// missing again when it is unmarked.
pub(super) fn lose(lost: &mut RangeSet<usize>, range: PageRange) -> usize {
    let news = gap_bytes(lost, range);
    lost.insert(range.as_std());
    news
}

/// How much of the range is not in the set.
fn gap_bytes(set: &RangeSet<usize>, range: PageRange) -> usize {
    set.gaps(&range.as_std()).map(|gap| gap.len()).sum()
}

/// The parts of the range that are in the set, in order.
fn parts(set: &RangeSet<usize>, range: PageRange) -> Vec<PageRange> {
    set.overlapping(range.as_std())
        .filter_map(|part| PageRange::from(part.clone()).intersection(range))
        .collect()
}

pub(super) fn protect_children() -> Result<()> {
    fork::protect_children().map_err(|errno| Error::System {
        call: "pthread_atfork",
        errno,
    })
}

fn open_userfaultfd() -> Result<Userfaultfd> {
    protect_children()?;
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
        remedy: "it needs Linux 5.11, and containers often refuse it (as Docker's default seccomp profile does): allow the system call, or access to /dev/userfaultfd",
    })
}

fn scan(range: PageRange) -> Result<Vec<pagemap::PageRun>> {
    pagemap::scan(range).map_err(|answer| Error::Unsupported {
        verb: VERB,
        feature: "/proc/self/pagemap",
        answer,
        remedy: "it needs /proc; after a change of user it belongs to root until prctl(PR_SET_DUMPABLE, 1)",
    })
}

/// Ends the merging of its pages with others that are alike (KSM): the kernel does
/// not take a merged page, and to take the range back would unmerge it.
pub(super) fn unmerge(range: PageRange) -> Result<()> {
    match advise(range, Harmless::Unmergeable) {
        // Kernels that merge nothing do not know the advice.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(errno) => Err(at("madvise(MADV_UNMERGEABLE)", range)(errno)),
    }
}

/// Maps the page of zeros wherever the range has no page, so that a page which
/// is missing later is one that was lost. Before the range is registered: a
/// thread that reads such a page meanwhile must not meet SIGBUS.
fn map_zeros_where_absent(range: PageRange) -> Result<()> {
    let runs = scan(range)?;
    for run in runs.iter().filter(|run| run.state == PageState::Absent) {
        advise(run.range, Harmless::PopulateRead)
            .map_err(at("madvise(MADV_POPULATE_READ)", run.range))?;
    }
    Ok(())
}

/// Registers the range, which lies in one mapping, and has fork copy its pages.
///
/// The kernel leaves a mapping out at fork in which nothing has been written: the
/// child's pages of zeros would be missing, where missing is lost. UFFDIO_ZEROPAGE
/// makes it a mapping with contents (gives it its `anon_vma`), also where a page
/// is, which it leaves alone.
fn register_copied(uffd: &Userfaultfd, range: PageRange) -> std::result::Result<(), Errno> {
    uffd.register(range)?;
    let first = PageRange::between(range.start(), range.start() + page_size());
    uffd.fill_with_zeros(first).inspect_err(|_| {
        let _ = uffd.unregister(range);
    })
}

pub(super) fn explain_register(range: PageRange, errno: Errno) -> Error {
    match errno {
        Errno::BUSY => Error::Busy { range },
        Errno::NOMEM => Error::NoRoom {
            call: "UFFDIO_REGISTER",
            range,
        },
        errno => at("UFFDIO_REGISTER", range)(errno),
    }
}

/// Does something to each run that holds more than pages of zeros.
fn each_with_contents(
    runs: Vec<pagemap::PageRun>,
    mut act: impl FnMut(PageRange) -> Result<()>,
) -> Result<()> {
    for run in runs {
        match run.state {
            PageState::Swapped => act(run.range)?,
            PageState::Present if Features::get().pagemap_scan.is_ok() => act(run.range)?,
            PageState::Present => each_but_zeros(run.range, &mut act)?,
            PageState::Absent | PageState::Zero => {}
        }
    }
    Ok(())
}

/// Looks page by page for what holds more than zeros. Without PAGEMAP_SCAN the
/// page of zeros cannot be told from others; taking it from where nothing was
/// ever written would be reported as a loss.
fn each_but_zeros(run: PageRange, act: &mut impl FnMut(PageRange) -> Result<()>) -> Result<()> {
    let toucher = Toucher::new().map_err(at("memfd_create", run))?;
    for page in run.chunks(page_size()) {
        match toucher.is_zero(page.start()) {
            Ok(true) => {}
            // The kernel has just taken it.
            Err(Errno::FAULT) => {}
            Ok(false) => act(page)?,
            Err(errno) => return Err(at("pwrite", page)(errno)),
        }
    }
    Ok(())
}
