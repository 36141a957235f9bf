//! Sums over the files of folders.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tenure::files::FileResidency;

use super::Row;
use crate::files::walk::Found;

/// The files of a folder and of those below it.
#[derive(Clone, Copy)]
struct Sum {
    files: u64,
    len_bytes: u64,
    all: FileResidency,
}

/// Sums for each PATH that is a folder, for those below it down to a depth, and for all.
pub struct Sums<'a> {
    roots: &'a [PathBuf],
    depth: usize,
    /// By the number of the PATH, then by folder.
    folders: BTreeMap<(usize, PathBuf), Sum>,
    total: Sum,
}

impl<'a> Sums<'a> {
    pub fn new(roots: &'a [PathBuf], depth: usize) -> Self {
        Self {
            roots,
            depth,
            folders: BTreeMap::new(),
            total: Sum::NONE,
        }
    }

    pub fn add(&mut self, found: &Found, all: FileResidency) {
        let len = found.metadata.len();
        self.total.add(len, all);
        let root = self.roots[found.root].as_path();
        // A PATH that is a file itself has no sum.
        let below = found.path.strip_prefix(root).ok();
        let below = below.filter(|below| !below.as_os_str().is_empty());
        let Some(below) = below.and_then(Path::parent) else {
            return;
        };
        let mut folder = root.to_owned();
        self.add_to(found.root, folder.clone(), len, all);
        for name in below.components().take(self.depth) {
            folder.push(name);
            self.add_to(found.root, folder.clone(), len, all);
        }
    }

    fn add_to(&mut self, root: usize, folder: PathBuf, len: u64, all: FileResidency) {
        let sum = self.folders.entry((root, folder)).or_insert(Sum::NONE);
        sum.add(len, all);
    }

    pub fn folders(&self) -> impl Iterator<Item = Row> {
        let folders = self.folders.iter();
        folders.map(|((_, folder), sum)| sum.row(folder.clone()))
    }

    /// The sum of all, where it is not the only one.
    pub fn total(&self) -> Option<Row> {
        (self.roots.len() > 1).then(|| self.all())
    }

    pub fn all(&self) -> Row {
        self.total.row("total".into())
    }
}

impl Sum {
    const NONE: Self = Self {
        files: 0,
        len_bytes: 0,
        all: FileResidency::NONE,
    };

    fn add(&mut self, len: u64, all: FileResidency) {
        self.files += 1;
        self.len_bytes += len;
        self.all = self.all + all;
    }

    fn row(&self, path: PathBuf) -> Row {
        Row::new(path, Some(self.files), self.len_bytes, self.all)
    }
}
