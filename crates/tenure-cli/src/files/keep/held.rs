//! The files that are kept.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use tenure::{Access, LockedFile, PageRange, files, page_size};

use crate::files::complaints::Complaints;
use crate::files::holders::FileId;
use crate::files::walk::Found;

/// A file whose used pages stay in memory.
pub struct Held {
    path: PathBuf,
    id: FileId,
    len: u64,
    file: File,
    locked: LockedFile,
    /// The ranges that were resident at the last look.
    seen: Vec<Range<u64>>,
    /// The last complaint, which is not repeated.
    complaint: Option<String>,
}

impl Held {
    pub fn new(found: Found, all: &HeldFiles) -> tenure::Result<Self> {
        let len = found.metadata.len();
        let locked = match all.share(len) {
            // SAFETY: nothing reads the mapping here. It is only faulted in, where a page that
            // the file has lost is an error and no signal.
            None => unsafe { LockedFile::map(&found.file) },
            // SAFETY: as above.
            Some(budget) => unsafe { LockedFile::with_budget(&found.file, budget) },
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
    fn look(&mut self) -> tenure::Result<()> {
        let resident = files::resident(&self.file, 0..self.len)?;
        let mut result = Ok(());
        for new in without(&resident, &self.seen) {
            // The file may be replaced or shorter by now: its other pages are tried all the same.
            result = result.and(self.fault_in(new));
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

    fn is_same(&self, id: FileId, len: u64) -> bool {
        (self.id, self.len) == (id, len)
    }
}

/// All of them, by path.
pub struct HeldFiles {
    files: BTreeMap<PathBuf, Held>,
    budget: Option<u64>,
    total: u64,
}

impl HeldFiles {
    /// A budget that all files fit into is none.
    pub fn new(budget: Option<u64>, total: u64) -> Self {
        Self {
            files: BTreeMap::new(),
            budget: budget.filter(|&budget| budget < total),
            total,
        }
    }

    pub fn is_budgeted(&self) -> bool {
        self.budget.is_some()
    }

    pub fn len(&self) -> usize {
        self.files.len()
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    pub fn insert(&mut self, held: Held) {
        self.files.insert(held.path.clone(), held);
    }

    /// The part of the budget for a file of this length: in proportion.
    fn share(&self, len: u64) -> Option<usize> {
        let budget = self.budget?;
        let share = u128::from(budget) * u128::from(len) / u128::from(self.total.max(len));
        Some((share as usize).max(page_size()))
    }

    /// Locks what has come into memory.
    pub fn look(&mut self, complaints: &Complaints) {
        for held in self.files.values_mut() {
            let complaint = held.look().err().map(|error| error.to_string());
            if let Some(text) = &complaint
                && held.complaint != complaint
            {
                complaints.note(&held.path, text);
            }
            held.complaint = complaint;
        }
    }

    /// Follows files that were replaced, have come or have gone. A file that cannot be
    /// looked at stays as it is.
    pub fn follow(&mut self, found: Vec<Found>, complaints: &Complaints) {
        for found in found {
            let (id, len) = (FileId::of(&found.metadata), found.metadata.len());
            let path = found.path.clone();
            if self
                .files
                .get(&path)
                .is_some_and(|held| held.is_same(id, len))
            {
                continue;
            }
            match self.replace(found) {
                Ok(()) => complaints.note(&path, "is followed"),
                Err(error) => complaints.note(&path, error),
            }
        }
        self.files.retain(|path, _| {
            let is_there = is_there(path);
            if !is_there {
                complaints.note(path, "is gone");
            }
            is_there
        });
    }

    fn replace(&mut self, found: Found) -> tenure::Result<()> {
        let path = found.path.clone();
        let again = found.file.try_clone().ok();
        let metadata = found.metadata.clone();
        let held = match Held::new(found, self) {
            // Both versions may exceed the limit: then the old one, which nobody can open
            // any more, goes first.
            Err(error @ tenure::Error::LockLimit { .. }) => {
                let (Some(file), Some(_)) = (again, self.files.remove(&path)) else {
                    return Err(error);
                };
                let root = 0;
                Held::new(
                    Found {
                        path,
                        file,
                        metadata,
                        root,
                    },
                    self,
                )?
            }
            held => held?,
        };
        self.insert(held);
        Ok(())
    }
}

/// Whether the path leads to something, or that cannot be told.
fn is_there(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
    }
}

/// Returns the parts of `ranges` that are in none of `others`. Both are in order.
fn without(ranges: &[Range<u64>], others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    let mut others = others.iter().peekable();
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            while others.next_if(|other| other.end <= at).is_some() {}
            let next = others.peek().map_or(range.end..range.end, |other| {
                other.start.clamp(at, range.end)..other.end.clamp(at, range.end)
            });
            if at < next.start {
                left.push(at..next.start);
            }
            at = next.end.max(next.start);
        }
    }
    left
}

/// Lets the process open as many files as it may: each file that is kept stays open.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // Where it is refused, the limit that there is holds.
    let _ = setrlimit(Resource::Nofile, raised);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_ranges_are_those_not_seen_before() {
        let ranges = |pairs: &[(u64, u64)]| -> Vec<Range<u64>> {
            pairs.iter().map(|&(start, end)| start..end).collect()
        };
        let check = |now: &[(u64, u64)], seen: &[(u64, u64)], new: &[(u64, u64)]| {
            let found = without(&ranges(now), &ranges(seen));
            assert_eq!(found, ranges(new), "{now:?} {seen:?}");
        };
        check(&[], &[(0, 9)], &[]);
        check(&[(0, 9)], &[], &[(0, 9)]);
        check(&[(0, 9)], &[(0, 9)], &[]);
        check(&[(0, 9)], &[(3, 5)], &[(0, 3), (5, 9)]);
        check(
            &[(2, 4), (6, 9)],
            &[(0, 3), (7, 8)],
            &[(3, 4), (6, 7), (8, 9)],
        );
        check(&[(2, 4), (6, 9)], &[(0, 20)], &[]);
        check(&[(5, 9)], &[(0, 2), (9, 12)], &[(5, 9)]);
        check(&[(0, 2), (4, 6), (8, 10)], &[(1, 9)], &[(0, 1), (9, 10)]);
    }
}
