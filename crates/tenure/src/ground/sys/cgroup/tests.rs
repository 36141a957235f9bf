use super::*;

const CACHE: u64 = 77;

/// A recorded tree in a temporary directory.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new(cgroup: impl AsRef<[u8]>, mountinfo: impl AsRef<[u8]>) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        tree.write("proc/self/cgroup", &cgroup);
        tree.write("proc/self/mountinfo", &mountinfo);
        tree
    }

    fn write(&self, path: &(impl AsRef<Path> + ?Sized), contents: &(impl AsRef<[u8]> + ?Sized)) {
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

    /// Returns the groups found: path in the tree, limit, usage, inactive
    /// cache.
    fn found(&self) -> Vec<(String, usize, usize, usize)> {
        let groups = Groups::find_below(self.0.path())
            .unwrap()
            .limited()
            .unwrap()
            .into_iter();
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

fn group(path: &str, limit: usize, usage: usize, inactive: usize) -> (String, usize, usize, usize) {
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
fn memory_group_returns_controlling_version() {
    let version = |cgroup| {
        let tree = Tree::new(cgroup, "");
        let membership = Membership::read_below(tree.0.path()).unwrap();
        memory_group(&membership.contents).map(|(version, _)| version.name)
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
fn limited_v2_returns_nested_groups() {
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
fn limited_skips_groups_without_limit() {
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
fn limited_on_hybrid_system_uses_v1() {
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
fn limited_with_shared_controller_mount_finds_group() {
    let mountinfo = "35 31 0:32 / /cg\\040all rw - cgroup none rw,cpu,memory\n";
    let tree = Tree::new("4:cpu,memory:/a\n", mountinfo).v1("cg all/a", "900\n", 300, 20);
    assert_eq!(tree.found(), [group("cg all/a", 900, 300, 20)]);
}

#[test]
fn limited_with_names_that_are_not_utf8_finds_groups() {
    let name = OsStr::from_bytes(b"\xff: (\xfe)\\040");
    let mountinfo = b"35 31 0:32 /\xfd /\xfd\\040cg rw - cgroup \xfc rw,memory\n";
    let tree = Tree::new(
        b"5:cpu:/\xfb\n4:memory:/\xfd/\xff: (\xfe)\\040\n",
        mountinfo,
    );
    let directory = Path::new(OsStr::from_bytes(b"\xfd cg")).join(name);
    tree.write(&directory.join("memory.limit_in_bytes"), "900\n");
    tree.write(&directory.join("memory.usage_in_bytes"), "300\n");
    let [found] = &Groups::find_below(tree.0.path())
        .unwrap()
        .limited()
        .unwrap()[..]
    else {
        panic!("one group has a limit");
    };
    assert_eq!(found.path, tree.0.path().join(&directory));
    let known = KnownLimits::find_below(tree.0.path()).unwrap();
    assert!(known.is_current());
    assert_eq!(known.unused_bytes(), Some(600));
}

#[test]
fn groups_of_process_whose_first_thread_has_ended_are_its_threads() {
    let tree = || {
        Tree::new("4:memory:/\n", "")
            .v1("sys/fs/cgroup/memory/a", "900\n", 300, 20)
            .v1("sys/fs/cgroup/memory/b", "500\n", 300, 20)
    };
    let ended = tree();
    fs::remove_file(ended.0.path().join("proc/self/mountinfo")).unwrap();
    ended.write("proc/thread-self/cgroup", "4:memory:/a\n");
    ended.write("proc/thread-self/mountinfo", HYBRID);
    let expected = group("sys/fs/cgroup/memory/a", 900, 300, 20);
    assert_eq!(ended.found(), [expected]);
    let known = KnownLimits::find_below(ended.0.path()).unwrap();
    assert!(known.is_current());
    assert_eq!(known.unused_bytes(), Some(600));
    ended.write("proc/thread-self/cgroup", "4:memory:/b\n");
    assert!(!known.is_current());
    // The group of the first thread is charged while that lives.
    let alive = tree();
    alive.write("proc/self/cgroup", "4:memory:/b\n");
    alive.write("proc/self/mountinfo", HYBRID);
    alive.write("proc/thread-self/cgroup", "4:memory:/a\n");
    let expected = group("sys/fs/cgroup/memory/b", 500, 300, 20);
    assert_eq!(alive.found(), [expected]);
}

#[test]
fn limited_v1_without_hierarchy_skips_ancestors() {
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
fn limited_in_container_with_host_paths_finds_visible_part() {
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
    // The group of another container does not limit this process.
    tree.write("proc/self/cgroup", "4:memory:/docker/ff\n");
    assert_eq!(tree.found(), []);
}

#[test]
fn limited_uses_mount_that_shows_most_ancestors() {
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
fn limited_with_mount_above_namespace_finds_its_top() {
    let mountinfo = "735 730 0:26 /../.. /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
    let tree = Tree::new("0::/sub\n", mountinfo)
        .v2("sys/fs/cgroup", "900\n", 300, 0)
        .v2("sys/fs/cgroup/sub", "1\n", 1, 0);
    assert_eq!(tree.found(), [group("sys/fs/cgroup", 900, 300, 0)]);
    // The process was moved out of its namespace, and is seen from there.
    tree.write("proc/self/cgroup", "0::/../../sub\n");
    assert_eq!(tree.found().len(), 2);
    // Outside the mount.
    tree.write("proc/self/cgroup", "0::/../../../sub\n");
    assert_eq!(tree.found(), []);
    let tree = Tree::new("0::/../sub\n", V2_ONLY).v2("sys/fs/cgroup", "900\n", 300, 0);
    assert_eq!(tree.found(), []);
}

#[test]
fn page_cache_excludes_shared_memory() {
    for tree in [
        Tree::new("0::/a\n", V2_ONLY).v2("sys/fs/cgroup/a", "900\n", 300, 20),
        Tree::new("4:memory:/a\n", HYBRID).v1("sys/fs/cgroup/memory/a", "900\n", 300, 20),
    ] {
        let found = Groups::find_below(tree.0.path())
            .unwrap()
            .limited()
            .unwrap();
        assert_eq!(found[0].page_cache_bytes as u64, CACHE - 5);
    }
}

#[test]
fn limited_skips_unreadable_groups() {
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
    // Reading a directory as a file fails for root, too.
    let tree = Tree::new("0::/a\n", V2_ONLY).v2("sys/fs/cgroup/a", "900\n", 300, 20);
    let usage = tree.0.path().join("sys/fs/cgroup/a/memory.current");
    fs::remove_file(&usage).unwrap();
    fs::create_dir(&usage).unwrap();
    assert_eq!(tree.found(), []);
}

#[test]
fn limited_groups_of_this_machine_are_consistent() {
    for group in Groups::find().unwrap().limited().unwrap() {
        assert!(group.path.join("memory.stat").is_file(), "{group:?}");
        assert!(group.inactive_file_bytes <= group.usage_bytes, "{group:?}");
    }
}

/// Returns the events at the limits found, innermost first.
fn events(tree: &Tree) -> Vec<Events> {
    let groups = Groups::find_below(tree.0.path()).unwrap();
    let limited = groups.limited().unwrap();
    limited.iter().map(|group| groups.events(group)).collect()
}

#[test]
fn events_v2_prefer_local_file() {
    let tree = Tree::new("0::/a/b\n", V2_ONLY)
        .v2("sys/fs/cgroup/a/b", "900\n", 300, 0)
        .v2("sys/fs/cgroup/a", "1000\n", 300, 0);
    tree.write(
        "sys/fs/cgroup/a/b/memory.events",
        "low 9\nhigh 2\nmax 30\noom 4\noom_kill 1\noom_group_kill 7\n",
    );
    let with_inner = "low 0\nhigh 0\nmax 31\noom 4\noom_kill 1\n";
    tree.write("sys/fs/cgroup/a/memory.events", with_inner);
    let local = "low 0\nhigh 0\nmax 1\noom 0\noom_kill 0\n";
    tree.write("sys/fs/cgroup/a/memory.events.local", local);
    let expected = |hits, ooms| Events {
        hits,
        ooms,
        is_out_of_memory: false,
    };
    assert_eq!(events(&tree), [expected(32, 5), expected(1, 0)]);
    let groups = Groups::find_below(tree.0.path()).unwrap();
    let directory = tree.0.path().join("sys/fs/cgroup/a");
    let files = [
        directory.join("b/memory.events"),
        directory.join("memory.events.local"),
    ];
    assert_eq!(groups.event_files(&groups.limited().unwrap()), files);
}

#[test]
fn events_v1_are_read_from_several_files() {
    let tree = Tree::new("4:memory:/a/b\n", HYBRID)
        .v1("sys/fs/cgroup/memory/a/b", "900\n", 300, 0)
        .v1("sys/fs/cgroup/memory/a", "1000\n", 300, 0);
    tree.write("sys/fs/cgroup/memory/a/b/memory.failcnt", "1234\n");
    let control = "oom_kill_disable 1\nunder_oom 1\noom_kill 2\n";
    tree.write("sys/fs/cgroup/memory/a/b/memory.oom_control", control);
    // Before Linux 4.13.
    let control = "oom_kill_disable 0\nunder_oom 0\n";
    tree.write("sys/fs/cgroup/memory/a/memory.oom_control", control);
    let inner = Events {
        hits: 1234,
        ooms: 2,
        is_out_of_memory: true,
    };
    assert_eq!(events(&tree), [inner, Events::default()]);
    let groups = Groups::find_below(tree.0.path()).unwrap();
    assert_eq!(
        groups.event_files(&groups.limited().unwrap()),
        [] as [PathBuf; 0]
    );
}

#[test]
fn limits_are_polled_repeatedly() {
    let poll = |tree: &Tree| {
        let groups = Groups::find_below(tree.0.path()).unwrap();
        let limits = groups.limits(&groups.limited().unwrap()).into_iter();
        let figures = |limit: Limit| (limit.hits(), limit.unused());
        limits.map(figures).collect::<Vec<_>>()
    };
    let (directory, outer) = ("sys/fs/cgroup/a/b", "sys/fs/cgroup/a");
    let tree = Tree::new("0::/a/b\n", V2_ONLY)
        .v2(directory, "900\n", 300, 0)
        .v2(outer, "1000\n", 1100, 0);
    tree.write(
        &format!("{directory}/memory.events"),
        "low 9\nhigh 2\nmax 30\n",
    );
    tree.write(&format!("{outer}/memory.events"), "max 31\n");
    tree.write(&format!("{outer}/memory.events.local"), "high 0\nmax 1\n");
    assert_eq!(poll(&tree), [(32, Some((900, 600))), (1, Some((1000, 0)))]);

    let (directory, outer) = ("sys/fs/cgroup/memory/a/b", "sys/fs/cgroup/memory/a");
    let tree = Tree::new("4:memory:/a/b\n", HYBRID)
        .v1(directory, "900\n", 300, 0)
        .v1(outer, "1000\n", 400, 0);
    tree.write(&format!("{directory}/memory.failcnt"), "0\n");
    // Here allocations hit the limit on memory and swap.
    tree.write(&format!("{directory}/memory.memsw.failcnt"), "12\n");
    tree.write(&format!("{outer}/memory.failcnt"), "5\n");
    assert_eq!(
        poll(&tree),
        [(12, Some((900, 600))), (5, Some((1000, 600)))]
    );
    assert_eq!(events(&tree)[0].hits, 12);
    // The limits outlive their directories.
    let groups = Groups::find_below(tree.0.path()).unwrap();
    let limits = groups.limits(&groups.limited().unwrap());
    fs::remove_dir_all(tree.0.path().join(directory)).unwrap();
    assert_eq!((limits[0].hits(), limits[0].unused()), (0, None));
}

#[test]
fn events_unreadable_are_zero() {
    let tree = Tree::new("0::/a\n", V2_ONLY).v2("sys/fs/cgroup/a", "900\n", 300, 0);
    assert_eq!(events(&tree), [Events::default()]);
    tree.write(
        "sys/fs/cgroup/a/memory.events",
        "max\nmax \nhigh x\noom -1\n",
    );
    assert_eq!(events(&tree), [Events::default()]);
}

#[test]
fn pressure_file_is_own_groups_unless_root() {
    let file = |tree: &Tree| {
        let file = Groups::find_below(tree.0.path()).unwrap().pressure_file()?;
        let file = file.strip_prefix(tree.0.path()).unwrap();
        Some(file.display().to_string())
    };
    let tree = Tree::new("0::/a/b\n", V2_ONLY);
    assert_eq!(file(&tree), None);
    let directory = "sys/fs/cgroup/a/b";
    tree.write(&format!("{directory}/cgroup.events"), "populated 1\n");
    // PSI is switched off by cgroup.pressure.
    assert_eq!(file(&tree), None);
    tree.write(&format!("{directory}/memory.pressure"), "");
    assert_eq!(file(&tree), Some(format!("{directory}/memory.pressure")));
    // Version 1 controls memory, and version 2 still reports stalls.
    let tree = Tree::new("4:memory:/m\n0::/x\n", HYBRID);
    let directory = "sys/fs/cgroup/unified/x";
    tree.write(&format!("{directory}/cgroup.events"), "populated 1\n");
    tree.write(&format!("{directory}/memory.pressure"), "");
    assert_eq!(file(&tree), Some(format!("{directory}/memory.pressure")));
    // The root has the system's stalls, and no cgroup.events.
    tree.write("proc/self/cgroup", "4:memory:/m\n0::/\n");
    tree.write("sys/fs/cgroup/unified/memory.pressure", "");
    assert_eq!(file(&tree), None);
}

#[test]
fn active_file_bytes_are_read_from_stat() {
    let v2 = Tree::new("0::/a\n", V2_ONLY).v2("sys/fs/cgroup/a", "900\n", 300, 20);
    assert_eq!(
        Groups::find_below(v2.0.path()).unwrap().limited().unwrap()[0].active_file_bytes,
        3
    );
    let v1 = Tree::new("4:memory:/a\n", HYBRID).v1("sys/fs/cgroup/memory/a", "900\n", 300, 20);
    v1.write(
        "sys/fs/cgroup/memory/a/memory.stat",
        "active_file 1\ntotal_active_file 4\n",
    );
    assert_eq!(
        Groups::find_below(v1.0.path()).unwrap().limited().unwrap()[0].active_file_bytes,
        4
    );
}

/// Returns the least unused bytes of the limits, without and with inactive
/// page cache, of a look that must not overlook one.
fn unused(tree: &Tree) -> Option<(usize, usize)> {
    let known = KnownLimits::find_below(tree.0.path())?;
    Some((known.unused_bytes()?, known.unused_or_cached_bytes()?))
}

#[test]
fn known_limits_are_those_of_all_groups() {
    let tree = Tree::new("0::/a/b\n", V2_ONLY)
        .v2("sys/fs/cgroup/a", "900\n", 300, 20)
        .v2("sys/fs/cgroup/a/b", "max\n", 100, 20);
    assert_eq!(unused(&tree), Some((600, 620)));
    let known = KnownLimits::find_below(tree.0.path()).unwrap();
    assert!(known.is_current());
    tree.write("proc/self/cgroup", "0::/a\n");
    assert!(!known.is_current(), "moved to another group");
    let unlimited = Tree::new("0::/\n", V2_ONLY);
    assert_eq!(unused(&unlimited), Some((usize::MAX, usize::MAX)));
}

#[test]
fn limit_that_cannot_be_read_is_not_unlimited() {
    let tree = || Tree::new("0::/a\n", V2_ONLY).v2("sys/fs/cgroup/a", "900\n", 300, 20);
    // Reading a directory as a file fails for root, too.
    for file in [
        "sys/fs/cgroup/a/memory.max",
        "sys/fs/cgroup/a/memory.current",
        "proc/self/mountinfo",
    ] {
        let tree = tree();
        let path = tree.0.path().join(file);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(unused(&tree), None, "{file}");
    }
    // No mount shows the group.
    assert_eq!(unused(&Tree::new("0::/a\n", "")), None);
}

/// Returns how much the groups of the tree let the kernel swap out.
fn swappable(tree: &Tree) -> usize {
    let root = tree.0.path();
    let groups = Groups::find_below(root).unwrap();
    groups.swappable_bytes_below(root).unwrap()
}

#[test]
fn swappable_v2_is_the_least_that_a_group_leaves() {
    let tree = Tree::new("0::/a/b\n", V2_ONLY);
    tree.write("proc/sys/vm/swappiness", "60\n");
    assert_eq!(swappable(&tree), usize::MAX);
    tree.write("sys/fs/cgroup/a/b/memory.swap.max", "max\n");
    tree.write("sys/fs/cgroup/a/b/memory.swap.current", "300\n");
    assert_eq!(swappable(&tree), usize::MAX);
    tree.write("sys/fs/cgroup/a/memory.swap.max", "1000\n");
    tree.write("sys/fs/cgroup/a/memory.swap.current", "400\n");
    assert_eq!(swappable(&tree), 600);
    tree.write("sys/fs/cgroup/a/b/memory.swap.max", "500\n");
    assert_eq!(swappable(&tree), 200);
    // Past the limit, which was lowered.
    tree.write("sys/fs/cgroup/a/b/memory.swap.max", "0\n");
    assert_eq!(swappable(&tree), 0);
}

#[test]
fn swappable_v1_is_what_memory_and_swap_leave_together() {
    let unlimited = "9223372036854771712\n";
    let tree = Tree::new("4:memory:/a/b\n", HYBRID)
        .v1("sys/fs/cgroup/memory/a/b", unlimited, 300, 0)
        .v1("sys/fs/cgroup/memory/a", "1000\n", 300, 0);
    // A kernel that does not count swap.
    tree.write("proc/sys/vm/swappiness", "60\n");
    assert_eq!(swappable(&tree), usize::MAX);
    let set = |group: &str, limit: &str, usage: &str| {
        let folder = format!("sys/fs/cgroup/memory/{group}");
        tree.write(&format!("{folder}/memory.memsw.limit_in_bytes"), limit);
        tree.write(&format!("{folder}/memory.memsw.usage_in_bytes"), usage);
    };
    set("a/b", unlimited, "900\n");
    assert_eq!(swappable(&tree), usize::MAX);
    // As in containers without swap.
    set("a", "1000\n", "900\n");
    assert_eq!(swappable(&tree), 0);
    set("a", "1500\n", "900\n");
    assert_eq!(swappable(&tree), 500);
    set("a", "1500\n", "1300\n");
    assert_eq!(swappable(&tree), 200);
}

#[test]
fn swappable_is_nothing_where_a_group_does_not_swap() {
    let tree = Tree::new("4:memory:/a\n", HYBRID);
    let own = "sys/fs/cgroup/memory/a/memory.swappiness";
    tree.write(own, "0\n");
    tree.write("proc/sys/vm/swappiness", "60\n");
    assert_eq!(swappable(&tree), 0);
    tree.write("proc/sys/vm/swappiness", "0\n");
    tree.write(own, "1\n");
    assert_eq!(swappable(&tree), usize::MAX);
    let tree = Tree::new("0::/a\n", V2_ONLY);
    tree.write("proc/sys/vm/swappiness", "0\n");
    assert_eq!(swappable(&tree), 0);
}

#[test]
fn swappable_with_nonsense_fails() {
    let tree = Tree::new("0::/a\n", V2_ONLY);
    tree.write("sys/fs/cgroup/a/memory.swap.max", "many\n");
    let groups = Groups::find_below(tree.0.path()).unwrap();
    assert!(groups.swappable_bytes_below(tree.0.path()).is_err());
}
