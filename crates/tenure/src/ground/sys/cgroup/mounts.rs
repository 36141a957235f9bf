//! The directories at which the mounts show a cgroup and its ancestors.

use std::path::{Component, Path, PathBuf};

use super::super::mountinfo::{self, Mount};
use super::{MemoryCgroup, Version, names_memory};

/// Returns the directories of the group `own` and of its ancestors, innermost
/// first, in the mount that shows most of them.
pub(super) fn visible_directories(
    root: &Path,
    mountinfo: &[u8],
    version: &Version,
    own: &Path,
) -> Vec<PathBuf> {
    let shown = mountinfo::parse(mountinfo)
        .filter(|mount| version.is_shown_by(mount))
        .map(|mount| mount.directories(root, own));
    shown.max_by_key(Vec::len).unwrap_or_default()
}

impl Version {
    fn is_shown_by(&self, mount: &Mount) -> bool {
        match self.name {
            MemoryCgroup::V1 => mount.kind == b"cgroup" && names_memory(&mount.options),
            _ => mount.kind == b"cgroup2",
        }
    }
}

impl Mount {
    /// Returns the directories of `own` and its ancestors that this mount
    /// shows.
    fn directories(&self, root: &Path, own: &Path) -> Vec<PathBuf> {
        let point = root.join(self.point.strip_prefix("/").unwrap_or(&self.point));
        let inside = match own.strip_prefix(&self.root) {
            // The group is outside the mount: the process was moved out of its
            // namespace.
            Ok(inside) if inside.starts_with("..") => return Vec::new(),
            Ok(inside) => inside,
            // The mount starts above the cgroup namespace (`/..`). The names
            // between are hidden, but its top is still an ancestor of the
            // group.
            Err(_) if ascent(&self.root) > ascent(own) => Path::new(""),
            Err(_) => return Vec::new(),
        };
        let directory = |group: &Path| match group.as_os_str().is_empty() {
            true => point.clone(),
            false => point.join(group),
        };
        inside.ancestors().map(directory).collect()
    }
}

/// Returns how many levels above the root of the namespace a path ends: 2 for
/// `/../..`, 0 for one that then descends again.
fn ascent(path: &Path) -> usize {
    let mut levels = 0;
    for component in path.components() {
        match component {
            Component::ParentDir => levels += 1,
            Component::Normal(_) => return 0,
            _ => {}
        }
    }
    levels
}
