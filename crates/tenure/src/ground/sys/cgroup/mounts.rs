//! The directories at which the mounts show a cgroup and its ancestors.

use std::path::{Component, Path, PathBuf};

use super::{MemoryCgroup, Version};

/// Returns the directories of the group `own` and of its ancestors, innermost
/// first, in the mount that shows most of them.
pub(super) fn visible_directories(
    root: &Path,
    mountinfo: &str,
    version: &Version,
    own: &Path,
) -> Vec<PathBuf> {
    let shown = mountinfo
        .lines()
        .filter_map(Mount::parse)
        .filter(|mount| version.is_shown_by(mount))
        .map(|mount| mount.directories(root, own));
    shown.max_by_key(Vec::len).unwrap_or_default()
}

impl Version {
    fn is_shown_by(&self, mount: &Mount) -> bool {
        match self.name {
            MemoryCgroup::V1 => {
                mount.kind == "cgroup" && mount.options.split(',').any(|name| name == "memory")
            }
            _ => mount.kind == "cgroup2",
        }
    }
}

/// A line of `/proc/self/mountinfo`.
struct Mount {
    /// The mounted part of the file system. For a cgroup file system, a path as
    /// in `/proc/self/cgroup`, relative to the root of this process's cgroup
    /// namespace.
    root: PathBuf,
    point: PathBuf,
    kind: String,
    options: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let mut after = after.split(' ');
        Some(Self {
            root: PathBuf::from(unescape(before.next()?)),
            point: PathBuf::from(unescape(before.next()?)),
            kind: after.next()?.to_owned(),
            options: after.nth(1)?.to_owned(),
        })
    }

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

/// Decodes mountinfo's octal escapes, such as `\040` for a blank.
fn unescape(field: &str) -> String {
    let mut text = field.to_owned();
    // The backslash comes last, so that it cannot form another escape.
    for (octal, plain) in [(r"\040", " "), (r"\011", "\t"), (r"\012", "\n")] {
        text = text.replace(octal, plain);
    }
    text.replace(r"\134", r"\")
}
