//! Removes what killed tests have left behind: folders and memory cgroups, which name the
//! process that made them. Settings of the machine are restored by a process of the test's
//! own, which outlives it.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use super::privileges::PREFIX;

/// Where memory cgroups are, in their two versions.
const CGROUPS: [&str; 2] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];

/// Removes what processes that have ended left.
pub fn remove_leftovers() {
    for folder in named_below(&env::temp_dir(), 1) {
        // Nobody else's, or it cannot be removed; then it stays.
        let _ = fs::remove_dir_all(folder);
    }
    for root in CGROUPS {
        // Inner groups first.
        let mut groups = named_below(Path::new(root), 4);
        groups.sort_by_key(|group| std::cmp::Reverse(group.components().count()));
        for group in groups {
            let _ = fs::remove_dir(group);
        }
    }
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

    #[test]
    fn folder_of_an_ended_process_is_found_and_of_a_live_one_is_not() {
        let root = tempfile::tempdir().unwrap();
        // Beyond the largest number of a process.
        let ended = root.path().join(format!("{PREFIX}4194305-a"));
        let live = root
            .path()
            .join(format!("{PREFIX}{}-a", std::process::id()));
        for folder in [&ended, &live, &root.path().join("other")] {
            fs::create_dir(folder).unwrap();
        }
        assert_eq!(named_below(root.path(), 1), [ended]);
    }
}
