//! A memory cgroup, for as long as somebody holds it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, process};

use anyhow::{Context as _, Result};
use procfs::process::Process;
use tenure::{Features, MemoryCgroup};

use super::restore::{PutBack, read_number};

/// A cgroup of our own, removed also when the command is killed.
pub struct Group {
    path: PathBuf,
    version: MemoryCgroup,
    _removed_at_the_end: PutBack,
}

impl Group {
    /// Makes one below the cgroup of this process.
    pub fn with_limit(limit_bytes: usize) -> Result<Self> {
        let group = Self::with_limit_of_memory(limit_bytes)?;
        let (swap, swap_bytes) = match group.version {
            MemoryCgroup::V1 => ("memory.memsw.limit_in_bytes", limit_bytes),
            _ => ("memory.swap.max", 0),
        };
        // The processes are to give up what is free before anything is swapped.
        // Without swap there is no such file.
        let _ = fs::write(group.path.join(swap), swap_bytes.to_string());
        Ok(group)
    }

    /// Makes one whose processes may swap.
    pub fn with_limit_of_memory(limit_bytes: usize) -> Result<Self> {
        let group = Self::without_limit()?;
        let limit = match group.version {
            MemoryCgroup::V1 => "memory.limit_in_bytes",
            _ => "memory.max",
        };
        fs::write(group.path.join(limit), limit_bytes.to_string())
            .with_context(|| format!("writing {limit}"))?;
        Ok(group)
    }

    /// Makes one that only tells what its processes are charged for.
    pub fn without_limit() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let version = Features::get().memory_cgroup;
        let parent = match version {
            MemoryCgroup::V1 => own_folder("cgroup", Some("memory"))?,
            MemoryCgroup::V2 => {
                let own = own_folder("cgroup2", None)?;
                // A group with processes in it has no limited groups in it.
                let parent = own.ancestors().find(|group| delegates_memory(group));
                let parent = parent.context("no cgroup around this process has limited ones")?;
                parent.to_owned()
            }
            _ => anyhow::bail!("this process is in no memory cgroup"),
        };
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("tenure-{}-{number}", process::id()));
        fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self {
            _removed_at_the_end: PutBack::removed_at_the_end(&path)?,
            path,
            version,
        })
    }

    /// Returns what its processes are charged for.
    pub fn charged_bytes(&self) -> Result<u64> {
        read_number(&self.path.join(match self.version {
            MemoryCgroup::V1 => "memory.usage_in_bytes",
            _ => "memory.current",
        }))
    }

    /// Returns the folder of the cgroup.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn delegates_memory(group: &Path) -> bool {
    let names = fs::read_to_string(group.join("cgroup.subtree_control")).unwrap_or_default();
    names.split_whitespace().any(|name| name == "memory")
}

/// Returns the folder of this process's cgroup, where its hierarchy is mounted whole.
fn own_folder(kind: &str, controller: Option<&str>) -> Result<PathBuf> {
    let this = Process::myself()?;
    let groups = this.cgroups()?;
    let own = groups.0.iter().find(|group| match controller {
        Some(wanted) => group.controllers.iter().any(|name| name == wanted),
        None => group.hierarchy == 0,
    });
    let mounts = this.mountinfo()?;
    let mount = mounts.0.iter().find(|mount| {
        let controls = |wanted: &str| mount.super_options.contains_key(wanted);
        mount.fs_type == kind && mount.root == "/" && controller.is_none_or(controls)
    });
    let own = own.context("this process is in no memory cgroup")?;
    let mount = mount.with_context(|| format!("no whole {kind} file system is mounted"))?;
    Ok(mount.mount_point.join(own.pathname.trim_start_matches('/')))
}
