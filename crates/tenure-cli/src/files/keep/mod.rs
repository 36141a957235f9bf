//! `tenure keep`: what is used of files stays in memory.

mod held;
mod notify;
mod signals;
mod watch;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use tenure::Headroom;

use self::held::{Held, HeldFiles};
use self::notify::notify;
use self::signals::Signals;
use self::watch::Watch;
use super::complaints::Complaints;
use super::size_text;
use super::walk::Walk;
use crate::cli::KeepArguments;

/// How often the command looks for pages that have come into memory, at most.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Looks take a twentieth of the time at most.
const LOOK_SHARE: u32 = 20;

/// How often it looks for replaced files where the kernel does not notify it.
const RESCAN_INTERVAL: Duration = Duration::from_secs(10);

/// Files are often replaced several at a time.
const SETTLE: Duration = Duration::from_millis(100);

/// The most files that have a part of the budget each: a thread watches over each.
const MAX_BUDGETED_FILES: usize = 256;

pub fn run(arguments: &KeepArguments, out: &mut impl Write) -> Result<ExitCode> {
    // Before any thread starts, which inherits what is blocked.
    let signals = Signals::block()?;
    held::raise_descriptor_limit();
    let complaints = Complaints::plain();
    let mut watch = Watch::new(&complaints);
    let (found, folders) = find(arguments, &complaints)?;
    watch.folders(&folders, &complaints);
    let total: u64 = found.iter().map(|found| found.metadata.len()).sum();
    ensure!(
        total > 0,
        "there is nothing to keep: no file, or all of them are empty"
    );
    check_headroom(arguments.budget.unwrap_or(total).min(total))?;
    let mut files = HeldFiles::new(arguments.budget, total);
    if files.is_budgeted() && found.len() > MAX_BUDGETED_FILES {
        bail!(
            "{} files of {} do not fit into a budget of {}: a budget that is smaller than the \
             files is for {MAX_BUDGETED_FILES} files at most",
            found.len(),
            size_text(total),
            size_text(arguments.budget.unwrap_or(0))
        );
    }
    for found in found {
        let path = found.path.clone();
        match Held::new(found, &files) {
            Ok(held) => files.insert(held),
            // The next file would be refused as well.
            Err(error @ tenure::Error::LockLimit { .. }) => bail!("{}: {error}", path.display()),
            Err(error) => complaints.fail(&path, error),
        }
    }
    ensure!(!files.is_empty(), "no file can be kept");
    files.look(&complaints);
    writeln!(
        out,
        "keeping what is used of {} files, {}",
        files.len(),
        size_text(total)
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
            let (found, folders) = find(arguments, &complaints)?;
            watch.folders(&folders, &complaints);
            files.follow(found, &complaints);
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

/// Finds the files, and the folders in which others can appear.
fn find(
    arguments: &KeepArguments,
    complaints: &Complaints,
) -> Result<(Vec<super::walk::Found>, Vec<std::path::PathBuf>)> {
    let mut walk = Walk::new(&arguments.tree, complaints)?.with_folders();
    let found: Vec<_> = walk
        .by_ref()
        .filter(|found| found.metadata.len() > 0)
        .collect();
    let mut folders = walk.into_folders();
    for path in &arguments.tree.paths {
        folders.extend(parent(path));
        folders.extend(path.canonicalize().ok().as_deref().and_then(parent));
    }
    folders.sort();
    folders.dedup();
    Ok((found, folders))
}

fn parent(path: &Path) -> Option<std::path::PathBuf> {
    path.parent()
        .map(|parent| match parent.as_os_str().is_empty() {
            true => ".".into(),
            false => parent.to_owned(),
        })
}

/// Locked pages cannot be reclaimed: past the limit of a cgroup the kernel kills.
fn check_headroom(need: u64) -> Result<()> {
    let headroom = Headroom::now()?;
    let most = (headroom.bytes - headroom.bytes / 8) as u64;
    ensure!(
        need <= most,
        "{} may have to stay in memory, and {} leaves {} after an eighth for others: raise that \
         limit, free memory, or give a smaller --budget",
        size_text(need),
        headroom.limit,
        size_text(most)
    );
    Ok(())
}
