//! Which ranges are volatile, and how they become so and cease to be.

use std::sync::LazyLock;

use rangemap::RangeSet;

use super::take_back::take_back;
use super::{Outcome, fork};
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Harmless, Losing, advise, advise_losing};
use crate::ground::sys::features::Features;
use crate::ground::sys::fork::ForkMutex;
use crate::ground::sys::pagemap::{self, PageState};
use crate::ground::sys::touch::Toucher;
use crate::ground::sys::userfaultfd::Userfaultfd;
use crate::ground::sys::vma::{self, Vma};
use crate::ground::sys::{Errno, map, page_size};
use crate::observation::stats;
use crate::verbs::{check_private_anonymous, lazy_free};

const VERB: &str = "mark volatile";

/// The process's volatile ranges.
pub(super) struct Engine {
    /// Opened when it is first needed.
    pub(super) uffd: Option<Userfaultfd>,
    /// Ranges that are volatile.
    pub(super) offered: RangeSet<usize>,
    /// The sum of them.
    pub(super) offered_bytes: usize,
    /// Pages of them that are known to be lost and have not been reported.
    pub(super) lost: RangeSet<usize>,
    /// This is a child that could not protect all it inherited: some of
    /// `offered` cannot be accessed at all instead.
    pub(super) barred: bool,
}

pub(super) static ENGINE: LazyLock<ForkMutex<Engine>> = LazyLock::new(|| {
    ForkMutex::new(Engine {
        uffd: None,
        offered: RangeSet::new(),
        offered_bytes: 0,
        lost: RangeSet::new(),
        barred: false,
    })
});

impl Engine {
    /// The process's userfaultfd; opened if there is none, or if somebody has
    /// closed it.
    fn open(&mut self) -> Result<&Userfaultfd> {
        if let Some(closed) = self.uffd.take_if(|uffd| !uffd.is_open()) {
            closed.forget();
        }
        match self.uffd {
            Some(ref uffd) => Ok(uffd),
            None => Ok(self.uffd.insert(open_userfaultfd()?)),
        }
    }

    /// Whether a missing page of the mapping at `at` is SIGBUS by our doing.
    fn protects(&self, at: usize) -> bool {
        self.uffd
            .as_ref()
            .is_some_and(|uffd| uffd.is_open() && uffd.is_registered(at))
    }

    /// The parts of the range that are volatile.
    fn parts(&self, range: PageRange) -> Vec<PageRange> {
        self.offered
            .overlapping(range.as_std())
            .filter_map(|part| PageRange::from(part.clone()).intersection(range))
            .collect()
    }

    /// The same, each within one mapping of the kernel's.
    fn mapped_parts(&self, range: PageRange) -> Result<Vec<Vma>> {
        let mut mapped = Vec::new();
        for part in self.parts(range) {
            mapped.extend(vma::within(part)?);
        }
        Ok(mapped)
    }

    /// The parts of the range that have to be registered: those that are not
    /// volatile, and those that have lost their protection, which from here on
    /// count as lost.
    fn unprotected(&mut self, range: PageRange) -> Result<Vec<PageRange>> {
        let mut parts: Vec<PageRange> = self
            .offered
            .gaps(&range.as_std())
            .map(PageRange::from)
            .collect();
        for vma in self.mapped_parts(range)? {
            if !self.protects(vma.range.start()) {
                stats::UNPROTECTED_BYTES.add(lose(&mut self.lost, vma.range));
                parts.push(vma.range);
            }
        }
        Ok(parts)
    }

    pub(super) fn set_offered_bytes(&mut self, bytes: usize) {
        self.offered_bytes = bytes;
        stats::VOLATILE_BYTES.set(bytes);
    }

    fn take_report(&mut self, range: PageRange) -> Outcome {
        let runs: Vec<PageRange> = self
            .lost
            .overlapping(range.as_std())
            .filter_map(|run| PageRange::from(run.clone()).intersection(range))
            .collect();
        self.lost.remove(range.as_std());
        if runs.is_empty() {
            Outcome::Intact
        } else {
            Outcome::Purged(runs)
        }
    }
}

/// # Safety
///
/// As for [`PageRange::mark_volatile`].
pub(super) unsafe fn mark(range: PageRange) -> Result<()> {
    check(range)?;
    // Pages that are volatile are not to be given back as if they were free.
    lazy_free::forget_freed(range);
    let mut engine = ENGINE.lock();
    engine.open()?;
    let new = engine.unprotected(range)?;
    let uffd = engine.open()?;
    for part in &new {
        map_zeros_where_absent(*part)?;
    }
    for (index, part) in new.iter().enumerate() {
        if let Err(errno) = uffd.register(*part) {
            for done in &new[..index] {
                // Registered a moment ago; taking that back needs no room.
                let _ = uffd.unregister(*done);
            }
            return Err(explain_register(range, errno));
        }
    }
    let more_bytes = gap_bytes(&engine.offered, range);
    engine.offered.insert(range.as_std());
    let offered_bytes = engine.offered_bytes + more_bytes;
    engine.set_offered_bytes(offered_bytes);
    // Where the advice is refused (memory locked since it was looked at), the
    // pages simply stay.
    // SAFETY: the caller lets the kernel take the contents; from here on the
    // registration shows each loss.
    let _ = unsafe { advise_losing(range, Losing::Free) };
    stats::MARK_VOLATILE.done(range.len());
    Ok(())
}

fn check(range: PageRange) -> Result<()> {
    for vma in check_private_anonymous(VERB, range)? {
        let missing = match (vma.readable, vma.writable) {
            (true, true) => continue,
            (true, false) => "write",
            (false, _) => "read",
        };
        return Err(Error::NoAccess {
            verb: VERB,
            range,
            part: vma.range,
            missing,
        });
    }
    // Taking pages back is built on it.
    Features::get()
        .madv_populate
        .map_err(|answer| Error::Unsupported {
            verb: VERB,
            feature: "MADV_POPULATE_WRITE",
            answer,
            remedy: "it needs Linux 5.14",
        })
}

fn open_userfaultfd() -> Result<Userfaultfd> {
    fork::protect_children().map_err(|errno| Error::System {
        call: "pthread_atfork",
        errno,
    })?;
    let features = Features::get();
    features.userfaultfd.and_then(|_| Userfaultfd::open()).map_err(|answer| Error::Unsupported {
        verb: VERB,
        feature: "userfaultfd",
        answer,
        remedy: "it needs Linux 5.11, and containers often refuse it (as Docker's default seccomp profile does): allow the system call, or access to /dev/userfaultfd",
    })
}

/// Maps the page of zeros wherever the range has no page, so that a page which
/// is missing later is one that was lost. Before the range is registered: a
/// thread that reads such a page meanwhile must not meet SIGBUS.
fn map_zeros_where_absent(range: PageRange) -> Result<()> {
    let runs = pagemap::scan(range).map_err(|answer| Error::Unsupported {
        verb: VERB,
        feature: "/proc/self/pagemap",
        answer,
        remedy: "it needs /proc; after a change of user it belongs to root until prctl(PR_SET_DUMPABLE, 1)",
    })?;
    for run in runs.iter().filter(|run| run.state == PageState::Absent) {
        advise(run.range, Harmless::PopulateRead)
            .map_err(at("madvise(MADV_POPULATE_READ)", run.range))?;
    }
    Ok(())
}

fn explain_register(range: PageRange, errno: Errno) -> Error {
    match errno {
        Errno::BUSY => Error::Busy { range },
        Errno::NOMEM => Error::NoRoom {
            call: "UFFDIO_REGISTER",
            range,
        },
        errno => at("UFFDIO_REGISTER", range)(errno),
    }
}

pub(super) fn unmark(range: PageRange) -> Result<Outcome> {
    vma::cover(range)?;
    let mut engine = ENGINE.lock();
    let engine = &mut *engine;
    for vma in engine.mapped_parts(range)? {
        if !engine.protects(vma.range.start()) {
            stats::UNPROTECTED_BYTES.add(lose(&mut engine.lost, vma.range));
            if engine.barred && !vma.readable {
                // SAFETY: only memory that could be read and written is marked;
                // the fork handler took that away.
                unsafe { map::protect_read_write(vma.range) }.map_err(at("mprotect", vma.range))?;
            }
        } else if let Some(uffd) = &engine.uffd {
            take_back(uffd, vma.range, &mut engine.lost)?;
        }
    }
    let before_bytes = engine.offered_bytes;
    stop_watching(engine, range);
    stats::MARK_NONVOLATILE.done(before_bytes - engine.offered_bytes);
    Ok(engine.take_report(range))
}

pub(super) fn purge(range: PageRange) -> Result<()> {
    vma::cover(range)?;
    let mut engine = ENGINE.lock();
    for vma in engine.mapped_parts(range)? {
        if !engine.protects(vma.range.start()) {
            continue;
        }
        let lost = &mut engine.lost;
        for run in pagemap::scan(vma.range).map_err(at("PAGEMAP_SCAN", vma.range))? {
            match run.state {
                PageState::Swapped => purge_run(run.range, lost)?,
                PageState::Present if Features::get().pagemap_scan.is_ok() => {
                    purge_run(run.range, lost)?;
                }
                PageState::Present => purge_but_zeros(run.range, lost)?,
                PageState::Absent | PageState::Zero => {}
            }
        }
    }
    Ok(())
}

fn purge_run(run: PageRange, lost: &mut RangeSet<usize>) -> Result<()> {
    // SAFETY: the range is volatile and registered: whoever marked it lets its
    // contents go at any time, and the registration shows the loss.
    unsafe { advise_losing(run, Losing::DontNeed) }.map_err(at("madvise(MADV_DONTNEED)", run))?;
    stats::PURGED_ON_REQUEST_BYTES.add(lose(lost, run));
    Ok(())
}

/// Purges page by page what holds more than zeros. Without PAGEMAP_SCAN the page
/// of zeros cannot be told from others; taking it from where nothing was ever
/// written would be reported as a loss.
fn purge_but_zeros(run: PageRange, lost: &mut RangeSet<usize>) -> Result<()> {
    let toucher = Toucher::new().map_err(at("memfd_create", run))?;
    for page in run.chunks(page_size()) {
        match toucher.is_zero(page.start()) {
            Ok(true) => {}
            // The kernel has just taken it.
            Err(Errno::FAULT) => {}
            Ok(false) => purge_run(page, lost)?,
            Err(errno) => return Err(at("pwrite", page)(errno)),
        }
    }
    Ok(())
}

/// Ends the volatility of a range whose contents or mappings go away.
pub(in crate::verbs) fn forget(range: PageRange) {
    let mut engine = ENGINE.lock();
    if !engine.offered.is_empty() {
        stop_watching(&mut engine, range);
        engine.lost.remove(range.as_std());
    }
}

/// Notes a loss. Returns how many bytes of it are news: what was purged on
/// request is found missing again when it is unmarked.
pub(super) fn lose(lost: &mut RangeSet<usize>, range: PageRange) -> usize {
    let news = gap_bytes(lost, range);
    lost.insert(range.as_std());
    news
}

/// How much of the range is not in the set.
fn gap_bytes(set: &RangeSet<usize>, range: PageRange) -> usize {
    set.gaps(&range.as_std()).map(|gap| gap.len()).sum()
}

fn stop_watching(engine: &mut Engine, range: PageRange) {
    for part in engine.parts(range) {
        if let Some(uffd) = engine.uffd.as_ref().filter(|uffd| uffd.is_open()) {
            // What is not registered any more (mapped over) stays as it is.
            let _ = uffd.unregister(part);
        }
        engine.offered.remove(part.as_std());
        engine.set_offered_bytes(engine.offered_bytes - part.len());
    }
}

pub(super) fn at(call: &'static str, range: PageRange) -> impl Fn(Errno) -> Error {
    move |errno| Error::SystemAt { call, range, errno }
}
