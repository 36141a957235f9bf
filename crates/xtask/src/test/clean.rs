//! Removes what killed runs have left behind: folders, which nobody locks any more, and
//! memory cgroups, which name the process that made them. Settings of the machine are
//! restored by a process of the test's own, which outlives it.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use rustix::fs::{FlockOperation, flock};

use super::run_folder::PREFIX;

/// Where memory cgroups are, in their two versions.
const CGROUPS: [&str; 2] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];

/// Removes what runs that have ended left.
pub fn remove_leftovers() {
    let folders = named_below(&env::temp_dir(), 1).into_iter();
    folders
        .filter(|it| is_unlocked(it))
        .for_each(|it| remove(&it));
    remove_cgroups();
}

/// Removes the cgroups of tests that have ended.
pub fn remove_cgroups() {
    for root in CGROUPS {
        // Inner groups first.
        let mut groups = named_below(Path::new(root), 4);
        groups.sort_by_key(|group| std::cmp::Reverse(group.components().count()));
        for group in groups {
            let _ = fs::remove_dir(group);
        }
    }
}

/// Removes a folder, also what a test has closed in it.
pub fn remove(folder: &Path) {
    if fs::remove_dir_all(folder).is_err() {
        let mut chmod = Command::new("chmod");
        let _ = chmod.args(["-R", "u+rwX"]).arg(folder).output();
        // It is another user's, or its removal fails; then it stays.
        let _ = fs::remove_dir_all(folder);
    }
}

/// Whether neither a runner nor a supervisor of its tests holds a run's folder: their
/// process numbers mean nothing in another container that shares the folder.
fn is_unlocked(folder: &Path) -> bool {
    let lock = |it| flock(it, FlockOperation::NonBlockingLockExclusive).is_ok();
    File::open(folder).is_ok_and(lock)
}

/// The folders below `root` that are called by a process which has ended.
fn named_below(root: &Path, depth: usize) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        if !path.is_dir() || path.is_symlink() {
            continue;
        }
        if depth > 1 {
            found.extend(named_below(&path, depth - 1));
        }
        let name = path.file_name().and_then(|name| name.to_str());
        let rest = name.and_then(|name| name.strip_prefix(PREFIX));
        let pid = rest.and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            found.push(path);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beyond the largest number of a process.
    const ENDED: u32 = 4_194_305;

    #[test]
    fn folder_of_an_ended_process_is_found_and_of_a_live_one_is_not() {
        let root = tempfile::tempdir().unwrap();
        let ended = root.path().join(format!("{PREFIX}{ENDED}-a"));
        let live = root
            .path()
            .join(format!("{PREFIX}{}-a", std::process::id()));
        for folder in [&ended, &live, &root.path().join("other")] {
            fs::create_dir(folder).unwrap();
        }
        assert_eq!(named_below(root.path(), 1), [ended]);
    }

    #[test]
    fn folder_of_an_ended_process_with_a_live_supervisor_is_locked() {
        let folder = tempfile::tempdir().unwrap();
        let supervisor = File::open(folder.path()).unwrap();
        flock(&supervisor, FlockOperation::LockShared).unwrap();
        assert!(!is_unlocked(folder.path()));
        drop(supervisor);
        assert!(is_unlocked(folder.path()));
    }
}
