//! Loops over the pages of a range, by what PAGEMAP_SCAN says of them.

use super::advise::{Advice, DestructiveAdvice, advise, advise_destructive};
use super::copy::copy_from;
use super::features::Features;
use super::pagemap::{self, PageRun, PageState};
use super::prefault;
use super::userfaultfd::Userfaultfd;
use super::{Errno, page_size, pmd_bytes};
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

/// How many runs of pages a chunk has at most: for each, the kernel is called several times.
pub(crate) const MAX_RUNS: usize = 256;

/// Returns the first span of the range that is populated but for gaps shorter than
/// `max_gap_bytes`, or its first chunk of about `max_bytes` and few runs of pages.
pub(crate) fn first_populated_span(
    range: PageRange,
    max_gap_bytes: usize,
    max_bytes: usize,
) -> Result<Option<PageRange>, PageError> {
    let (mut span, mut run_count, mut is_complete) = (None::<PageRange>, 0, false);
    pagemap::for_each_populated(range, |run| {
        let start = span.map_or(run.range.start(), PageRange::start);
        let continues = span.is_none_or(|span| run.range.start() - span.end() < max_gap_bytes);
        let max_end = chunk_end(start, max_bytes);
        is_complete |= !continues || run.range.start() >= max_end || run_count == MAX_RUNS;
        if !is_complete {
            span = Some(PageRange::between(start, run.range.end().min(max_end)));
            run_count += 1;
        }
    })
    .map_err(PageError::Scan)?;
    Ok(span)
}

/// Returns where a chunk of about `bytes` that begins at `start` ends: on the boundary of
/// a huge page, which no chunk splits.
pub(crate) fn chunk_end(start: usize, bytes: usize) -> usize {
    let end = start.saturating_add(bytes);
    end.checked_next_multiple_of(pmd_bytes()).unwrap_or(end)
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
    let mut bytes = vec![0; page_size()];
    for page in run.chunks(page_size()) {
        match copy_from(page.start(), &mut bytes) {
            Ok(()) if bytes.iter().all(|&byte| byte == 0) => {}
            // The kernel has just reclaimed it.
            Err(Errno::FAULT) => {}
            Ok(()) => act(page)?,
            Err(errno) => return Err(PageError::Call("process_vm_readv", page, errno)),
        }
    }
    Ok(())
}

/// Takes every page of the first runs of the registered range back from a MADV_FREE:
/// `madvise(MADV_POPULATE_WRITE)`. Subtracts the runs from `max_runs`, the most that there may
/// be, and returns where they end. Pages that the kernel has reclaimed, and pages whose
/// memory has a hardware error, are passed to `on_absent`, then filled with zeros.
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
    max_runs: &mut usize,
    mut on_absent: impl FnMut(PageRange),
) -> Result<usize, PageError> {
    let scan = |range| pagemap::scan(range).map_err(PageError::call("PAGEMAP_SCAN", range));
    let mut runs = scan(range)?;
    let end = runs
        .get(*max_runs)
        .map_or(range.end(), |next| next.range.start());
    runs.truncate(*max_runs);
    *max_runs -= runs.len();
    let range = PageRange::between(range.start(), end);
    let mut stopped_at_missing = false;
    loop {
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
            // The next pass finds the replaced pages absent.
            match populate_or_replace(run.range) {
                Ok(has_replaced) => stopped_at_missing |= has_replaced,
                Err(Errno::FAULT) => stopped_at_missing = true,
                Err(errno) => {
                    let call = "madvise(MADV_POPULATE_WRITE)";
                    return Err(PageError::Call(call, run.range, errno));
                }
            }
        }
        if !stopped_at_missing {
            return Ok(end);
        }
        runs = scan(range)?;
    }
}

/// Takes every page of a registered range back from a MADV_FREE, in chunks:
/// `madvise(MADV_POPULATE_WRITE)`. Success shows that none was missing. For a range in
/// which each page has contents: a zero page becomes a page of memory. For a single page
/// `futex(FUTEX_WAKE_OP)` does that without mmap_lock, for which threads would contend.
pub(crate) fn repopulate_all(range: PageRange, chunk_bytes: usize) -> Result<(), Errno> {
    if range.len() == page_size() {
        return match prefault::write_page(range) {
            // A seccomp filter may refuse the call.
            Err(errno) if errno != Errno::FAULT => populate_write(range),
            answer => answer,
        };
    }
    range.chunks(chunk_bytes).try_for_each(populate_write)
}

/// Takes the pages that are left of a range back from a MADV_FREE. The range is not
/// registered any more: pages that the kernel has reclaimed read as zeros.
pub(crate) fn repopulate_unregistered(range: PageRange) -> Result<(), PageError> {
    /// One call takes less than 2 ms, during which other threads' `mmap` waits.
    const CHUNK_BYTES: usize = 32 << 20;
    for chunk in range.chunks(CHUNK_BYTES) {
        for run in pagemap::scan(chunk).map_err(PageError::Scan)? {
            if matches!(run.state, PageState::Present | PageState::Swapped) {
                let call = "madvise(MADV_POPULATE_WRITE)";
                populate_or_replace(run.range).map_err(PageError::call(call, run.range))?;
            }
        }
    }
    Ok(())
}

/// Populates the range, and discards the pages whose memory has a hardware error:
/// MADV_POPULATE_WRITE stops at the first (EHWPOISON), which it does not name. Returns
/// whether there was one.
fn populate_or_replace(range: PageRange) -> Result<bool, Errno> {
    match populate_write(range) {
        Err(Errno::HWPOISON) if range.len() > page_size() => {
            let middle = range.start() + range.pages() / 2 * page_size();
            let first = populate_or_replace(PageRange::between(range.start(), middle))?;
            let second = populate_or_replace(PageRange::between(middle, range.end()))?;
            Ok(first || second)
        }
        Err(Errno::HWPOISON) => {
            // SAFETY: nothing can read the contents of this page any more.
            unsafe { advise_destructive(range, DestructiveAdvice::DontNeed) }?;
            Ok(true)
        }
        answer => answer.map(|()| false),
    }
}

/// Faults the range in for writing: `madvise(MADV_POPULATE_WRITE)`.
pub(crate) fn populate_write(range: PageRange) -> Result<(), Errno> {
    // A signal interrupts it, and the pages before stay populated; a seccomp filter may give
    // such an answer for ever.
    const MAX_TRIES: usize = 1000;
    let mut answer = Err(Errno::AGAIN);
    for _ in 0..MAX_TRIES {
        answer = advise(range, Advice::PopulateWrite);
        if !matches!(answer, Err(Errno::INTR | Errno::AGAIN)) {
            break;
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::mapping::{HugePages, Mapping};

    #[test]
    fn populated_span_bridges_short_gaps_and_ends_at_long_ones() {
        // With pages of 64 KiB too much for a boundary of huge pages.
        const MAX_BYTES: usize = 256 << 20;
        let memory = Mapping::anonymous((5 * pmd_bytes()).min(MAX_BYTES));
        let mut memory = memory.huge_pages(HugePages::Never).map().unwrap();
        let (page, start) = (page_size(), memory.range().start());
        let part = |from, to| PageRange::between(start + from * page, start + to * page);
        let page_count = memory.range().pages();
        for touched in [2, 4, 20, page_count - 1] {
            memory.as_mut_slice().unwrap()[touched * page] = 1;
        }
        let first = |from, max_gap_pages: usize, max_bytes| {
            first_populated_span(part(from, page_count), max_gap_pages * page, max_bytes).unwrap()
        };
        assert_eq!(first(0, 2, pmd_bytes()), Some(part(2, 5)));
        assert_eq!(first(0, 16, pmd_bytes()), Some(part(2, 21)));
        assert_eq!(first(5, 2, pmd_bytes()), Some(part(20, 21)));
        assert_eq!(
            first(21, 2, pmd_bytes()),
            Some(part(page_count - 1, page_count))
        );
        assert_eq!(first_populated_span(part(5, 20), page, page), Ok(None));
        if memory.range().len() < 2 * pmd_bytes() {
            return;
        }
        // A chunk ends on the boundary of a huge page.
        memory.as_mut_slice().unwrap().fill(1);
        let chunk = first(1, 1, page).unwrap();
        assert_eq!(chunk.start(), start + page);
        assert!(chunk.end().is_multiple_of(pmd_bytes()));
    }

    #[test]
    fn populated_span_with_many_runs_ends_after_some() {
        let memory = Mapping::anonymous(4 * MAX_RUNS * page_size());
        let mut memory = memory.huge_pages(HugePages::Never).map().unwrap();
        for page in memory.as_mut_slice().unwrap().chunks_mut(2 * page_size()) {
            page[0] = 1;
        }
        let range = memory.range();
        let span = first_populated_span(range, range.len(), range.len()).unwrap();
        let len = (2 * MAX_RUNS - 1) * page_size();
        assert_eq!(span, Some(PageRange::new(range.start(), len).unwrap()));
    }

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
