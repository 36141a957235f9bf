//! A file that is kept.

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;

use tenure::{Access, LockedFile, PageRange, files, page_size};

use super::ranges::without;
use crate::files::holders::FileId;
use crate::files::walk::Found;

/// A file whose used pages stay in memory.
pub struct Held {
    pub path: PathBuf,
    id: FileId,
    pub len: u64,
    file: File,
    pub locked: LockedFile,
    /// The ranges that were resident at the last look.
    seen: Vec<Range<u64>>,
    /// The last complaint, which is not repeated.
    pub complaint: Option<String>,
}

impl Held {
    /// Maps the file; `share` is its part of the budget.
    pub fn new(found: Found, share: Option<usize>) -> tenure::Result<Self> {
        let len = found.metadata.len();
        // Where that is not told, no page would ever be locked.
        files::residency(&found.file, 0..1)?;
        let locked = match share {
            // SAFETY: nothing reads the mapping here. It is only faulted in, where a page that
            // the file has lost is an error and no signal.
            None => unsafe { LockedFile::map(&found.file) },
            // SAFETY: as above.
            Some(share) => unsafe { LockedFile::with_budget(&found.file, share) },
        }?;
        Ok(Self {
            id: FileId::of(&found.metadata),
            path: found.path,
            len,
            file: found.file,
            locked,
            seen: Vec::new(),
            complaint: None,
        })
    }

    /// Locks the pages that have come into memory since the last look.
    pub fn look(&mut self) -> tenure::Result<()> {
        let resident = files::resident(&self.file, 0..self.len)?;
        let mut result = Ok(());
        let new = without(&resident, &self.seen);
        let bytes: u64 = new.iter().map(|range| range.end - range.start).sum();
        let budget = self.locked.budget_bytes();
        // Pages past the budget would be unlocked at once.
        let mut excess = budget.map_or(0, |budget| bytes.saturating_sub(budget as u64));
        for new in new {
            let skipped = excess.min(new.end - new.start);
            excess -= skipped;
            let start = (new.start + skipped).next_multiple_of(page_size() as u64);
            // The file may be replaced or shorter by now: its other pages are tried all the same.
            result = result.and(self.fault_in(start..new.end));
        }
        self.seen = resident;
        self.locked.trim()?;
        result
    }

    fn fault_in(&self, part: Range<u64>) -> tenure::Result<()> {
        let whole = self.locked.range();
        let start = part.start as usize;
        let end = (part.end as usize).min(whole.len());
        if start >= end {
            return Ok(());
        }
        let pages = PageRange::new(
            whole.start() + start,
            (end - start).next_multiple_of(page_size()),
        )?;
        // SAFETY: the pages belong to the mapping of this value, and no userfaultfd is
        // registered with it.
        unsafe { pages.populate(Access::Read) }
    }

    /// Changes the part of the budget. Files without one need none while all fit.
    pub fn set_share(&mut self, share: Option<usize>) -> tenure::Result<()> {
        let before = self.locked.budget_bytes();
        let whole = self.locked.range().len();
        match share {
            None if before.is_none_or(|before| before >= whole) => Ok(()),
            None => {
                // All of it may be locked again.
                self.seen.clear();
                self.locked.set_budget(whole)
            }
            share if share == before => Ok(()),
            Some(share) => self.locked.set_budget(share),
        }
    }

    /// The length in whole pages.
    pub fn locked_len(&self) -> u64 {
        self.locked.range().len() as u64
    }

    pub fn is_same(&self, id: FileId, len: u64) -> bool {
        (self.id, self.len) == (id, len)
    }
}
