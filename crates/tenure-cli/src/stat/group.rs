//! A memory cgroup, version 1 or 2, and the processes in it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use tenure::{
    Error,
    pressure::{self, Level},
};

use super::{
    process::{ProcessReport, as_text},
    report::{Report, Target},
};
use crate::files::path_text;

/// The memory that a cgroup is charged for, including the groups in it.
#[derive(Clone, Debug, Serialize)]
pub struct GroupReport {
    #[serde(serialize_with = "path_text")]
    pub path: PathBuf,
    /// 1 or 2.
    pub cgroup_version: u8,
    pub usage_bytes: u64,
    /// Its own limit; null when it has none.
    pub limit_bytes: Option<u64>,
    /// This and the following are null where the kernel does not report them.
    pub anonymous_bytes: Option<u64>,
    /// The page cache without shared memory.
    pub page_cache_bytes: Option<u64>,
    pub shared_memory_bytes: Option<u64>,
    /// The pages that the kernel reclaims first: page cache that was not used lately, and
    /// lazily freed pages.
    pub inactive_file_bytes: Option<u64>,
    /// The usage without `inactive_file_bytes`, as kubelet computes it.
    pub working_set_bytes: Option<u64>,
    /// The sum over the processes; null where one of them may not be read.
    pub lazily_free_bytes: Option<u64>,
    pub usage_without_lazily_free_bytes: Option<u64>,
    /// The level of memory pressure in the group.
    #[serde(serialize_with = "as_text")]
    pub pressure: Option<Level>,
    /// How many processes may not be read.
    pub unreadable_processes: usize,
}

/// The names of the files and fields of a version of cgroups.
struct Version {
    number: u8,
    usage: &'static str,
    limit: &'static str,
    /// This and the following are fields of `memory.stat`.
    anonymous: &'static str,
    page_cache: &'static str,
    shared: &'static str,
    inactive_file: &'static str,
}

static VERSIONS: [Version; 2] = [
    Version {
        number: 1,
        usage: "memory.usage_in_bytes",
        limit: "memory.limit_in_bytes",
        anonymous: "total_rss",
        page_cache: "total_cache",
        shared: "total_shmem",
        inactive_file: "total_inactive_file",
    },
    Version {
        number: 2,
        usage: "memory.current",
        limit: "memory.max",
        anonymous: "anon",
        page_cache: "file",
        shared: "shmem",
        inactive_file: "inactive_file",
    },
];

/// The folder of a cgroup.
pub struct Group {
    /// As it was named.
    name: PathBuf,
    folder: PathBuf,
    version: &'static Version,
}

impl Group {
    /// Finds a memory cgroup by its folder, or by its path below the mount points of the
    /// cgroup file systems.
    pub fn find(path: &Path) -> Result<Self> {
        let inside = path.strip_prefix("/").unwrap_or(path);
        let mounted = mounts().into_iter().map(|mount| mount.join(inside));
        let candidates: Vec<_> = path
            .is_absolute()
            .then(|| path.to_owned())
            .into_iter()
            .chain(mounted)
            .collect();
        let group = candidates.iter().find_map(|folder| Self::at(folder, path));
        let Some(group) = group else {
            if candidates
                .iter()
                .any(|folder| folder.join("cgroup.procs").exists())
            {
                bail!(
                    "{} is a cgroup without figures for memory: enable the memory controller for it, or name a group below the root",
                    path.display()
                );
            }
            bail!("there is no memory cgroup {}", path.display());
        };
        Ok(group)
    }

    fn at(folder: &Path, name: &Path) -> Option<Self> {
        let shows = |version: &&Version| folder.join(version.usage).is_file();
        let version = VERSIONS.iter().find(shows)?;
        // Collecting the components drops a slash at the end.
        let folder = folder.components().collect();
        Some(Self {
            name: name.to_owned(),
            folder,
            version,
        })
    }

    /// Returns the processes in the group and in those below.
    pub fn pids(&self) -> Vec<u32> {
        pids(&self.folder)
    }

    pub fn is_gone(&self) -> bool {
        !self.folder.exists()
    }

    /// Reads the cgroup and its processes, without those that end meanwhile.
    pub fn read(&self) -> Result<(Report, Vec<String>)> {
        if self.is_gone() {
            let gone = format!("the cgroup {} is gone", self.folder.display());
            return Ok((Report::of_absent_group(&self.name), vec![gone]));
        }
        let mut processes = Vec::new();
        let mut unreadable_processes = 0;
        for pid in self.pids() {
            match ProcessReport::of(pid) {
                // A process without memory is exiting, or a kernel thread.
                Ok(process) if process.mapped_bytes == 0 => {}
                Ok(process) => processes.push(process),
                // Processes of another PID namespace appear as 0.
                Err(Error::NoProcess { pid: 1.. }) => {}
                Err(_) => unreadable_processes += 1,
            }
        }
        processes
            .sort_by_key(|process| std::cmp::Reverse(process.resident_without_lazily_free_bytes));
        let free: Option<usize> = processes
            .iter()
            .map(|process| process.lazily_free_bytes)
            .sum();
        // Memory of processes that may not be read may be lazily free.
        let free = free.filter(|_| unreadable_processes == 0);
        let group = self.figures(free.map(|bytes| bytes as u64), unreadable_processes)?;
        let report = Report {
            targets: vec![Target::group(&self.name, true)],
            ..Report::of_group(group, processes)
        };
        Ok((report, Vec::new()))
    }

    fn figures(
        &self,
        lazily_free_bytes: Option<u64>,
        unreadable_processes: usize,
    ) -> Result<GroupReport> {
        /// Version 1 shows "no limit" as its greatest number, which depends on the page
        /// size.
        const NO_LIMIT: u64 = 1 << 62;
        let version = self.version;
        let read = |name| {
            let file = self.folder.join(name);
            fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))
        };
        let usage = read(version.usage)?;
        let usage_bytes = usage
            .trim()
            .parse()
            .with_context(|| format!("{} is not a number: {usage:?}", version.usage))?;
        // "max" does not parse as a number.
        let limit = read(version.limit)
            .ok()
            .and_then(|limit| limit.trim().parse().ok());
        let stat = read("memory.stat")?;
        let line = |name| {
            let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
            let found = lines.find(|&(line, _)| line == name);
            found.and_then(|(_, number)| number.parse::<u64>().ok())
        };
        let shared_memory_bytes = line(version.shared);
        let inactive_file_bytes = line(version.inactive_file);
        // The kernel updates the two figures independently.
        let without = |bytes: u64| u64::saturating_sub(usage_bytes, bytes);
        let free_bytes = usize::try_from(lazily_free_bytes.unwrap_or(0)).unwrap_or(usize::MAX);
        Ok(GroupReport {
            path: self.folder.clone(),
            cgroup_version: version.number,
            usage_bytes,
            limit_bytes: limit.filter(|&limit| limit < NO_LIMIT),
            anonymous_bytes: line(version.anonymous),
            page_cache_bytes: line(version.page_cache)
                .zip(shared_memory_bytes)
                .map(|(cache, shared)| cache.saturating_sub(shared)),
            shared_memory_bytes,
            inactive_file_bytes,
            working_set_bytes: inactive_file_bytes.map(without),
            lazily_free_bytes,
            usage_without_lazily_free_bytes: lazily_free_bytes.map(without),
            pressure: pressure::level_in_cgroup(&self.folder, free_bytes).ok(),
            unreadable_processes,
        })
    }
}

/// Returns the mount points of cgroups that may control memory, version 1 first.
fn mounts() -> Vec<PathBuf> {
    let process = procfs::process::Process::myself();
    let Ok(mounts) = process.and_then(|process| process.mountinfo()) else {
        return Vec::new();
    };
    let points = |kind: &str, option: Option<&str>| -> Vec<PathBuf> {
        let fits = |mount: &&procfs::process::MountInfo| {
            let has = |option| mount.super_options.contains_key(option);
            mount.fs_type == kind && option.is_none_or(has)
        };
        let points = mounts.0.iter().filter(fits);
        points.map(|mount| mount.mount_point.clone()).collect()
    };
    [points("cgroup", Some("memory")), points("cgroup2", None)].concat()
}

/// Returns the processes in the group and in those below.
fn pids(folder: &Path) -> Vec<u32> {
    // The read fails where the group has gone meanwhile, or is a group of threads, whose
    // processes a group above lists.
    let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        pids.extend(self::pids(&entry.path()));
    }
    pids
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        for (path, contents) in files {
            let path = tree.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents).unwrap();
        }
        tree
    }

    #[test]
    fn version_2_figures_are_read() {
        let tree = tree(&[
            ("memory.current", "1000\n"),
            ("memory.max", "max\n"),
            (
                "memory.stat",
                "anon 500\nfile 300\nshmem 100\nfile_mapped 7\ninactive_file 250\n",
            ),
        ]);
        let group = Group::find(tree.path()).unwrap();
        let figures = group.figures(Some(200), 3).unwrap();
        assert_eq!((figures.cgroup_version, figures.usage_bytes), (2, 1000));
        assert_eq!(figures.limit_bytes, None);
        assert_eq!(
            (figures.anonymous_bytes, figures.page_cache_bytes),
            (Some(500), Some(200))
        );
        assert_eq!(
            (figures.shared_memory_bytes, figures.inactive_file_bytes),
            (Some(100), Some(250))
        );
        assert_eq!(figures.usage_without_lazily_free_bytes, Some(800));
        assert_eq!(figures.working_set_bytes, Some(750));
        fs::write(tree.path().join("memory.max"), "4096\n").unwrap();
        assert_eq!(group.figures(None, 0).unwrap().limit_bytes, Some(4096));
    }

    #[test]
    fn version_1_figures_include_the_groups_inside() {
        let tree = tree(&[
            ("memory.usage_in_bytes", "1000\n"),
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            (
                "memory.stat",
                "rss 1\ncache 1\ntotal_cache 300\ntotal_rss 500\ntotal_shmem 0\ntotal_inactive_file 9\n",
            ),
        ]);
        let figures = Group::find(tree.path()).unwrap().figures(None, 1).unwrap();
        assert_eq!((figures.cgroup_version, figures.limit_bytes), (1, None));
        assert_eq!(
            (figures.anonymous_bytes, figures.page_cache_bytes),
            (Some(500), Some(300))
        );
        assert_eq!(
            (figures.inactive_file_bytes, figures.working_set_bytes),
            (Some(9), Some(991))
        );
        assert_eq!(figures.lazily_free_bytes, None);
        assert_eq!(figures.usage_without_lazily_free_bytes, None);
    }

    #[test]
    fn working_set_is_never_negative() {
        let tree = tree(&[
            ("memory.current", "1000\n"),
            ("memory.stat", "inactive_file 1200\n"),
        ]);
        let figures = Group::find(tree.path()).unwrap().figures(None, 0).unwrap();
        assert_eq!(figures.working_set_bytes, Some(0));
    }

    #[test]
    fn figures_that_the_kernel_does_not_report_are_unknown() {
        let tree = tree(&[
            ("memory.current", "1000\n"),
            ("memory.stat", "anon 1\nfile 2\n"),
        ]);
        let figures = Group::find(tree.path()).unwrap().figures(None, 0).unwrap();
        assert_eq!(figures.anonymous_bytes, Some(1));
        assert_eq!(figures.page_cache_bytes, None);
        assert_eq!(figures.inactive_file_bytes, None);
        assert_eq!(figures.working_set_bytes, None);
    }

    #[test]
    fn name_that_is_no_utf8_is_shown_in_json() {
        let tree = tree(&[]);
        let folder = tree.path().join(OsStr::from_bytes(b"a\xff"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("memory.current"), "1000\n").unwrap();
        fs::write(folder.join("memory.stat"), "anon 1\n").unwrap();
        let (report, _) = Group::find(&folder).unwrap().read().unwrap();
        let report = serde_json::to_value(&report).unwrap();
        let path = report["cgroup"]["path"].as_str().unwrap();
        assert!(path.ends_with("/a\u{fffd}"), "{path}");
    }

    /// The first process is no process at all, but one of another PID namespace (0).
    #[test]
    fn lazily_free_memory_is_unknown_where_a_process_may_not_be_read() {
        let own = std::process::id();
        let files = |procs: &str| {
            tree(&[
                ("memory.current", "1000\n"),
                ("memory.stat", "anon 1\n"),
                ("cgroup.procs", procs),
            ])
        };
        let read = |procs: &str| {
            let tree = files(procs);
            let (report, _) = Group::find(tree.path()).unwrap().read().unwrap();
            let report = serde_json::to_value(&report).unwrap();
            report["cgroup"].clone()
        };
        let with_hidden = read(&format!("0\n{own}\n"));
        assert_eq!(with_hidden["unreadable_processes"], 1);
        assert!(with_hidden["lazily_free_bytes"].is_null());
        assert!(with_hidden["usage_without_lazily_free_bytes"].is_null());
        let all_readable = read(&format!("{own}\n"));
        assert_eq!(all_readable["unreadable_processes"], 0);
        assert!(all_readable["lazily_free_bytes"].is_u64());
    }

    #[test]
    fn pids_include_those_of_groups_below() {
        let tree = tree(&[
            ("cgroup.procs", "7\n0\n"),
            ("a/cgroup.procs", ""),
            ("a/b/cgroup.procs", "9\n"),
        ]);
        let mut pids = pids(tree.path());
        pids.sort_unstable();
        assert_eq!(pids, [0, 7, 9]);
    }

    #[test]
    fn folder_that_is_no_memory_cgroup_is_an_error() {
        let error = |path: &Path| Group::find(path).err().unwrap().to_string();
        let none = tree(&[]);
        assert!(error(none.path()).starts_with("there is no memory cgroup /"));
        let bare = tree(&[("cgroup.procs", "")]);
        assert!(error(bare.path()).contains("enable the memory controller"));
    }
}
