//! The memory cgroup of this process and its ancestors.
//!
//! Their directories are looked up each time: version 1 and 2 may both be
//! mounted, anywhere, and a container may see only a part of the tree. A group
//! that cannot be seen, or may not be read, sets no limit here; a descriptor that cannot be had is an
//! error.

mod events;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod known_limits;
mod mounts;

pub(crate) use events::Events;
pub(crate) use known_limits::KnownLimits;

use std::cell::Cell;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::{fs, io};

use procfs::{FromBufRead, ProcessCGroups};
use rustix::io::Errno;

/// The cgroup version that controls this process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryCgroup {
    /// The memory controller of cgroup v1.
    V1,
    /// The unified hierarchy.
    V2,
    /// Neither, or `/proc` does not tell.
    None,
}

pub(crate) fn memory_cgroup() -> MemoryCgroup {
    memory_group(&own_groups(Path::new("/")))
        .map_or(MemoryCgroup::None, |(version, _)| version.name)
}

/// A memory cgroup that has a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LimitedGroup {
    /// The cgroup's directory.
    pub(crate) path: PathBuf,
    pub(crate) limit_bytes: usize,
    /// The usage of the cgroup and its descendants, page cache included.
    pub(crate) usage_bytes: usize,
    /// The part of the usage on the inactive file list, from which the kernel
    /// reclaims first: page cache that was not used recently, and lazily freed
    /// memory, even if it has been reused since.
    pub(crate) inactive_file_bytes: usize,
    /// The part on the active file list: page cache in use.
    pub(crate) active_file_bytes: usize,
    /// The part of the usage that is page cache, without shared memory.
    pub(crate) page_cache_bytes: usize,
}

/// A limit that is polled often: some ten microseconds. Its files are opened
/// each time, because a program may close descriptors that it did not open,
/// after which the numbers may refer to other files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    directory: PathBuf,
    limit_bytes: usize,
    version: &'static Version,
}

impl Limit {
    /// Returns how often an allocation hit the limit ([`Events::hits`]).
    pub(crate) fn hits(&self) -> u64 {
        events::hits(&self.directory, self.version.name)
    }

    /// Returns the unused part and the inactive page cache, from which the
    /// kernel reclaims first, in bytes; `None` where the kernel does not tell.
    fn unused_or_cached_bytes(&self) -> Option<usize> {
        let group = limited_group(&self.directory, self.version).ok()??;
        let cached_bytes = group.inactive_file_bytes.min(group.page_cache_bytes);
        let used_bytes = group.usage_bytes.saturating_sub(cached_bytes);
        Some(group.limit_bytes.saturating_sub(used_bytes))
    }

    /// Returns the limit and its unused part, in bytes; `None` where the kernel
    /// does not tell.
    pub(crate) fn unused(&self) -> Option<(usize, usize)> {
        let usage: usize = read(&self.directory.join(self.version.usage))
            .trim()
            .parse()
            .ok()?;
        Some((self.limit_bytes, self.limit_bytes.saturating_sub(usage)))
    }
}

/// The directories of this process's group and its ancestors, innermost first,
/// as far up as the mounts show them.
pub(crate) struct Groups {
    /// The contents of the file that names the groups.
    membership: String,
    /// The groups that control memory.
    memory: Option<(&'static Version, Vec<PathBuf>)>,
    /// The groups in the unified hierarchy, which reports stalls even where
    /// version 1 controls memory.
    unified: Vec<PathBuf>,
}

impl Groups {
    /// Finds the groups that this process is in. A kernel without cgroups has none; ENOENT
    /// where `/proc` is not mounted.
    pub(crate) fn find() -> Result<Self, Errno> {
        Self::find_below(Path::new("/"))
    }

    /// Finds the groups in a recorded tree, with `proc` and `sys` in `root`.
    pub(crate) fn find_below(root: &Path) -> Result<Self, Errno> {
        let mountinfo = try_read(&root.join(MOUNTS)).map_err(errno_of)?;
        let membership = known_limits::membership(root).map_err(errno_of)?;
        Ok(Self::of(root, &membership, &mountinfo))
    }

    /// Returns whether this process is still in these groups.
    pub(crate) fn is_current(&self) -> Result<bool, Errno> {
        let membership = known_limits::membership(Path::new("/")).map_err(errno_of)?;
        Ok(membership == self.membership)
    }

    /// Finds the groups that these contents of the two files name.
    fn of(root: &Path, membership: &str, mountinfo: &str) -> Self {
        let own = parse_groups(membership);
        let directories =
            |version, own: &Path| mounts::visible_directories(root, mountinfo, version, own);
        let unified = unified_group(&own).map(|own| directories(&VERSION_2, &own));
        Self {
            membership: membership.to_owned(),
            memory: memory_group(&own).map(|(version, own)| (version, directories(version, &own))),
            unified: unified.unwrap_or_default(),
        }
    }

    /// Returns the groups that have a limit on memory.
    pub(crate) fn limited(&self) -> Result<Vec<LimitedGroup>, Errno> {
        let Some((version, directories)) = &self.memory else {
            return Ok(Vec::new());
        };
        let mut groups = Vec::new();
        for (index, directory) in directories.iter().enumerate() {
            // Version 1 before Linux 5.11 can leave descendants uncharged.
            let hierarchy = directory.join("memory.use_hierarchy");
            if index > 0 && read_if_present(&hierarchy).map_err(errno_of)?.trim() == "0" {
                break;
            }
            groups.extend(limited_group(directory, version).map_err(errno_of)?);
        }
        Ok(groups)
    }

    /// Reads the events at the limit of one of the groups.
    pub(crate) fn events(&self, group: &LimitedGroup) -> Events {
        let version = self.memory.as_ref().map(|(version, _)| version.name);
        version.map_or_else(Events::default, |version| {
            Events::read(&group.path, version)
        })
    }

    /// Returns the limits of the groups, for polling.
    pub(crate) fn limits(&self, groups: &[LimitedGroup]) -> Vec<Limit> {
        let Some((version, _)) = &self.memory else {
            return Vec::new();
        };
        let limit = |group: &LimitedGroup| Limit {
            directory: group.path.clone(),
            limit_bytes: group.limit_bytes,
            version,
        };
        groups.iter().map(limit).collect()
    }

    /// Returns the files of these groups on which `poll` reports such events
    /// (version 2).
    pub(crate) fn event_files(&self, groups: &[LimitedGroup]) -> Vec<PathBuf> {
        match &self.memory {
            Some((version, _)) if version.name == MemoryCgroup::V2 => {
                let files = groups.iter().map(|group| events::file(&group.path));
                files.collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the PSI file of this process's own group (Linux 4.20). `None` in
    /// the root of the hierarchy, which is the whole system, and where the
    /// kernel does not tell.
    pub(crate) fn pressure_file(&self) -> Option<PathBuf> {
        let own = self.unified.first()?;
        // The root has no such file.
        let is_root = !own.join("cgroup.events").exists();
        let file = own.join("memory.pressure");
        (!is_root && file.is_file()).then_some(file)
    }
}

/// The file that names the groups of this process, and the one that tells where
/// they are mounted.
const MEMBERSHIP: &str = "proc/self/cgroup";
const MOUNTS: &str = "proc/self/mountinfo";

/// Version 1 reports "no limit" as its greatest number, which depends on the
/// page size.
const NO_LIMIT: u64 = 1 << 62;

/// The file names and `memory.stat` lines of a cgroup version.
#[derive(Debug, PartialEq, Eq)]
struct Version {
    name: MemoryCgroup,
    limit: &'static str,
    usage: &'static str,
    /// Lines of `memory.stat`, descendants included.
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

/// Reads the groups that this process is in.
fn own_groups(root: &Path) -> Option<ProcessCGroups> {
    parse_groups(&read(&root.join(MEMBERSHIP)))
}

fn parse_groups(text: &str) -> Option<ProcessCGroups> {
    ProcessCGroups::from_buf_read(text.as_bytes()).ok()
}

/// Returns the version that controls this process's memory, and the path of its
/// group there, as in `/proc/self/cgroup`.
fn memory_group(own: &Option<ProcessCGroups>) -> Option<(&'static Version, PathBuf)> {
    // On a hybrid system version 2 is mounted too, without the memory
    // controller.
    let mut groups = own.iter().flat_map(|groups| &groups.0);
    let version_1 = groups.find(|group| group.controllers.iter().any(|name| name == "memory"));
    version_1
        .map(|group| (&VERSION_1, PathBuf::from(&group.pathname)))
        .or_else(|| unified_group(own).map(|path| (&VERSION_2, path)))
}

/// Returns the path of the process's group in the unified hierarchy.
fn unified_group(own: &Option<ProcessCGroups>) -> Option<PathBuf> {
    let mut groups = own.iter().flat_map(|groups| &groups.0);
    let unified = groups.find(|group| group.hierarchy == 0)?;
    Some(PathBuf::from(&unified.pathname))
}

fn limited_group(directory: &Path, version: &Version) -> io::Result<Option<LimitedGroup>> {
    let failure = Cell::new(None);
    let group = parse_group(directory, version, |file| {
        let text = read_if_present(&directory.join(file));
        text.unwrap_or_else(|error| {
            failure.set(failure.take().or(Some(error).filter(is_transient)));
            String::new()
        })
    });
    match failure.into_inner() {
        Some(error) => Err(error),
        None => Ok(group),
    }
}

/// Parses the files of a group, whose contents `read` returns.
fn parse_group(
    directory: &Path,
    version: &Version,
    read: impl Fn(&str) -> String,
) -> Option<LimitedGroup> {
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
    // Shared memory counts as page cache, but the kernel cannot drop it.
    let page_cache = line(version.page_cache).unwrap_or(0);
    let page_cache = page_cache.saturating_sub(line(version.shared).unwrap_or(0));
    let bytes = |number| usize::try_from(number).unwrap_or(usize::MAX);
    Some(LimitedGroup {
        path: directory.to_owned(),
        limit_bytes: bytes(limit),
        usage_bytes: bytes(usage),
        inactive_file_bytes: bytes(inactive_file),
        active_file_bytes: bytes(line(version.active_file).unwrap_or(0)),
        page_cache_bytes: bytes(page_cache),
    })
}

/// Reads the file; empty where it cannot be read. A name somewhere that is not
/// UTF-8 does not affect the others.
fn read(file: &Path) -> String {
    try_read(file).unwrap_or_default()
}

/// Reads the file; empty where it does not exist.
fn read_if_present(file: &Path) -> io::Result<String> {
    match try_read(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        text => text,
    }
}

/// Whether a file could be read at another moment, and not: whether this process may not
/// see it.
fn is_transient(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(
        errno,
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN | Errno::IO)
    )
}

fn errno_of(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

fn try_read(file: &Path) -> io::Result<String> {
    let bytes = fs::read(file)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests;
