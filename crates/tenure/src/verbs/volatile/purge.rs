//! Taking contents at once, on request or under pressure.

use super::at;
use super::engine::{Engine, can_offer, gaps, lose};
use super::look::scan;
use super::registration::protect_children;
use crate::ground::error::Result;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Losing, advise_losing};
use crate::ground::sys::features::Features;
use crate::ground::sys::pagemap::{PageRun, PageState};
use crate::ground::sys::touch::Toucher;
use crate::ground::sys::{Errno, bars, page_size};
use crate::observation::stats::Counter;

impl Engine {
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
        for open in gaps(&self.barred, range) {
            for part in gaps(&self.offered, open) {
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
}

/// Does something to each run that holds more than pages of zeros.
fn each_with_contents(
    runs: Vec<PageRun>,
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
            Err((_, Errno::FAULT)) => {}
            Ok(false) => act(page)?,
            Err((call, errno)) => return Err(at(call, page)(errno)),
        }
    }
    Ok(())
}
