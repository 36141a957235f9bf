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
mod swap;

pub(crate) use events::Events;
pub(crate) use known_limits::KnownLimits;

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::io::Errno;

use super::{mountinfo, process};

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
    let membership = Membership::read_below(Path::new("/")).unwrap_or_default();
    memory_group(&membership.contents).map_or(MemoryCgroup::None, |(version, _)| version.name)
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
    membership: Membership,
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

    /// Finds the groups that another process is in, as far as this one can see them.
    pub(crate) fn of_process(pid: u32) -> Result<Self, Errno> {
        let root = Path::new("/");
        let mountinfo = mountinfo::read_below(root).map_err(errno_of)?;
        // A thread that has ended shows the root in version 1.
        let file = process::folder_with_memory(pid).join("cgroup");
        let contents = fs::read(&file).map_err(errno_of)?;
        Ok(Self::of(root, Membership { file, contents }, &mountinfo))
    }

    /// Finds the group with this directory, and its ancestors.
    pub(crate) fn at(directory: &Path) -> Self {
        let shows = |version: &&'static Version| directory.join(version.usage).is_file();
        let version = [&VERSION_1, &VERSION_2].into_iter().find(shows);
        let groups = |version: &'static Version| {
            // A root shows no usage in version 2, nor does anything above a mount point.
            let is_group = |directory: &&Path| directory.join(version.usage).is_file();
            let ancestors = directory.ancestors().take_while(is_group);
            ancestors.map(Path::to_owned).collect::<Vec<_>>()
        };
        let memory = version.map(|version| (version, groups(version)));
        let unified = memory
            .iter()
            .filter(|(version, _)| version.name == MemoryCgroup::V2)
            .flat_map(|(_, directories)| directories.clone());
        Self {
            unified: unified.collect(),
            memory,
            membership: Membership::default(),
        }
    }

    /// Finds the groups in a recorded tree, with `proc` and `sys` in `root`.
    pub(crate) fn find_below(root: &Path) -> Result<Self, Errno> {
        let mountinfo = mountinfo::read_below(root).map_err(errno_of)?;
        let membership = Membership::read_below(root).map_err(errno_of)?;
        Ok(Self::of(root, membership, &mountinfo))
    }

    /// Returns whether this process is still in these groups.
    pub(crate) fn is_current(&self) -> Result<bool, Errno> {
        self.membership.is_current().map_err(errno_of)
    }

    /// Finds the groups that these contents of the two files name.
    fn of(root: &Path, membership: Membership, mountinfo: &[u8]) -> Self {
        let directories =
            |version, own: &Path| mounts::visible_directories(root, mountinfo, version, own);
        let own = &membership.contents;
        let unified = unified_group(own).map(|own| directories(&VERSION_2, own));
        let memory = memory_group(own);
        Self {
            memory: memory.map(|(version, own)| (version, directories(version, own))),
            unified: unified.unwrap_or_default(),
            membership,
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

/// The groups of this process, and the file that names them.
#[derive(Debug, Default)]
struct Membership {
    file: PathBuf,
    contents: Vec<u8>,
}

impl Membership {
    /// Reads the groups. A kernel without cgroups has no such file; whether `/proc` is
    /// there at all is for the caller to find out.
    fn read_below(root: &Path) -> io::Result<Self> {
        let file = root.join("proc/self/cgroup");
        let contents = match fs::read(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            contents => contents?,
        };
        // In version 1 the first thread, which that file is about, is in the root once it
        // has called pthread_exit(3). While it lives, its group is charged for the memory
        // of all threads, so theirs are not read first.
        if memory_group(&contents).is_some_and(|(_, own)| own == Path::new("/")) {
            let file = root.join("proc/thread-self/cgroup");
            if let Ok(contents) = fs::read(&file) {
                return Ok(Self { file, contents });
            }
        }
        Ok(Self { file, contents })
    }

    /// Returns whether the file has the same contents still.
    fn is_current(&self) -> io::Result<bool> {
        // One read without an allocation, because each release asks. A
        // longer answer than fits differs.
        let mut buffer = [0; 4096];
        let read = |mut file: File| file.read(&mut buffer);
        match File::open(&self.file).and_then(read) {
            Ok(len) => Ok(buffer[..len] == *self.contents),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(self.contents.is_empty()),
            Err(error) => Err(error),
        }
    }
}

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
    swap: swap::Files,
}

static VERSION_1: Version = Version {
    name: MemoryCgroup::V1,
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    inactive_file: "total_inactive_file ",
    active_file: "total_active_file ",
    page_cache: "total_cache ",
    shared: "total_shmem ",
    swap: swap::VERSION_1,
};

static VERSION_2: Version = Version {
    name: MemoryCgroup::V2,
    limit: "memory.max",
    usage: "memory.current",
    inactive_file: "inactive_file ",
    active_file: "active_file ",
    page_cache: "file ",
    shared: "shmem ",
    swap: swap::VERSION_2,
};

/// A line of `/proc/self/cgroup`: `hierarchy:controllers:path`.
struct Member<'a> {
    hierarchy: &'a [u8],
    controllers: &'a [u8],
    path: &'a Path,
}

/// Parses the contents of that file. Names of groups are any bytes but newlines.
fn parse_groups(text: &[u8]) -> impl Iterator<Item = Member<'_>> {
    text.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut fields = line.splitn(3, |&byte| byte == b':');
        Some(Member {
            hierarchy: fields.next()?,
            controllers: fields.next()?,
            path: Path::new(OsStr::from_bytes(fields.next()?)),
        })
    })
}

/// Returns the version that controls this process's memory, and the path of its
/// group there, as in `/proc/self/cgroup`.
fn memory_group(membership: &[u8]) -> Option<(&'static Version, &Path)> {
    // On a hybrid system version 2 is mounted too, without the memory
    // controller.
    let version_1 = parse_groups(membership).find(|group| names_memory(group.controllers));
    version_1
        .map(|group| (&VERSION_1, group.path))
        .or_else(|| unified_group(membership).map(|path| (&VERSION_2, path)))
}

/// Returns the path of the process's group in the unified hierarchy.
fn unified_group(membership: &[u8]) -> Option<&Path> {
    let unified = parse_groups(membership).find(|group| group.hierarchy == b"0")?;
    Some(unified.path)
}

/// Returns whether the memory controller is in a list that is separated by commas.
fn names_memory(list: &[u8]) -> bool {
    list.split(|&byte| byte == b',')
        .any(|name| name == b"memory")
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

/// Reads a file of a group, which the kernel writes in ASCII; empty where it cannot be read.
fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

/// Reads the file; empty where it does not exist.
fn read_if_present(file: &Path) -> io::Result<String> {
    match fs::read_to_string(file) {
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

#[cfg(test)]
mod tests;
