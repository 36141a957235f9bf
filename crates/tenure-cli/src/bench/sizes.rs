//! How much memory the experiments may use.

use std::{fs, path::Path};

use anyhow::Result;
use rustix::{
    mm::{self, MapFlags, MlockFlags, ProtFlags},
    process::{Resource, getrlimit},
};

use super::{kernel, text::bytes_text};

/// A size that fits, and what to tell the reader when it is not the size that
/// was wanted.
#[derive(Debug, PartialEq)]
pub struct Fitted {
    /// The size.
    pub len: usize,
    /// What made it smaller.
    pub note: Option<String>,
}

/// The memory there is for the experiments.
#[derive(Clone, Debug)]
pub struct Room {
    available_bytes: u64,
    limited_by: &'static str,
}

impl Room {
    /// Reads MemAvailable and the room that the cgroups leave.
    pub fn now() -> Result<Self> {
        let available_bytes = super::environment::memory_available_bytes()?;
        let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let cgroup_room = cgroup_room_bytes(Path::new("/sys/fs/cgroup"), &cgroup);
        Ok(match cgroup_room {
            Some(room) if room < available_bytes => Self {
                available_bytes: room,
                limited_by: "the memory limit of the cgroup",
            },
            _ => Self {
                available_bytes,
                limited_by: "MemAvailable",
            },
        })
    }

    /// Makes `wanted` bytes fit into one `share`th of the room, in whole steps.
    pub fn fit(&self, wanted: usize, share: u64, step: usize) -> Result<Fitted> {
        let most = usize::try_from(self.available_bytes / share).unwrap_or(usize::MAX);
        let why = || {
            let available = bytes_text(self.available_bytes as f64);
            format!("{} leaves {available}", self.limited_by)
        };
        fit(wanted, most, step, why)
    }
}

fn fit(wanted: usize, most: usize, step: usize, why: impl Fn() -> String) -> Result<Fitted> {
    if wanted <= most {
        let (len, note) = (wanted, None);
        return Ok(Fitted { len, note });
    }
    let len = most / step * step;
    if len == 0 {
        let step = bytes_text(step as f64);
        anyhow::bail!("too little memory: at least {step} needed, and {}", why());
    }
    let note = format!(
        "Size: {} instead of {}, because {}.",
        bytes_text(len as f64),
        bytes_text(wanted as f64),
        why()
    );
    Ok(Fitted {
        len,
        note: Some(note),
    })
}

/// Makes `wanted` bytes fit into what this process may lock.
pub fn fit_to_lock(wanted: usize, step: usize) -> Result<Fitted> {
    // The limit does not bind a process that is privileged in the right
    // namespace; asking the kernel is the only sure way to know.
    if may_lock(wanted) {
        let (len, note) = (wanted, None);
        return Ok(Fitted { len, note });
    }
    let limit = getrlimit(Resource::Memlock).current.unwrap_or(u64::MAX);
    let room = limit.saturating_sub(kernel::memlock_charged_bytes()?);
    let most = usize::try_from(room).unwrap_or(usize::MAX);
    let why = || {
        let room = bytes_text(room as f64);
        format!("RLIMIT_MEMLOCK leaves {room} (raise it with ulimit -l or LimitMEMLOCK=)")
    };
    fit(wanted, most, step, why)
}

/// Tries to lock `len` bytes on fault, which charges the limit but takes no memory.
fn may_lock(len: usize) -> bool {
    // SAFETY: without MAP_FIXED the kernel picks an address that is free.
    let mapped = unsafe {
        mm::mmap_anonymous(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ,
            MapFlags::PRIVATE,
        )
    };
    let Ok(start) = mapped else { return false };
    // SAFETY: the range was just mapped, is ours alone, and is gone afterwards.
    unsafe {
        let locked = mm::mlock_with(start, len, MlockFlags::ONFAULT).is_ok();
        let unmapped = mm::munmap(start, len).is_ok();
        locked && unmapped
    }
}

/// How the two versions of cgroups tell about memory.
struct CgroupFiles {
    /// What a line of /proc/self/cgroup says before the path of the cgroup.
    controller: &'static str,
    mount: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// The field of memory.stat with the cache that the kernel gives up first.
    inactive_cache: &'static str,
}

const VERSION_1: CgroupFiles = CgroupFiles {
    controller: "memory",
    mount: "memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    inactive_cache: "total_inactive_file ",
};

const VERSION_2: CgroupFiles = CgroupFiles {
    controller: "",
    mount: "",
    limit: "memory.max",
    usage: "memory.current",
    inactive_cache: "inactive_file ",
};

/// Returns the smallest room that a cgroup of this process leaves, or one above
/// it; `None` where none has a limit. `own` is /proc/self/cgroup.
fn cgroup_room_bytes(mount: &Path, own: &str) -> Option<u64> {
    let rooms = own.lines().filter_map(|line| {
        // For example "4:cpu,memory:/user/me", or "0::/user/me".
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let version = [VERSION_1, VERSION_2].into_iter().find(|version| {
            controllers
                .split(',')
                .any(|name| name == version.controller)
        })?;
        let mount = mount.join(version.mount);
        let groups = Path::new(path.strip_prefix('/')?).ancestors();
        groups
            .filter_map(|group| group_room_bytes(&mount.join(group), &version))
            .min()
    });
    rooms.min()
}

fn group_room_bytes(group: &Path, version: &CgroupFiles) -> Option<u64> {
    let read = |file: &str| fs::read_to_string(group.join(file)).ok();
    // "max" is no number: no limit here.
    let limit: u64 = read(version.limit)?.trim().parse().ok()?;
    let usage: u64 = read(version.usage)?.trim().parse().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let inactive_cache = stat
        .lines()
        .find_map(|line| line.strip_prefix(version.inactive_cache)?.parse().ok())
        .unwrap_or(0);
    Some(limit.saturating_sub(usage.saturating_sub(inactive_cache)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn room(available_bytes: usize) -> Room {
        Room {
            available_bytes: available_bytes as u64,
            limited_by: "MemAvailable",
        }
    }

    #[test]
    fn what_fits_is_left_alone() {
        let fitted = room(100 * MIB).fit(25 * MIB, 4, MIB).unwrap();
        assert_eq!(fitted.len, 25 * MIB);
        assert_eq!(fitted.note, None);
    }

    #[test]
    fn what_does_not_is_cut_to_whole_steps_and_the_reader_is_told() {
        let fitted = room(103 * MIB).fit(80 * MIB, 4, 10 * MIB).unwrap();
        assert_eq!(fitted.len, 20 * MIB);
        assert_eq!(
            fitted.note.unwrap(),
            "Size: 20 MiB instead of 80 MiB, because MemAvailable leaves 103 MiB."
        );
    }

    #[test]
    fn less_than_a_step_is_an_error() {
        let error = room(10 * MIB).fit(80 * MIB, 4, 10 * MIB).unwrap_err();
        assert!(error.to_string().contains("at least 10 MiB needed"));
    }

    #[test]
    fn a_page_may_be_locked_and_the_whole_address_space_may_not() {
        assert!(!may_lock(usize::MAX / 2));
        let fitted = fit_to_lock(tenure::page_size(), tenure::page_size()).unwrap();
        assert_eq!(fitted.len, tenure::page_size());
    }

    /// Makes a cgroup's files below a folder.
    fn write(folder: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(folder).unwrap();
        for (name, contents) in files {
            fs::write(folder.join(name), contents).unwrap();
        }
    }

    #[test]
    fn the_tightest_cgroup_counts() {
        let mount = tempfile::tempdir().unwrap();
        for (group, limit, usage) in [
            ("a", "1000", "400"),
            ("a/b", "900", "100"),
            ("a/b/c", "max", "50"),
        ] {
            let files = [("memory.max", limit), ("memory.current", usage)];
            write(&mount.path().join(group), &files);
        }
        assert_eq!(cgroup_room_bytes(mount.path(), "0::/a/b/c\n"), Some(600));
        assert_eq!(cgroup_room_bytes(mount.path(), "0::/other\n"), None);
    }

    #[test]
    fn version_1_is_understood_and_idle_cache_is_room() {
        let mount = tempfile::tempdir().unwrap();
        let files = [
            ("memory.limit_in_bytes", "1000\n"),
            ("memory.usage_in_bytes", "900\n"),
            ("memory.stat", "inactive_file 1\ntotal_inactive_file 300\n"),
        ];
        write(&mount.path().join("memory/a"), &files);
        let own = "5:cpu:/a\n4:cpuset,memory:/a/b\n0::/\n";
        assert_eq!(cgroup_room_bytes(mount.path(), own), Some(400));
        assert_eq!(cgroup_room_bytes(mount.path(), "4:memoryless:/a\n"), None);
    }
}
