//! Memory cgroups with real limits.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::is_root;
use tenure::{Features, MemoryCgroup};

/// Names the folder of the cgroup that a child enters.
const GROUP: &str = "TENURE_TEST_CGROUP";

/// Names the folder of a second cgroup, in the unified hierarchy, that a child enters as
/// well.
const UNIFIED: &str = "TENURE_TEST_UNIFIED_CGROUP";

/// Moves this process into the cgroup that its parent has made for it.
pub fn enter_group() -> PathBuf {
    let named = |variable| std::env::var_os(variable).map(PathBuf::from);
    let group = named(GROUP).expect("the cgroup to enter");
    for group in std::iter::once(&group).chain(&named(UNIFIED)) {
        fs::write(group.join("cgroup.procs"), std::process::id().to_string()).unwrap();
    }
    group
}

/// A cgroup with a memory limit, removed when it is dropped.
pub struct Group {
    path: PathBuf,
    limit_file: &'static str,
    /// The outer cgroup, removed after this one.
    outer: Option<Box<Group>>,
    /// A cgroup in the unified hierarchy that is entered as well.
    unified: Option<PathBuf>,
}

impl Group {
    /// Creates a cgroup below the one of this process, or returns the reason why it cannot.
    pub fn with_limit(limit_bytes: usize) -> Result<Self, String> {
        Self::with_limit_and_name(limit_bytes, b"")
    }

    /// Creates such a cgroup, whose name ends in these bytes.
    pub fn with_limit_and_name(limit_bytes: usize, name: &[u8]) -> Result<Self, String> {
        if !is_root() {
            return Err("making a cgroup needs root".to_owned());
        }
        let (parent, limit_file) = match Features::get().memory_cgroup {
            MemoryCgroup::V1 => {
                let own = own_folder("cgroup", "memory")?;
                (own, "memory.limit_in_bytes")
            }
            MemoryCgroup::V2 => {
                let own = own_folder("cgroup2", "")?;
                // A cgroup that contains processes cannot have limited child groups.
                let parent = own.ancestors().find(|group| delegates_memory(group));
                let parent = parent.ok_or("no cgroup of ours delegates the memory controller")?;
                (parent.to_owned(), "memory.max")
            }
            _ => return Err("this process is in no memory cgroup".to_owned()),
        };
        Self::make(&parent, name, limit_file, limit_bytes, None)
    }

    pub fn inner(self, limit_bytes: usize) -> Result<Self, String> {
        if self.limit_file == "memory.max" {
            fs::write(self.path.join("cgroup.subtree_control"), "+memory")
                .map_err(|error| format!("delegating the memory controller: {error}"))?;
        }
        let (parent, limit_file) = (self.path.clone(), self.limit_file);
        Self::make(&parent, b"", limit_file, limit_bytes, Some(Box::new(self)))
    }

    fn make(
        parent: &Path,
        name: &[u8],
        limit_file: &'static str,
        limit_bytes: usize,
        outer: Option<Box<Self>>,
    ) -> Result<Self, String> {
        let mut folder = OsString::from(format!("tenure-test-{}", std::process::id()));
        folder.push(OsStr::from_bytes(name));
        let path = parent.join(folder);
        let explain = |error| format!("making a cgroup in {}: {error}", parent.display());
        fs::create_dir(&path).map_err(explain)?;
        let group = Self {
            path,
            limit_file,
            outer,
            unified: None,
        };
        fs::write(group.path.join(limit_file), limit_bytes.to_string()).map_err(explain)?;
        Ok(group)
    }

    /// Makes the limit hold for memory and swap together, as in containers without swap,
    /// where the kernel can limit that.
    pub fn without_swap(self) -> Result<Self, String> {
        let (file, limit) = match self.limit_file {
            "memory.max" => ("memory.swap.max", "0".to_owned()),
            limit_file => {
                let limit = fs::read_to_string(self.path.join(limit_file));
                let limit = limit.map_err(|error| format!("reading {limit_file}: {error}"))?;
                ("memory.memsw.limit_in_bytes", limit)
            }
        };
        fs::write(self.path.join(file), limit)
            .map_err(|error| format!("writing {file}: {error}"))?;
        Ok(self)
    }

    /// Adds a cgroup of its own in the unified hierarchy, which reports its own stalls,
    /// where version 1 controls memory.
    pub fn with_unified(mut self) -> Result<Self, String> {
        if self.limit_file == "memory.max" {
            return Ok(self);
        }
        let path = own_folder("cgroup2", "")?.join(format!("tenure-test-{}", std::process::id()));
        let explain = |error| format!("making {}: {error}", path.display());
        fs::create_dir(&path).map_err(explain)?;
        self.unified = Some(path);
        Ok(self)
    }

    /// Returns the folder of the cgroup.
    pub fn folder(&self) -> &Path {
        &self.path
    }

    /// Sets the environment of a command so that [`enter_group`] finds its cgroup.
    pub fn tell(&self, command: &mut Command) {
        command.env(GROUP, &self.path);
        if let Some(unified) = &self.unified {
            command.env(UNIFIED, unified);
        }
    }

    /// Runs a function named in `children:` in a process that enters the cgroup.
    pub fn run(&self, child: &str) {
        self.run_without("", child);
    }

    /// Runs a function named in `children:` in a process that enters the cgroup, without
    /// the named kernel features.
    pub fn run_without(&self, features: &str, child: &str) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--child", child]);
        command.env("TENURE_WITHOUT", features);
        self.tell(&mut command);
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{child}: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        print!("{}", String::from_utf8_lossy(&output.stdout));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel counts a process that has just ended a moment longer.
        let remove = |path: &Path| {
            (0..200).any(|_| {
                std::thread::sleep(Duration::from_millis(5));
                fs::remove_dir(path).is_ok()
            })
        };
        let gone = remove(&self.path) & self.unified.as_deref().is_none_or(remove);
        drop(self.outer.take());
        assert!(
            gone || std::thread::panicking(),
            "{} cannot be removed",
            self.path.display()
        );
    }
}

fn delegates_memory(group: &Path) -> bool {
    let handed = fs::read_to_string(group.join("cgroup.subtree_control")).unwrap_or_default();
    handed.split_whitespace().any(|name| name == "memory")
}

/// Returns the folder of this process's cgroup in the hierarchy that controls memory, where
/// that hierarchy is mounted whole.
fn own_folder(kind: &str, controller: &str) -> Result<PathBuf, String> {
    let is_ours = |list: &str| list.split(',').any(|name| name == controller);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = groups.lines().find_map(|line| {
        let fields: Vec<_> = line.splitn(3, ':').collect();
        is_ours(fields[1]).then(|| fields[2].trim_start_matches('/').to_owned())
    });
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let point = mounts.lines().find_map(|line| {
        let fields: Vec<_> = line.split(' ').collect();
        let dash = fields.iter().position(|&field| field == "-")?;
        let fits = fields[dash + 1] == kind
            && (controller.is_empty() || is_ours(fields[dash + 3]))
            && fields[3] == "/";
        fits.then(|| PathBuf::from(fields[4]))
    });
    let folder = own.and_then(|own| Some(point?.join(own)));
    folder.ok_or_else(|| format!("no whole {kind} file system is mounted"))
}
