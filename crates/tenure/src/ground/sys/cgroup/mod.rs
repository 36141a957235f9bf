//! The memory cgroup of this process, and the ones around it.
//!
//! Where the kernel shows them is looked up each time: version 1 and 2 may both
//! be mounted, anywhere, and a container may see a part of the tree only. What
//! cannot be seen or read bounds nothing here.

mod events;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod mounts;

pub(crate) use events::Events;

use std::fs;
use std::path::{Path, PathBuf};

use procfs::{FromBufRead, ProcessCGroups};

/// Which cgroup version controls this process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryCgroup {
    /// The memory controller of cgroup v1.
    V1,
    /// The unified hierarchy.
    V2,
    /// Neither, or `/proc` does not say.
    None,
}

pub(crate) fn memory_cgroup() -> MemoryCgroup {
    memory_group(&own_groups(Path::new("/")))
        .map_or(MemoryCgroup::None, |(version, _)| version.name)
}

/// A memory cgroup that has a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LimitedGroup {
    /// Its folder.
    pub(crate) path: PathBuf,
    pub(crate) limit_bytes: usize,
    /// What it and the groups in it use, page cache included.
    pub(crate) usage_bytes: usize,
    /// The part of the usage on the list that the kernel takes from first: page
    /// cache that was not used of late, and memory that was freed lazily, also
    /// if it has been taken back since.
    pub(crate) inactive_file_bytes: usize,
    /// The part that is page cache in use.
    pub(crate) active_file_bytes: usize,
    /// The part of the usage that is page cache, without shared memory.
    pub(crate) page_cache_bytes: usize,
}

/// A limit that is looked at often: some ten microseconds. Its files are opened
/// each time, for a program may close descriptors that it did not open, and the
/// numbers be other files' then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    folder: PathBuf,
    limit_bytes: usize,
    version: &'static Version,
}

impl Limit {
    /// How often it was met ([`Events::hits`]).
    pub(crate) fn hits(&self) -> u64 {
        events::hits(&self.folder, self.version.name)
    }

    /// Its size, and what of it is unused, in bytes; `None` where the kernel
    /// does not tell.
    pub(crate) fn unused(&self) -> Option<(usize, usize)> {
        let usage: usize = read(&self.folder.join(self.version.usage))
            .trim()
            .parse()
            .ok()?;
        Some((self.limit_bytes, self.limit_bytes.saturating_sub(usage)))
    }
}

/// The groups that limit this process: its own and those around it, innermost
/// first, as far up as the mounts show them.
pub(crate) fn limited_groups() -> Vec<LimitedGroup> {
    Groups::find().limited()
}

/// The folders of this process's group and of those around it, innermost first,
/// as far up as the mounts show them.
pub(crate) struct Groups {
    /// Where memory is controlled.
    memory: Option<(&'static Version, Vec<PathBuf>)>,
    /// In the unified hierarchy, which tells about stalls also where memory is
    /// controlled by version 1.
    unified: Vec<PathBuf>,
}

impl Groups {
    pub(crate) fn find() -> Self {
        Self::find_below(Path::new("/"))
    }

    /// The same for a recorded tree, which has its `proc` and `sys` in `root`.
    pub(crate) fn find_below(root: &Path) -> Self {
        let own = own_groups(root);
        let mountinfo = read(&root.join("proc/self/mountinfo"));
        let folders = |version, own: &Path| mounts::visible_folders(root, &mountinfo, version, own);
        let unified = unified_group(&own).map(|own| folders(&VERSION_2, &own));
        Self {
            memory: memory_group(&own).map(|(version, own)| (version, folders(version, &own))),
            unified: unified.unwrap_or_default(),
        }
    }

    /// Those that have a limit on memory.
    pub(crate) fn limited(&self) -> Vec<LimitedGroup> {
        let Some((version, folders)) = &self.memory else {
            return Vec::new();
        };
        let mut groups = Vec::new();
        for (index, folder) in folders.iter().enumerate() {
            // Version 1 before Linux 5.11 can leave what is inside uncharged.
            if index > 0 && read(&folder.join("memory.use_hierarchy")).trim() == "0" {
                break;
            }
            groups.extend(limited_group(folder, version));
        }
        groups
    }

    /// What has happened at the limit of one of them.
    pub(crate) fn events(&self, group: &LimitedGroup) -> Events {
        let version = self.memory.as_ref().map(|(version, _)| version.name);
        version.map_or_else(Events::default, |version| {
            Events::read(&group.path, version)
        })
    }

    /// These limits, to be looked at often.
    pub(crate) fn limits(&self, groups: &[LimitedGroup]) -> Vec<Limit> {
        let Some((version, _)) = &self.memory else {
            return Vec::new();
        };
        let limit = |group: &LimitedGroup| Limit {
            folder: group.path.clone(),
            limit_bytes: group.limit_bytes,
            version,
        };
        groups.iter().map(limit).collect()
    }

    /// The files of these groups on which `poll` reports such events (version 2).
    pub(crate) fn event_files(&self, groups: &[LimitedGroup]) -> Vec<PathBuf> {
        match &self.memory {
            Some((version, _)) if version.name == MemoryCgroup::V2 => {
                let files = groups.iter().map(|group| events::file(&group.path));
                files.collect()
            }
            _ => Vec::new(),
        }
    }

    /// The file that tells how long this process's own group has stalled for
    /// want of memory (Linux 4.20). `None` in the root of the hierarchy, which
    /// is the system, and where the kernel does not tell.
    pub(crate) fn pressure_file(&self) -> Option<PathBuf> {
        let own = self.unified.first()?;
        // The root has no such file.
        let is_root = !own.join("cgroup.events").exists();
        let file = own.join("memory.pressure");
        (!is_root && file.is_file()).then_some(file)
    }
}

/// How a version of cgroups tells about memory.
#[derive(Debug, PartialEq, Eq)]
struct Version {
    name: MemoryCgroup,
    limit: &'static str,
    usage: &'static str,
    /// The lines of `memory.stat`, with what is inside the group.
    inactive_file: &'static str,
    active_file: &'static str,
    page_cache: &'static str,
    shared: &'static str,
}

static VERSION_1: Version = Version {
    name: MemoryCgroup::V1,
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    inactive_file: "total_inactive_file ",
    active_file: "total_active_file ",
    page_cache: "total_cache ",
    shared: "total_shmem ",
};

static VERSION_2: Version = Version {
    name: MemoryCgroup::V2,
    limit: "memory.max",
    usage: "memory.current",
    inactive_file: "inactive_file ",
    active_file: "active_file ",
    page_cache: "file ",
    shared: "shmem ",
};

/// The groups that this process is in.
fn own_groups(root: &Path) -> Option<ProcessCGroups> {
    parse_groups(&read(&root.join("proc/self/cgroup")))
}

fn parse_groups(text: &str) -> Option<ProcessCGroups> {
    ProcessCGroups::from_buf_read(text.as_bytes()).ok()
}

/// Which version controls this process's memory, and the path of its group
/// there as `/proc/self/cgroup` names it.
fn memory_group(own: &Option<ProcessCGroups>) -> Option<(&'static Version, PathBuf)> {
    // On a hybrid system version 2 is there as well, without the controller.
    let mut groups = own.iter().flat_map(|groups| &groups.0);
    let version_1 = groups.find(|group| group.controllers.iter().any(|name| name == "memory"));
    version_1
        .map(|group| (&VERSION_1, PathBuf::from(&group.pathname)))
        .or_else(|| unified_group(own).map(|path| (&VERSION_2, path)))
}

/// The path of its group in the unified hierarchy.
fn unified_group(own: &Option<ProcessCGroups>) -> Option<PathBuf> {
    let mut groups = own.iter().flat_map(|groups| &groups.0);
    let unified = groups.find(|group| group.hierarchy == 0)?;
    Some(PathBuf::from(&unified.pathname))
}

fn limited_group(folder: &Path, version: &Version) -> Option<LimitedGroup> {
    parse_group(folder, version, |file| read(&folder.join(file)))
}

/// The same for files that `read` has.
fn parse_group(
    folder: &Path,
    version: &Version,
    read: impl Fn(&str) -> String,
) -> Option<LimitedGroup> {
    /// Version 1 says "no limit" with the greatest number that it has, which
    /// depends on the page size.
    const NO_LIMIT: u64 = 1 << 62;
    let number = |file| read(file).trim().parse::<u64>().ok();
    // "max" is no number.
    let limit = number(version.limit).filter(|&limit| limit < NO_LIMIT)?;
    let usage = number(version.usage)?;
    let stat = read("memory.stat");
    let line = |name| {
        let mut numbers = stat.lines().filter_map(|line| line.strip_prefix(name));
        numbers.next()?.parse::<u64>().ok()
    };
    let inactive_file = line(version.inactive_file).unwrap_or(0);
    // Shared memory is in the page cache, and nothing can be dropped of it.
    let page_cache = line(version.page_cache).unwrap_or(0);
    let page_cache = page_cache.saturating_sub(line(version.shared).unwrap_or(0));
    let bytes = |number| usize::try_from(number).unwrap_or(usize::MAX);
    Some(LimitedGroup {
        path: folder.to_owned(),
        limit_bytes: bytes(limit),
        usage_bytes: bytes(usage),
        inactive_file_bytes: bytes(inactive_file),
        active_file_bytes: bytes(line(version.active_file).unwrap_or(0)),
        page_cache_bytes: bytes(page_cache),
    })
}

/// What is in the file; nothing where it cannot be read. A name somewhere that
/// is not UTF-8 does no harm to the others.
fn read(file: &Path) -> String {
    let bytes = fs::read(file).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests;
