//! All files that are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use tenure::{files, page_size};

use super::bounds::Bounds;
use super::held::Held;
use crate::files::complaints::Complaints;
use crate::files::holders::FileId;
use crate::files::walk::Found;

/// The files by path.
pub struct HeldFiles {
    files: BTreeMap<PathBuf, Held>,
    budget: Option<u64>,
    /// Files that cannot be kept: said once.
    left_out: BTreeSet<PathBuf>,
}

impl HeldFiles {
    /// Keeps the files that are there at the start, or says why they cannot be kept. A file
    /// that cannot be kept for a reason of its own is left out.
    pub fn start(
        mut found: Vec<Found>,
        budget: Option<u64>,
        complaints: &Complaints,
    ) -> Result<Self> {
        found.retain(|found| match files::residency(&found.file, 0..1) {
            Ok(_) => true,
            Err(error) => {
                complaints.fail(&found.path, error);
                false
            }
        });
        let mut all = Self {
            files: BTreeMap::new(),
            budget,
            left_out: BTreeSet::new(),
        };
        let total = found.iter().map(|found| whole_pages(&found.metadata)).sum();
        if let Err(why) = Bounds::now(budget, 0)?.check(total, found.len()) {
            bail!(why);
        }
        for found in found {
            let path = found.path.clone();
            let share = all.share(whole_pages(&found.metadata), total);
            match Held::new(found, share) {
                Ok(held) => all.insert(held),
                // The next file would be refused as well.
                Err(error @ tenure::Error::LockLimit { .. }) => {
                    bail!("{}: {error}", path.display())
                }
                Err(error) => {
                    complaints.fail(&path, error);
                    all.left_out.insert(path);
                }
            }
        }
        ensure!(!all.files.is_empty(), "no file can be kept");
        Ok(all)
    }

    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// The length of all files, in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.files.values().map(|held| held.len).sum()
    }

    fn insert(&mut self, held: Held) {
        self.left_out.remove(&held.path);
        self.files.insert(held.path.clone(), held);
    }

    /// The part of the budget for a file of this length, in proportion: all parts together
    /// are no more than the budget. A budget that all files fit into is none.
    fn share(&self, len: u64, total: u64) -> Option<usize> {
        let budget = self.budget.filter(|&budget| budget < total)?;
        let share = u128::from(budget) * u128::from(len) / u128::from(total);
        Some(share as usize)
    }

    /// The length of all files in whole pages.
    fn total(&self) -> u64 {
        self.files.values().map(Held::locked_len).sum()
    }

    /// Shares the budget out among files of this length.
    fn share_out(&mut self, total: u64, complaints: &Complaints) {
        let shares = self
            .files
            .values()
            .map(|held| self.share(held.locked_len(), total));
        let shares: Vec<_> = shares.collect();
        let mut failed = Vec::new();
        for (held, share) in self.files.values_mut().zip(shares) {
            if let Err(error) = held.set_share(share) {
                failed.push((held.path.clone(), error));
            }
        }
        for (path, error) in failed {
            // Without the bound of its part the budget would not hold.
            self.files.remove(&path);
            self.leave_out(&path, error, complaints);
        }
    }

    fn leave_out(&mut self, path: &Path, why: impl std::fmt::Display, complaints: &Complaints) {
        if self.left_out.insert(path.to_owned()) {
            complaints.note(path, format_args!("is left out: {why}"));
        }
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

    /// Whether a file is not kept yet, or not this version.
    pub fn is_new(&self, found: &Found) -> bool {
        let (id, len) = (FileId::of(&found.metadata), found.metadata.len());
        let held = self.files.get(&found.path);
        held.is_none_or(|held| !held.is_same(id, len))
    }

    /// Follows files that were replaced or have come, which are new, and those that have gone.
    /// A file that cannot be looked at stays as it is.
    pub fn follow(&mut self, mut found: Vec<Found>, complaints: &Complaints) {
        self.files.retain(|path, _| {
            let is_there = is_there(path);
            if !is_there {
                complaints.note(path, "is gone");
            }
            is_there
        });
        self.left_out.retain(|path| is_there(path));
        let total = self.admit(&mut found, complaints);
        // The new files take of the parts of the others.
        self.share_out(total, complaints);
        for found in found {
            let path = found.path.clone();
            match self.replace(found, total) {
                Ok(()) => complaints.note(&path, "is followed"),
                Err(error) => self.leave_out(&path, error, complaints),
            }
        }
        self.share_out(self.total(), complaints);
    }

    /// Leaves out the files for which there is no headroom, or that are too many for the
    /// budget. Returns the length of all files with those that stay in `found`.
    fn admit(&mut self, found: &mut Vec<Found>, complaints: &Complaints) -> u64 {
        let (mut total, mut count) = (self.total(), self.len());
        if found.is_empty() {
            return total;
        }
        let locked = self.files.values().map(|held| held.locked.locked_bytes());
        let locked: usize = locked.map(|bytes| bytes.unwrap_or(0)).sum();
        let bounds = Bounds::now(self.budget, locked as u64);
        found.retain(|found| {
            let old = self.files.get(&found.path);
            if let Some(old) = old {
                total -= old.locked_len();
                count -= 1;
            }
            let len = whole_pages(&found.metadata);
            let fits = match &bounds {
                Ok(bounds) => bounds.check(total + len, count + 1),
                Err(error) => Err(error.to_string()),
            };
            match fits {
                Ok(()) => {
                    total += len;
                    count += 1;
                    true
                }
                Err(why) => {
                    // Nobody can open the old version any more.
                    self.files.remove(&found.path);
                    self.leave_out(&found.path, why, complaints);
                    false
                }
            }
        });
        total
    }

    fn replace(&mut self, found: Found, total: u64) -> tenure::Result<()> {
        let path = found.path.clone();
        let again = found.file.try_clone().ok();
        let metadata = found.metadata.clone();
        let share = self.share(whole_pages(&metadata), total);
        let held = match Held::new(found, share) {
            // Both versions may exceed the limit: then the old one, which nobody can open
            // any more, goes first.
            Err(error @ tenure::Error::LockLimit { .. }) => {
                let (Some(file), Some(_)) = (again, self.files.remove(&path)) else {
                    return Err(error);
                };
                let root = 0;
                let again = Found {
                    path,
                    file,
                    metadata,
                    root,
                };
                Held::new(again, share)?
            }
            held => held?,
        };
        self.insert(held);
        Ok(())
    }
}

/// The length of a file in whole pages, which are what is locked.
fn whole_pages(metadata: &fs::Metadata) -> u64 {
    metadata.len().next_multiple_of(page_size() as u64)
}

/// Whether the path leads to something, or that cannot be told.
fn is_there(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
    }
}
