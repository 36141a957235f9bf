//! Which ranges of a file are in the page cache.

use std::fs::File;
use std::ops::Range;

use super::residency::{cachestat, check_honesty};
use super::{clip, system};
use crate::ground::error::Result;
use crate::ground::sys::{page_cache, page_size};

/// A part that is examined at once, where it is neither wholly resident nor wholly missing:
/// its mapping and the byte for each of its pages stay small.
const WINDOW_BYTES: u64 = 64 << 20;

/// Returns the ranges of data in a part of the file that are not in the page cache, in
/// order, in whole pages (the last may reach behind the end of the file). Holes are left
/// out. While the call runs it moves the offset of a sparse file.
///
/// # Errors
///
/// As for [`residency`](super::residency()).
pub fn missing(file: &File, part: Range<u64>) -> Result<Vec<Range<u64>>> {
    ranges(file, part, false)
}

/// Returns the ranges of data in a part of the file that are in the page cache, as
/// [`missing`] does.
///
/// # Errors
///
/// As for [`residency`](super::residency()).
pub fn resident(file: &File, part: Range<u64>) -> Result<Vec<Range<u64>>> {
    ranges(file, part, true)
}

fn ranges(file: &File, part: Range<u64>, wanted: bool) -> Result<Vec<Range<u64>>> {
    let (pages, is_sparse) = clip(file, &part)?;
    let mut found = Vec::new();
    scan(file, pages, is_sparse, &mut |range, is_resident| {
        if is_resident == wanted {
            push(&mut found, range);
        }
    })?;
    Ok(found)
}

/// Visits all data in whole pages of the file, in order, and tells whether it is resident.
pub(super) fn scan(
    file: &File,
    pages: Range<u64>,
    is_sparse: bool,
    visit: &mut dyn FnMut(Range<u64>, bool),
) -> Result<()> {
    let mut scanner = Scanner {
        file,
        has_cachestat: true,
        visit,
    };
    for extent in data(file, pages, is_sparse)? {
        scanner.visit_extent(extent)?;
    }
    Ok(())
}

/// Returns the data in whole pages of the file. While the call runs it moves the offset of
/// a sparse file.
pub(super) fn data(file: &File, pages: Range<u64>, is_sparse: bool) -> Result<Vec<Range<u64>>> {
    if !is_sparse || pages.is_empty() {
        return Ok(Vec::from_iter((!pages.is_empty()).then_some(pages)));
    }
    let failed = system("lseek");
    let before = page_cache::offset(file).map_err(&failed)?;
    let extents = sparse_data(file, pages);
    page_cache::set_offset(file, before).map_err(&failed)?;
    extents
}

fn sparse_data(file: &File, pages: Range<u64>) -> Result<Vec<Range<u64>>> {
    let page = page_size() as u64;
    let mut extents = Vec::new();
    let mut at = pages.start;
    while at < pages.end {
        let next = page_cache::next_data(file, at, pages.end).map_err(system("lseek"))?;
        let Some(next) = next else { break };
        at = next.end.next_multiple_of(page);
        push(&mut extents, next.start / page * page..at);
    }
    Ok(extents)
}

struct Scanner<'a> {
    file: &'a File,
    has_cachestat: bool,
    visit: &'a mut dyn FnMut(Range<u64>, bool),
}

impl Scanner<'_> {
    fn visit_extent(&mut self, extent: Range<u64>) -> Result<()> {
        if self.is_uniform(&extent)? {
            return Ok(());
        }
        let mut at = extent.start;
        while at < extent.end {
            let end = (at / WINDOW_BYTES + 1) * WINDOW_BYTES;
            let window = at..end.min(extent.end);
            at = window.end;
            if !self.is_uniform(&window)? {
                self.visit_pages(window)?;
            }
        }
        Ok(())
    }

    /// Visits the range as a whole if all of it is resident, or nothing.
    fn is_uniform(&mut self, range: &Range<u64>) -> Result<bool> {
        if !self.has_cachestat {
            return Ok(false);
        }
        let Some(counts) = cachestat(self.file, range.clone())? else {
            self.has_cachestat = false;
            check_honesty(self.file)?;
            return Ok(false);
        };
        let page_count = (range.end - range.start) / page_size() as u64;
        let is_uniform = counts.cached == 0 || counts.cached >= page_count;
        if is_uniform {
            (self.visit)(range.clone(), counts.cached > 0);
        }
        Ok(is_uniform)
    }

    fn visit_pages(&mut self, window: Range<u64>) -> Result<()> {
        let page = page_size() as u64;
        let states = page_cache::mincore(self.file, window.clone()).map_err(system("mincore"))?;
        let mut at = window.start;
        for run in states.chunk_by(|one, other| one & 1 == other & 1) {
            let end = at + run.len() as u64 * page;
            (self.visit)(at..end, run[0] & 1 == 1);
            at = end;
        }
        Ok(())
    }
}

/// Appends a range that lies behind the others, or extends the last one.
pub(super) fn push(ranges: &mut Vec<Range<u64>>, next: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if next.start <= last.end => last.end = last.end.max(next.end),
        _ => ranges.push(next),
    }
}
