//! The files of a command line, opened one by one.

use std::collections::HashSet;
use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use ignore::overrides::{Override, OverrideBuilder};
use ignore::{DirEntry, WalkBuilder};

use super::complaints::Complaints;
use crate::cli::TreeArguments;

/// A regular file that was found and opened.
pub struct Found {
    pub path: PathBuf,
    pub file: File,
    pub metadata: Metadata,
    /// The number of the PATH that led to it.
    pub root: usize,
}

/// Finds the files of all paths, in order; what cannot be opened is a complaint.
pub struct Walk<'a> {
    arguments: &'a TreeArguments,
    complaints: &'a Complaints,
    next_root: usize,
    folder: Option<ignore::Walk>,
    /// Files that may be met again.
    seen: HashSet<(u64, u64)>,
    /// The folders that were met, if they are wanted.
    folders: Option<Vec<PathBuf>>,
}

impl<'a> Walk<'a> {
    /// Checks the patterns.
    pub fn new(arguments: &'a TreeArguments, complaints: &'a Complaints) -> Result<Self> {
        overrides(Path::new("/"), arguments)?;
        Ok(Self {
            arguments,
            complaints,
            next_root: 0,
            folder: None,
            seen: HashSet::new(),
            folders: None,
        })
    }

    /// Also lists the folders.
    pub fn with_folders(self) -> Self {
        let folders = Some(Vec::new());
        Self { folders, ..self }
    }

    /// Returns the folders that were met.
    pub fn into_folders(self) -> Vec<PathBuf> {
        self.folders.unwrap_or_default()
    }

    /// Begins with the next PATH. Returns it if it is a file.
    fn begin(&mut self, path: &Path) -> Option<Found> {
        match fs::metadata(path) {
            Err(error) if is_dangling(path, &error) => self.complaints.fail(path, DANGLING),
            Err(error) => self.complaints.fail(path, reason(&error)),
            Ok(metadata) if metadata.is_dir() => {
                // The patterns were checked.
                let overrides =
                    overrides(path, self.arguments).unwrap_or_else(|_| Override::empty());
                let walk = WalkBuilder::new(path)
                    .standard_filters(false)
                    .overrides(overrides)
                    .follow_links(self.arguments.follow)
                    .same_file_system(self.arguments.one_file_system)
                    .sort_by_file_name(Ord::cmp)
                    .build();
                self.folder = Some(walk);
            }
            Ok(metadata) if metadata.is_file() => return self.open(path.to_owned(), true),
            Ok(metadata) => {
                let kind = kind(metadata.file_type());
                self.complaints
                    .fail(path, format!("is {kind}, which has no pages of a file"));
            }
        }
        None
    }

    fn entry(&mut self, entry: Result<DirEntry, ignore::Error>) -> Option<Found> {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                self.complain(&error);
                return None;
            }
        };
        match entry.file_type() {
            Some(kind) if kind.is_file() => self.open(entry.into_path(), false),
            Some(kind) if kind.is_dir() => {
                if let Some(folders) = &mut self.folders {
                    folders.push(entry.into_path());
                }
                None
            }
            _ => None,
        }
    }

    fn complain(&self, error: &ignore::Error) {
        match path_of(error).zip(error.io_error()) {
            Some((path, error)) if is_dangling(path, error) => {
                self.complaints.note(path, DANGLING);
            }
            Some((path, error)) if error.kind() == ErrorKind::NotFound => {
                self.complaints.note(path, "removed meanwhile");
            }
            _ => self.complaints.fail_line(&format!("tenure: {error}")),
        }
    }

    fn open(&mut self, path: PathBuf, is_named: bool) -> Option<Found> {
        match open(&path) {
            Ok((file, metadata)) if metadata.is_file() => {
                let is_new = !self.may_come_again(&metadata)
                    || self.seen.insert((metadata.dev(), metadata.ino()));
                let root = self.next_root - 1;
                is_new.then_some(Found {
                    path,
                    file,
                    metadata,
                    root,
                })
            }
            Ok(_) => {
                self.complaints
                    .fail(&path, "was replaced by something that is no file");
                None
            }
            Err(error) if error.kind() == ErrorKind::NotFound && !is_named => {
                self.complaints.note(&path, "removed meanwhile");
                None
            }
            Err(error) => {
                self.complaints.fail(&path, reason(&error));
                None
            }
        }
    }

    fn may_come_again(&self, metadata: &Metadata) -> bool {
        metadata.nlink() > 1 || self.arguments.follow || self.arguments.paths.len() > 1
    }
}

impl Iterator for Walk<'_> {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        loop {
            if let Some(folder) = &mut self.folder {
                match folder.next() {
                    Some(entry) => match self.entry(entry) {
                        Some(found) => return Some(found),
                        None => continue,
                    },
                    None => self.folder = None,
                }
            }
            let path = self.arguments.paths.get(self.next_root)?;
            self.next_root += 1;
            if let Some(found) = self.begin(path) {
                return Some(found);
            }
        }
    }
}

const DANGLING: &str = "is a symbolic link to nothing";

/// Whether the error is that the file behind a symbolic link is absent.
fn is_dangling(path: &Path, error: &io::Error) -> bool {
    let is_link = || fs::symlink_metadata(path).is_ok_and(|it| it.is_symlink());
    error.kind() == ErrorKind::NotFound && is_link()
}

/// Returns the path that an error is about.
fn path_of(error: &ignore::Error) -> Option<&Path> {
    match error {
        ignore::Error::WithPath { path, .. } => Some(path),
        ignore::Error::WithDepth { err, .. } | ignore::Error::WithLineNumber { err, .. } => {
            path_of(err)
        }
        _ => None,
    }
}

/// Opens a file for reading. One that has become a pipe meanwhile does not block.
pub fn open(path: &Path) -> io::Result<(File, Metadata)> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let metadata = file.metadata()?;
    Ok((file, metadata))
}

/// An error without the path, which the complaint names.
pub fn reason(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "does not exist".to_owned(),
        ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

fn kind(kind: FileType) -> &'static str {
    match () {
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_block_device() || kind.is_char_device() => "a device",
        () => "no regular file",
    }
}

/// The patterns below a folder: files must match one of those to include, if there are any.
fn overrides(folder: &Path, arguments: &TreeArguments) -> Result<Override> {
    let mut builder = OverrideBuilder::new(folder);
    // The last pattern that matches decides.
    for glob in &arguments.include {
        builder
            .add(glob)
            .with_context(|| format!("--include {glob}"))?;
    }
    for glob in &arguments.exclude {
        builder
            .add(&format!("!{glob}"))
            .with_context(|| format!("--exclude {glob}"))?;
    }
    Ok(builder.build()?)
}
