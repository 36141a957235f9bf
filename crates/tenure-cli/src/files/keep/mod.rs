//! `tenure keep`: what is used of files stays in memory.

mod all;
mod bounds;
mod descriptors;
mod held;
mod notify;
mod ranges;
mod signals;
mod watch;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use self::all::HeldFiles;
use self::descriptors::Descriptors;
use self::notify::notify;
use self::signals::Signals;
use self::watch::Watch;
use super::complaints::Complaints;
use super::size_text;
use super::walk::{Found, Walk};
use crate::cli::KeepArguments;

/// How often the command looks for pages that have come into memory, at most.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Looks take a twentieth of the time at most.
const LOOK_SHARE: u32 = 20;

/// How often it looks for replaced files where the kernel does not notify it.
const RESCAN_INTERVAL: Duration = Duration::from_secs(10);

/// Files are often replaced several at a time.
const SETTLE: Duration = Duration::from_millis(100);

pub fn run(arguments: &KeepArguments, out: &mut impl Write) -> Result<ExitCode> {
    // Before any thread starts, which inherits what is blocked.
    let signals = Signals::block()?;
    let mut descriptors = Descriptors::raise();
    let complaints = Complaints::plain();
    let mut watch = Watch::new(&complaints);
    let max_files = descriptors.max_files();
    let tree = find(arguments, &complaints, max_files, |_| true)?;
    watch.folders(&tree.folders, &complaints);
    descriptors.tell(&tree.left_out, &complaints);
    ensure!(
        !tree.found.is_empty(),
        "there is nothing to keep: no file, or all of them are empty"
    );
    let mut files = HeldFiles::start(tree.found, arguments.budget, &complaints)?;
    files.look(&complaints);
    writeln!(
        out,
        "keeping what is used of {} files, {}",
        files.len(),
        size_text(files.len_bytes())
    )?;
    out.flush()?;
    notify("READY=1\nSTATUS=keeping files in memory", &complaints);
    let mut looked = Instant::now();
    let mut interval = LOOK_INTERVAL;
    let mut rescan_at = None;
    loop {
        let wait = interval.saturating_sub(looked.elapsed());
        let wait = rescan_at.map_or(wait, |at: Instant| {
            wait.min(at.saturating_duration_since(Instant::now()))
        });
        if signals.wait(&watch, wait)? {
            break;
        }
        if watch.has_changed() && rescan_at.is_none() {
            rescan_at = Some(Instant::now() + SETTLE);
        }
        if rescan_at.is_some_and(|at| at <= Instant::now()) {
            rescan_at = (!watch.is_complete()).then(|| Instant::now() + RESCAN_INTERVAL);
            let max_files = descriptors.max_files().saturating_sub(files.len());
            let tree = find(arguments, &complaints, max_files, |found| {
                files.is_new(found)
            })?;
            watch.folders(&tree.folders, &complaints);
            descriptors.tell(&tree.left_out, &complaints);
            files.follow(tree.found, &complaints);
        } else if !watch.is_complete() && rescan_at.is_none() {
            rescan_at = Some(Instant::now() + RESCAN_INTERVAL);
        }
        if looked.elapsed() >= interval {
            let began = Instant::now();
            files.look(&complaints);
            looked = Instant::now();
            interval = LOOK_INTERVAL.max(LOOK_SHARE * began.elapsed());
        }
    }
    notify("STOPPING=1", &complaints);
    Ok(ExitCode::SUCCESS)
}

/// The files below the paths.
struct Tree {
    /// The files that are wanted, opened.
    found: Vec<Found>,
    /// Those for which no descriptor is left.
    left_out: Vec<PathBuf>,
    /// Folders in which others can appear.
    folders: Vec<PathBuf>,
}

/// Finds the files that are wanted. Of those `max_files` stay open, and of the others none: all
/// at once would need a second descriptor for each file that is kept.
fn find(
    arguments: &KeepArguments,
    complaints: &Complaints,
    max_files: usize,
    is_wanted: impl Fn(&Found) -> bool,
) -> Result<Tree> {
    let mut walk = Walk::new(&arguments.tree, complaints)?.with_folders();
    let (mut found, mut left_out) = (Vec::new(), Vec::new());
    for file in walk.by_ref() {
        if file.metadata.len() == 0 || !is_wanted(&file) {
            continue;
        }
        match found.len() < max_files {
            true => found.push(file),
            false => left_out.push(file.path),
        }
    }
    let mut folders = walk.into_folders();
    for path in &arguments.tree.paths {
        folders.extend(parent(path));
        folders.extend(path.canonicalize().ok().as_deref().and_then(parent));
    }
    folders.sort();
    folders.dedup();
    Ok(Tree {
        found,
        left_out,
        folders,
    })
}

fn parent(path: &Path) -> Option<PathBuf> {
    path.parent()
        .map(|parent| match parent.as_os_str().is_empty() {
            true => ".".into(),
            false => parent.to_owned(),
        })
}
