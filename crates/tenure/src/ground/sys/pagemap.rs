//! The state of each page of a range: PAGEMAP_SCAN (Linux 6.7),
//! `/proc/self/pagemap` before.

use linux_raw_sys::general::{
    PAGE_IS_HUGE, PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PAGE_IS_SWAPPED, page_region, pm_scan_arg,
};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

use super::features::Features;
use super::proc_file::ProcFile;
use super::{last_errno, page_size, pmd_bytes};
use crate::PageRange;

/// Where the contents of a page are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageState {
    /// Nowhere: the page was never touched, or was reclaimed.
    Absent,
    /// The zero page. Kernels without PAGEMAP_SCAN cannot tell it from
    /// `Present`.
    Zero,
    /// In memory.
    Present,
    /// In swap, or under migration.
    Swapped,
}

/// Adjacent pages in the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageRun {
    pub(crate) range: PageRange,
    pub(crate) state: PageState,
}

/// Pages scanned in one call, during which other threads' `mmap` waits: 65536
/// pages take about a millisecond.
const MAX_SCAN_PAGES: usize = 1 << 16;

/// Returns the state of every page of the range, in order.
pub(crate) fn scan(range: PageRange) -> Result<Vec<PageRun>, Errno> {
    Scanner::new().scan(range)
}

/// The file that tells of pages, opened once for several ranges: opening it takes three
/// times as long as a scan of a page. It is not kept across a fork.
pub(crate) struct Scanner(Option<ProcFile>);

impl Scanner {
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    pub(super) fn file(&mut self) -> Result<&ProcFile, Errno> {
        match &self.0 {
            Some(_) => {}
            None => self.0 = Some(ProcFile::pagemap()?),
        }
        self.0.as_ref().ok_or(Errno::BADF)
    }

    /// Returns the state of every page of the range, in order.
    pub(crate) fn scan(&mut self, range: PageRange) -> Result<Vec<PageRun>, Errno> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let pagemap = self.file()?;
        match Features::get().pagemap_scan {
            Ok(()) => scan_runs(pagemap, range),
            Err(_) => read_entries(pagemap, range),
        }
    }
}

/// Calls `visit` for every run of present or swapped pages of the range, in
/// order, without allocating a list. A run may be reported in parts.
pub(crate) fn for_each_populated(
    range: PageRange,
    visit: impl FnMut(PageRun),
) -> Result<(), Errno> {
    for_each_populated_in(&ProcFile::pagemap()?, range, visit)
}

/// Does what [`for_each_populated`] does, with the file opened.
pub(super) fn for_each_populated_in(
    pagemap: &ProcFile,
    range: PageRange,
    mut visit: impl FnMut(PageRun),
) -> Result<(), Errno> {
    for piece in range.chunks(MAX_SCAN_PAGES * page_size()) {
        if Features::get().pagemap_scan.is_ok() {
            scan_regions(pagemap, piece, Filter::Any, |region| {
                let (start, end) = (region.start as usize, region.end as usize);
                visit(PageRun {
                    range: PageRange::between(start, end),
                    state: state_of(region.categories),
                });
            })?;
        } else {
            let runs = read_entries(pagemap, piece)?;
            let populated = runs
                .into_iter()
                .filter(|run| run.state != PageState::Absent);
            populated.for_each(&mut visit);
        }
    }
    Ok(())
}

/// Returns whether one huge page is mapped on both sides of the address; `None`
/// where the kernel does not tell (before Linux 6.7).
pub(crate) fn is_inside_huge_page(at: usize) -> Option<bool> {
    if at.is_multiple_of(pmd_bytes()) {
        return Some(false);
    }
    Features::get().pagemap_scan.ok()?;
    let sides = PageRange::between(at - page_size(), at + page_size());
    let mut huge_bytes = 0;
    scan_regions(&ProcFile::pagemap().ok()?, sides, Filter::Huge, |region| {
        huge_bytes += region.end - region.start;
    })
    .ok()?;
    Some(huge_bytes == sides.len() as u64)
}

/// Returns the parts of the range that are mapped by huge pages, in order (Linux 6.7).
pub(crate) fn huge_parts(range: PageRange) -> Result<Vec<PageRange>, Errno> {
    Features::get().pagemap_scan?;
    let mut parts = Vec::new();
    scan_regions(&ProcFile::pagemap()?, range, Filter::Huge, |region| {
        parts.push(PageRange::between(
            region.start as usize,
            region.end as usize,
        ));
    })?;
    Ok(parts)
}

/// Returns how many bytes of a range of shared memory or of a file are not in
/// the page cache: `mincore(2)`.
pub(crate) fn uncached_bytes(range: PageRange) -> Result<usize, Errno> {
    let mut pages = vec![0_u8; range.pages()];
    // SAFETY: the kernel validates the range and writes one byte for each of
    // its pages to `pages`, which has as many. (rustix has no mincore.)
    match unsafe { libc::mincore(range.as_ptr().cast(), range.len(), pages.as_mut_ptr()) } {
        0 => Ok(pages.iter().filter(|&&page| page & 1 == 0).count() * page_size()),
        _ => Err(last_errno()),
    }
}

/// Returns whether a page of private anonymous memory is in memory: `mincore(2)`. False where
/// the kernel does not tell. It needs no file and takes no memory.
pub(crate) fn is_resident(page: usize) -> bool {
    let mut state = 0_u8;
    let at = std::ptr::without_provenance_mut(page);
    // SAFETY: the kernel validates the address and writes one byte for the page to `state`.
    // (rustix has no mincore.)
    unsafe { libc::mincore(at, page_size(), &raw mut state) == 0 && state & 1 == 1 }
}

/// Checks whether this kernel supports PAGEMAP_SCAN.
pub(super) fn probe_scan() -> Result<(), Errno> {
    let local = 0_u8;
    let here = (&raw const local).expose_provenance() & !(page_size() - 1);
    scan_runs(
        &ProcFile::pagemap()?,
        PageRange::between(here, here + page_size()),
    )
    .map(drop)
}

/// Appends a run, or extends the last one.
fn push(runs: &mut Vec<PageRun>, start: usize, end: usize, state: PageState) {
    match runs.last_mut() {
        Some(last) if last.state == state && last.range.end() == start => {
            last.range = PageRange::between(last.range.start(), end);
        }
        _ => runs.push(PageRun {
            range: PageRange::between(start, end),
            state,
        }),
    }
}

fn scan_runs(pagemap: &ProcFile, range: PageRange) -> Result<Vec<PageRun>, Errno> {
    let mut runs = Vec::new();
    scan_regions(pagemap, range, Filter::All, |region| {
        push(
            &mut runs,
            region.start as usize,
            region.end as usize,
            state_of(region.categories),
        );
    })?;
    Ok(runs)
}

/// Which pages PAGEMAP_SCAN reports.
#[derive(Clone, Copy)]
enum Filter {
    All,
    /// Pages in the page tables or in swap.
    Any,
    /// Pages mapped as parts of huge pages.
    Huge,
}

fn scan_regions(
    pagemap: &ProcFile,
    range: PageRange,
    filter: Filter,
    mut visit: impl FnMut(&page_region),
) -> Result<(), Errno> {
    let (all_of, any_of) = match filter {
        Filter::All => (0, 0),
        Filter::Huge => (PAGE_IS_HUGE, 0),
        Filter::Any => (0, PAGE_IS_PRESENT | PAGE_IS_SWAPPED),
    };
    let mut at = range.start();
    while at < range.end() {
        let mut regions = [page_region {
            start: 0,
            end: 0,
            categories: 0,
        }; 256];
        let mut scan = PagemapScan(pm_scan_arg {
            size: size_of::<pm_scan_arg>() as u64,
            flags: 0,
            start: at as u64,
            end: range.end() as u64,
            walk_end: 0,
            vec: regions.as_mut_ptr().expose_provenance() as u64,
            vec_len: regions.len() as u64,
            max_pages: 0,
            category_inverted: 0,
            category_mask: u64::from(all_of),
            category_anyof_mask: u64::from(any_of),
            return_mask: u64::from(PAGE_IS_PRESENT | PAGE_IS_SWAPPED | PAGE_IS_PFNZERO),
        });
        // SAFETY: the kernel writes at most `vec_len` regions to `vec`, and
        // `regions` outlives the call.
        let filled = pagemap.run(|fd| unsafe { ioctl(fd, &mut scan) })?;
        regions[..filled].iter().for_each(&mut visit);
        let walk_end = scan.0.walk_end as usize;
        if walk_end <= at {
            // Not of the kernel, but of a seccomp filter.
            return Err(Errno::IO);
        }
        at = walk_end;
    }
    Ok(())
}

fn state_of(categories: u64) -> PageState {
    let has = |category: u32| categories & u64::from(category) != 0;
    if has(PAGE_IS_SWAPPED) {
        PageState::Swapped
    } else if has(PAGE_IS_PFNZERO) {
        PageState::Zero
    } else if has(PAGE_IS_PRESENT) {
        PageState::Present
    } else {
        PageState::Absent
    }
}

/// PAGEMAP_SCAN updates its argument and returns a count, a pattern for which
/// rustix has no ready-made type.
struct PagemapScan(pm_scan_arg);

// SAFETY: the opcode is that of PAGEMAP_SCAN, whose argument is a `pm_scan_arg`
// that the kernel reads and writes, and whose result is the number of regions.
unsafe impl Ioctl for &mut PagemapScan {
    type Output = usize;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<pm_scan_arg>(b'f', 16)
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(
        answer: IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> Result<usize, Errno> {
        Ok(answer as usize)
    }
}

fn read_entries(pagemap: &ProcFile, range: PageRange) -> Result<Vec<PageRun>, Errno> {
    const ENTRY_BYTES: usize = size_of::<u64>();
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    let page = page_size();
    let mut runs = Vec::new();
    let mut entries = [0_u8; 512 * ENTRY_BYTES];
    let mut at = range.start();
    while at < range.end() {
        let chunk_bytes = ((range.end() - at) / page * ENTRY_BYTES).min(entries.len());
        let offset = (at / page * ENTRY_BYTES) as u64;
        let chunk = &mut entries[..chunk_bytes];
        let got = pagemap.run(|fd| rustix::io::pread(fd, chunk, offset))?;
        if got < ENTRY_BYTES {
            return Err(Errno::FAULT);
        }
        for entry in entries[..got].as_chunks::<ENTRY_BYTES>().0 {
            let entry = u64::from_ne_bytes(*entry);
            let state = if entry & PRESENT != 0 {
                PageState::Present
            } else if entry & SWAPPED != 0 {
                PageState::Swapped
            } else {
                PageState::Absent
            };
            push(&mut runs, at, at + page, state);
            at += page;
        }
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::super::map::{self, Backing};
    use super::*;

    #[test]
    fn pagemap_scan_and_pagemap_file_agree() {
        let page = page_size();
        let range = map::map(Backing::Anonymous, 2000 * page, false, true).unwrap();
        super::super::advise::advise(range, super::super::advise::Advice::NoHugePage).unwrap();
        for index in [0, 1, 7, 600, 601, 1999] {
            // SAFETY: inside the mapping made above.
            unsafe { range.as_ptr().add(index * page).write(1) };
        }
        // SAFETY: inside the mapping made above; a read maps the zero page.
        assert_eq!(unsafe { range.as_ptr().add(9 * page).read_volatile() }, 0);

        let pagemap = ProcFile::pagemap().unwrap();
        let entries = read_entries(&pagemap, range).unwrap();
        let present: Vec<_> = entries
            .iter()
            .filter(|run| run.state == PageState::Present)
            .map(|run| {
                (
                    (run.range.start() - range.start()) / page,
                    run.range.pages(),
                )
            })
            .collect();
        assert_eq!(present, [(0, 2), (7, 1), (9, 1), (600, 2), (1999, 1)]);
        assert_eq!(
            entries.iter().map(|run| run.range.pages()).sum::<usize>(),
            range.pages()
        );

        match scan_runs(&pagemap, range) {
            Err(errno) => assert_eq!(errno, Errno::NOTTY),
            Ok(mut runs) => {
                let zero = runs
                    .iter_mut()
                    .find(|run| run.state == PageState::Zero)
                    .unwrap();
                assert_eq!(zero.range.start(), range.start() + 9 * page);
                zero.state = PageState::Present;
                assert_eq!(runs, entries);
            }
        }
        // SAFETY: mapped above and used by nobody else.
        unsafe { map::unmap(range) }.unwrap();
    }

    #[test]
    fn scan_of_more_runs_than_fit_one_call_is_complete() {
        let page = page_size();
        let range = map::map(Backing::Anonymous, 1200 * page, false, true).unwrap();
        super::super::advise::advise(range, super::super::advise::Advice::NoHugePage).unwrap();
        for index in (0..1200).step_by(2) {
            // SAFETY: inside the mapping made above.
            unsafe { range.as_ptr().add(index * page).write(1) };
        }
        let runs = scan(range).unwrap();
        assert_eq!(runs.len(), 1200);
        // SAFETY: mapped above and used by nobody else.
        unsafe { map::unmap(range) }.unwrap();
    }
}
