//! The memory cgroup of this process, and the ones around it.
//!
//! Where the kernel shows them is looked up each time: version 1 and 2 may both
//! be mounted, anywhere, and a container may see a part of the tree only. What
//! cannot be seen or read bounds nothing here.

use std::fs;
use std::path::{Component, Path, PathBuf};

use procfs::FromBufRead;

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
    own_group(Path::new("/")).map_or(MemoryCgroup::None, |(version, _)| version.name)
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
    /// The part of the usage that is page cache, without shared memory.
    pub(crate) page_cache_bytes: usize,
}

/// The groups that limit this process: its own and those around it, innermost
/// first, as far up as the mounts show them.
pub(crate) fn limited_groups() -> Vec<LimitedGroup> {
    limited_groups_below(Path::new("/"))
}

/// The same for a recorded tree, which has its `proc` and `sys` in `root`.
fn limited_groups_below(root: &Path) -> Vec<LimitedGroup> {
    let Some((version, own)) = own_group(root) else {
        return Vec::new();
    };
    let mut groups = Vec::new();
    for (index, folder) in visible_folders(root, version, &own).iter().enumerate() {
        // Version 1 before Linux 5.11 can leave what is inside uncharged.
        if index > 0 && read(&folder.join("memory.use_hierarchy")).trim() == "0" {
            break;
        }
        groups.extend(limited_group(folder, version));
    }
    groups
}

/// How a version of cgroups tells about memory.
struct Version {
    name: MemoryCgroup,
    limit: &'static str,
    usage: &'static str,
    /// The lines of `memory.stat`, with what is inside the group.
    inactive_file: &'static str,
    page_cache: &'static str,
    shared: &'static str,
}

static VERSION_1: Version = Version {
    name: MemoryCgroup::V1,
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    inactive_file: "total_inactive_file ",
    page_cache: "total_cache ",
    shared: "total_shmem ",
};

static VERSION_2: Version = Version {
    name: MemoryCgroup::V2,
    limit: "memory.max",
    usage: "memory.current",
    inactive_file: "inactive_file ",
    page_cache: "file ",
    shared: "shmem ",
};

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

/// Which version controls this process's memory, and the path of its group
/// there as `/proc/self/cgroup` names it.
fn own_group(root: &Path) -> Option<(&'static Version, PathBuf)> {
    let text = read(&root.join("proc/self/cgroup"));
    let groups = procfs::ProcessCGroups::from_buf_read(text.as_bytes()).ok()?;
    let found = |is: fn(&procfs::ProcessCGroup) -> bool| {
        let group = groups.0.iter().find(|group| is(group))?;
        Some(PathBuf::from(&group.pathname))
    };
    // On a hybrid system version 2 is there as well, without the controller.
    let version_1 = found(|group| group.controllers.iter().any(|name| name == "memory"));
    let version_2 = || found(|group| group.hierarchy == 0);
    version_1
        .map(|path| (&VERSION_1, path))
        .or_else(|| version_2().map(|path| (&VERSION_2, path)))
}

/// The folders of the group `own` and of those around it, innermost first, in
/// the mount that shows most of them.
fn visible_folders(root: &Path, version: &Version, own: &Path) -> Vec<PathBuf> {
    let mountinfo = read(&root.join("proc/self/mountinfo"));
    let shown = mountinfo
        .lines()
        .filter_map(Mount::parse)
        .filter(|mount| version.is_shown_by(mount))
        .map(|mount| mount.folders(root, own));
    shown.max_by_key(Vec::len).unwrap_or_default()
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

fn limited_group(folder: &Path, version: &Version) -> Option<LimitedGroup> {
    /// Version 1 says "no limit" with the greatest number that it has, which
    /// depends on the page size.
    const NO_LIMIT: u64 = 1 << 62;
    let number = |file| read(&folder.join(file)).trim().parse::<u64>().ok();
    // "max" is no number.
    let limit = number(version.limit).filter(|&limit| limit < NO_LIMIT)?;
    let usage = number(version.usage)?;
    let stat = read(&folder.join("memory.stat"));
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
mod tests {
    use super::*;

    const CACHE: u64 = 77;

    /// A recorded tree in a folder of its own.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(cgroup: &str, mountinfo: &str) -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            tree.write("proc/self/cgroup", cgroup);
            tree.write("proc/self/mountinfo", mountinfo);
            tree
        }

        fn write(&self, path: &str, contents: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents).unwrap();
        }

        fn v1(self, group: &str, limit: &str, usage: u64, inactive_file: u64) -> Self {
            self.write(&format!("{group}/memory.limit_in_bytes"), limit);
            self.write(
                &format!("{group}/memory.usage_in_bytes"),
                &format!("{usage}\n"),
            );
            let stat = format!(
                "cache 1\ninactive_file 1\ntotal_cache {CACHE}\ntotal_shmem 5\ntotal_inactive_file {inactive_file}\n"
            );
            self.write(&format!("{group}/memory.stat"), &stat);
            self
        }

        fn v2(self, group: &str, limit: &str, usage: u64, inactive_file: u64) -> Self {
            self.write(&format!("{group}/memory.max"), limit);
            self.write(&format!("{group}/memory.current"), &format!("{usage}\n"));
            let stat = format!(
                "anon 7\nfile {CACHE}\nshmem 5\nfile_mapped 2\ninactive_file {inactive_file}\nactive_file 3\n"
            );
            self.write(&format!("{group}/memory.stat"), &stat);
            self
        }

        /// The groups found: path in the tree, limit, usage, inactive cache.
        fn found(&self) -> Vec<(String, usize, usize, usize)> {
            let groups = limited_groups_below(self.0.path()).into_iter();
            let figures = |group: LimitedGroup| {
                let path = group.path.strip_prefix(self.0.path()).unwrap();
                (
                    path.display().to_string(),
                    group.limit_bytes,
                    group.usage_bytes,
                    group.inactive_file_bytes,
                )
            };
            groups.map(figures).collect()
        }
    }

    fn group(
        path: &str,
        limit: usize,
        usage: usize,
        inactive: usize,
    ) -> (String, usize, usize, usize) {
        (path.to_owned(), limit, usage, inactive)
    }

    /// As systemd mounts it.
    const V2_ONLY: &str = "\
22 27 0:20 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw
29 26 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
";

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn tells_the_versions_apart() {
        let version = |cgroup| {
            let tree = Tree::new(cgroup, "");
            own_group(tree.0.path()).map(|(version, _)| version.name)
        };
        assert_eq!(
            version("4:memory:/a\n1:cpu:/\n0::/\n"),
            Some(MemoryCgroup::V1)
        );
        assert_eq!(version("0::/user.slice/x\n"), Some(MemoryCgroup::V2));
        assert_eq!(version("1:name=systemd:/\n"), None);
        assert_eq!(version("4:memoryless:/a\n"), None);
        assert_eq!(version(""), None);
    }

    #[test]
    fn version_2_with_nested_limits() {
        let tree = Tree::new("0::/user.slice/app.scope\n", V2_ONLY)
            .v2("sys/fs/cgroup/user.slice", "1000\n", 400, 50)
            .v2("sys/fs/cgroup/user.slice/app.scope", "900\n", 300, 20);
        assert_eq!(
            tree.found(),
            [
                group("sys/fs/cgroup/user.slice/app.scope", 900, 300, 20),
                group("sys/fs/cgroup/user.slice", 1000, 400, 50),
            ]
        );
    }

    #[test]
    fn no_limit_is_not_a_limit() {
        let tree = Tree::new("0::/a/b\n", V2_ONLY)
            .v2("sys/fs/cgroup/a", "max\n", 400, 0)
            // Without the controller: only cgroup.* files.
            .v2("sys/fs/cgroup/other", "10\n", 1, 0);
        assert_eq!(tree.found(), []);
        let tree = Tree::new("4:memory:/a\n", HYBRID)
            // Pages of 4 KiB, of 64 KiB, and kernels before Linux 3.19.
            .v1("sys/fs/cgroup/memory/a", "9223372036854771712\n", 400, 0)
            .v1("sys/fs/cgroup/memory", "9223372036854710272\n", 400, 0);
        assert_eq!(tree.found(), []);
        let tree = tree.v1("sys/fs/cgroup/memory", "9223372036854775807\n", 400, 0);
        assert_eq!(tree.found(), []);
    }

    #[test]
    fn hybrid_systems_keep_memory_in_version_1() {
        let tree = Tree::new("5:cpuset:/c\n4:memory:/a/b\n0::/x\n", HYBRID)
            .v1("sys/fs/cgroup/memory/a/b", "900\n", 300, 20)
            .v1("sys/fs/cgroup/memory/a", "1000\n", 400, 50)
            .v1("sys/fs/cgroup/cpuset/c", "1\n", 1, 0)
            .v2("sys/fs/cgroup/unified/x", "1\n", 1, 0);
        assert_eq!(
            tree.found(),
            [
                group("sys/fs/cgroup/memory/a/b", 900, 300, 20),
                group("sys/fs/cgroup/memory/a", 1000, 400, 50),
            ]
        );
    }

    #[test]
    fn controllers_may_share_a_mount() {
        let mountinfo = "35 31 0:32 / /cg\\040all rw - cgroup none rw,cpu,memory\n";
        let tree = Tree::new("4:cpu,memory:/a\n", mountinfo).v1("cg all/a", "900\n", 300, 20);
        assert_eq!(tree.found(), [group("cg all/a", 900, 300, 20)]);
    }

    #[test]
    fn what_is_not_charged_above_is_not_bounded_above() {
        let tree = Tree::new("4:memory:/a/b\n", HYBRID)
            .v1("sys/fs/cgroup/memory/a/b", "900\n", 300, 0)
            .v1("sys/fs/cgroup/memory/a", "100\n", 90, 0);
        tree.write("sys/fs/cgroup/memory/a/b/memory.use_hierarchy", "0\n");
        assert_eq!(tree.found().len(), 2);
        tree.write("sys/fs/cgroup/memory/a/memory.use_hierarchy", "0\n");
        assert_eq!(
            tree.found(),
            [group("sys/fs/cgroup/memory/a/b", 900, 300, 0)]
        );
    }

    #[test]
    fn a_container_with_the_hosts_paths_sees_its_own_part() {
        // Docker on version 1, without a cgroup namespace.
        let mountinfo = "\
735 730 0:32 /docker/0f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory
";
        let tree = Tree::new("4:memory:/docker/0f/sub\n", mountinfo)
            .v1("sys/fs/cgroup/memory", "900\n", 300, 20)
            .v1("sys/fs/cgroup/memory/sub", "100\n", 30, 2);
        assert_eq!(
            tree.found(),
            [
                group("sys/fs/cgroup/memory/sub", 100, 30, 2),
                group("sys/fs/cgroup/memory", 900, 300, 20),
            ]
        );
        // The group of another container says nothing about us.
        tree.write("proc/self/cgroup", "4:memory:/docker/ff\n");
        assert_eq!(tree.found(), []);
    }

    #[test]
    fn the_mount_that_shows_most_counts() {
        let mountinfo = "\
735 730 0:32 /a/b /own ro - cgroup2 cgroup2 rw
736 730 0:32 / /all ro - cgroup2 cgroup2 rw
737 730 0:32 /a /some ro - cgroup2 cgroup2 rw
";
        let tree = Tree::new("0::/a/b\n", mountinfo)
            .v2("all/a", "900\n", 300, 0)
            .v2("own", "800\n", 300, 0);
        assert_eq!(tree.found(), [group("all/a", 900, 300, 0)]);
    }

    #[test]
    fn a_mount_from_above_the_namespace_shows_its_top() {
        let mountinfo = "735 730 0:26 /../.. /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
        let tree = Tree::new("0::/sub\n", mountinfo)
            .v2("sys/fs/cgroup", "900\n", 300, 0)
            .v2("sys/fs/cgroup/sub", "1\n", 1, 0);
        assert_eq!(tree.found(), [group("sys/fs/cgroup", 900, 300, 0)]);
        // Moved out of its namespace, and seen from there.
        tree.write("proc/self/cgroup", "0::/../../sub\n");
        assert_eq!(tree.found().len(), 2);
        // Beside the mount, not below it.
        tree.write("proc/self/cgroup", "0::/../../../sub\n");
        assert_eq!(tree.found(), []);
        let tree = Tree::new("0::/../sub\n", V2_ONLY).v2("sys/fs/cgroup", "900\n", 300, 0);
        assert_eq!(tree.found(), []);
    }

    #[test]
    fn shared_memory_is_no_page_cache() {
        for tree in [
            Tree::new("0::/a\n", V2_ONLY).v2("sys/fs/cgroup/a", "900\n", 300, 20),
            Tree::new("4:memory:/a\n", HYBRID).v1("sys/fs/cgroup/memory/a", "900\n", 300, 20),
        ] {
            let found = limited_groups_below(tree.0.path());
            assert_eq!(found[0].page_cache_bytes as u64, CACHE - 5);
        }
    }

    #[test]
    fn what_cannot_be_read_bounds_nothing() {
        assert_eq!(Tree::new("0::/a\n", "").found(), []);
        assert_eq!(Tree::new("", V2_ONLY).found(), []);
        assert_eq!(
            Tree::new("0::/a\n", "nonsense\n - \n1 2 3 - cgroup2\n").found(),
            []
        );
        let tree = Tree::new("0::/a/b/c\n", V2_ONLY)
            .v2("sys/fs/cgroup/a/b/c", "what?\n", 1, 0)
            .v2("sys/fs/cgroup/a", "900\n", 300, 20);
        tree.write("sys/fs/cgroup/a/b/memory.max", "100\n");
        fs::remove_file(tree.0.path().join("sys/fs/cgroup/a/memory.stat")).unwrap();
        assert_eq!(tree.found(), [group("sys/fs/cgroup/a", 900, 300, 0)]);
        // A folder where a file should be fails to be read for root, too.
        let tree = Tree::new("0::/a\n", V2_ONLY).v2("sys/fs/cgroup/a", "900\n", 300, 20);
        let usage = tree.0.path().join("sys/fs/cgroup/a/memory.current");
        fs::remove_file(&usage).unwrap();
        fs::create_dir(&usage).unwrap();
        assert_eq!(tree.found(), []);
    }

    #[test]
    fn reads_this_machine() {
        for group in limited_groups() {
            assert!(group.path.join("memory.stat").is_file(), "{group:?}");
            assert!(group.inactive_file_bytes <= group.usage_bytes, "{group:?}");
        }
    }
}
