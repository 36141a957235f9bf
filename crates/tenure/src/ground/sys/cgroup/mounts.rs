//! Where the mounts show a cgroup and the ones around it.

use std::path::{Component, Path, PathBuf};

use super::{MemoryCgroup, Version};

/// The folders of the group `own` and of those around it, innermost first, in
/// the mount that shows most of them.
pub(super) fn visible_folders(
    root: &Path,
    mountinfo: &str,
    version: &Version,
    own: &Path,
) -> Vec<PathBuf> {
    let shown = mountinfo
        .lines()
        .filter_map(Mount::parse)
        .filter(|mount| version.is_shown_by(mount))
        .map(|mount| mount.folders(root, own));
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
    /// What of the file system is mounted. Of a cgroup file system: a path as
    /// in `/proc/self/cgroup`, seen from the root of our cgroup namespace.
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

    /// Those of `own` and the groups around it that this mount shows.
    fn folders(&self, root: &Path, own: &Path) -> Vec<PathBuf> {
        let point = root.join(self.point.strip_prefix("/").unwrap_or(&self.point));
        let inside = match own.strip_prefix(&self.root) {
            // Beside the mount, not in it: we were moved out of our namespace.
            Ok(inside) if inside.starts_with("..") => return Vec::new(),
            Ok(inside) => inside,
            // The mount begins above our cgroup namespace (`/..`): the names
            // between are hidden from us, its top is still around our group.
            Err(_) if ascent(&self.root) > ascent(own) => Path::new(""),
            Err(_) => return Vec::new(),
        };
        let folder = |group: &Path| match group.as_os_str().is_empty() {
            true => point.clone(),
            false => point.join(group),
        };
        inside.ancestors().map(folder).collect()
    }
}

/// How many levels above the root of the namespace a path ends: 2 for
/// `/../..`, none for one that then goes down again.
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

/// Blanks and the like are octal in mountinfo: `\040`.
fn unescape(field: &str) -> String {
    let mut text = field.to_owned();
    // The backslash last: what it stands for is not to be read again.
    for (octal, plain) in [(r"\040", " "), (r"\011", "\t"), (r"\012", "\n")] {
        text = text.replace(octal, plain);
    }
    text.replace(r"\134", r"\")
}
