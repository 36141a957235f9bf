//! Loops over the pages of a range, by what PAGEMAP_SCAN says of them.

use super::advise::{Advice, advise};
use super::features::Features;
use super::pagemap::{self, PageRun, PageState};
use super::prefault::Prefaulter;
use super::userfaultfd::Userfaultfd;
use super::{Errno, page_size};
use crate::PageRange;

/// Why a loop over the pages of a range stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageError {
    /// The kernel does not tell which pages are present.
    Scan(Errno),
    /// A call on these pages failed.
    Call(&'static str, PageRange, Errno),
}

impl PageError {
    /// Says which call on which pages failed.
    pub(crate) fn call(call: &'static str, range: PageRange) -> impl Fn(Errno) -> Self {
        move |errno| Self::Call(call, range, errno)
    }
}

/// Whether a page of the range is absent.
pub(crate) fn has_absent(range: PageRange) -> Result<bool, PageError> {
    let runs = pagemap::scan(range).map_err(PageError::Scan)?;
    Ok(runs.iter().any(|run| run.state == PageState::Absent))
}

/// Calls `act` for each run of pages that hold more than zeros, in order.
pub(crate) fn each_with_contents(
    range: PageRange,
    mut act: impl FnMut(PageRange) -> Result<(), PageError>,
) -> Result<(), PageError> {
    for run in pagemap::scan(range).map_err(PageError::Scan)? {
        match run.state {
            PageState::Swapped => act(run.range)?,
            PageState::Present if Features::get().pagemap_scan.is_ok() => act(run.range)?,
            PageState::Present => each_nonzero_page(run.range, &mut act)?,
            PageState::Absent | PageState::Zero => {}
        }
    }
    Ok(())
}

/// Reads page by page. Without PAGEMAP_SCAN the zero page cannot be told from other
/// pages, and purging it where the program never wrote would be reported as a loss.
fn each_nonzero_page(
    run: PageRange,
    act: &mut impl FnMut(PageRange) -> Result<(), PageError>,
) -> Result<(), PageError> {
    let reader = Prefaulter::new().map_err(PageError::call("memfd_create", run))?;
    for page in run.chunks(page_size()) {
        match reader.is_zero(page.start()) {
            Ok(true) => {}
            // The kernel has just reclaimed it.
            Err((_, Errno::FAULT)) => {}
            Ok(false) => act(page)?,
            Err((call, errno)) => return Err(PageError::Call(call, page, errno)),
        }
    }
    Ok(())
}

/// Takes every page of the registered range back from a MADV_FREE:
/// `madvise(MADV_POPULATE_WRITE)`. Pages that the kernel has reclaimed are passed to
/// `on_absent`, then filled with zeros.
///
/// MADV_POPULATE_WRITE takes pages back one after the other and stops with EFAULT at a
/// missing one. The kernel may reclaim further pages until the call has passed them,
/// so each pass scans the range again until one meets no missing page. The zero page
/// cannot be reclaimed and is left alone. A page in swap could not be reclaimed
/// either, but a page that is just being moved (a huge page split, memory compacted)
/// looks the same, and the kernel may reclaim it once it has arrived.
pub(crate) fn repopulate(
    uffd: &Userfaultfd,
    range: PageRange,
    mut on_absent: impl FnMut(PageRange),
) -> Result<(), PageError> {
    let mut stopped_at_missing = false;
    loop {
        let runs = pagemap::scan(range).map_err(PageError::call("PAGEMAP_SCAN", range))?;
        let mut found_missing = false;
        for run in runs.iter().filter(|run| run.state == PageState::Absent) {
            on_absent(run.range);
            uffd.fill_with_zeros(run.range)
                .map_err(PageError::call("UFFDIO_ZEROPAGE", run.range))?;
            found_missing = true;
        }
        if stopped_at_missing && !found_missing {
            // The obstacle is not a missing page: another pass would stop there again.
            let call = "madvise(MADV_POPULATE_WRITE)";
            return Err(PageError::Call(call, range, Errno::FAULT));
        }
        stopped_at_missing = false;
        let has_contents =
            |run: &&PageRun| matches!(run.state, PageState::Present | PageState::Swapped);
        for run in runs.iter().filter(has_contents) {
            match populate_write(run.range) {
                Ok(()) => {}
                Err(Errno::FAULT) => stopped_at_missing = true,
                Err(errno) => {
                    let call = "madvise(MADV_POPULATE_WRITE)";
                    return Err(PageError::Call(call, run.range, errno));
                }
            }
        }
        if !stopped_at_missing {
            return Ok(());
        }
    }
}

fn populate_write(range: PageRange) -> Result<(), Errno> {
    loop {
        match advise(range, Advice::PopulateWrite) {
            // A signal interrupted the call; the pages before it stay populated.
            Err(Errno::INTR | Errno::AGAIN) => {}
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::mapping::{HugePages, Mapping};

    #[test]
    fn untouched_and_zero_pages_have_no_contents() {
        if Features::get().madv_populate.is_err() {
            return;
        }
        let memory = Mapping::anonymous(8 * page_size());
        let mut memory = memory.huge_pages(HugePages::Never).map().unwrap();
        let (start, end) = (memory.range().start(), memory.range().end());
        let half = PageRange::between(start, start + 4 * page_size());
        assert_eq!(has_absent(memory.range()), Ok(true));
        advise(half, Advice::PopulateRead).unwrap();
        assert_eq!(has_absent(half), Ok(false));
        memory.as_mut_slice().unwrap()[7 * page_size()] = 7;
        let mut found = Vec::new();
        each_with_contents(memory.range(), |run| {
            found.push(run);
            Ok(())
        })
        .unwrap();
        assert_eq!(found, [PageRange::between(end - page_size(), end)]);
    }
}
