//! The level of other processes and of cgroups, for programs that watch others.

use std::path::Path;
use std::time::Instant;

use super::Level;
use super::judge::Judge;
use super::reading::Reading;
use crate::ground::error::{Error, Result};
use crate::ground::sys::Errno;
use crate::ground::sys::cgroup::Groups;
use crate::ground::sys::smaps;
use crate::observation::headroom::Bounds;

/// Returns the level for another process, from one reading of its cgroups and the machine.
/// A watcher in that process, which knows earlier readings, may have another.
///
/// # Errors
///
/// * [`Error::NoProcess`] when there is no such process,
/// * [`Error::PermissionDenied`] without permission to read its cgroups,
/// * [`Error::System`] when the limits cannot be read.
///
/// ```
/// let level = tenure::pressure::level_of_process(std::process::id())?;
/// println!("{level}");
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn level_of_process(pid: u32) -> Result<Level> {
    let groups = Groups::of_process(pid).map_err(|errno| match errno {
        Errno::NOENT | Errno::SRCH => Error::NoProcess { pid },
        Errno::ACCESS | Errno::PERM => Error::PermissionDenied { pid, answer: errno },
        errno => unreadable(errno),
    })?;
    level_in(&groups, || {
        let process = smaps::of_process(Some(pid)).ok();
        process
            .and_then(|process| process.figures.lazily_free)
            .unwrap_or(0)
    })
}

/// Returns the level in a memory cgroup, from one reading of it, of the groups around it
/// and of the machine. `lazily_free_bytes` of its memory were freed lazily and not reused;
/// 0 if that is unknown.
///
/// # Errors
///
/// [`Error::System`] when the limits cannot be read. A folder that is no memory cgroup has
/// no limits: the level is the machine's.
pub fn level_in_cgroup(folder: &Path, lazily_free_bytes: usize) -> Result<Level> {
    level_in(&Groups::at(folder), || lazily_free_bytes)
}

fn level_in(groups: &Groups, lazily_free_bytes: impl FnOnce() -> usize) -> Result<Level> {
    let bounds = Bounds::of(groups).map_err(unreadable)?;
    let (reading, _) = Reading::of(groups, &bounds, lazily_free_bytes);
    Ok(Judge::new().update(Instant::now(), reading).level)
}

fn unreadable(errno: Errno) -> Error {
    Error::System {
        call: "reading the memory limits in /proc and the cgroups",
        errno,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A group of version 2 with a limit and a usage in bytes, below a folder that is none.
    fn group(limit: &str, usage: &str, inactive_file: usize) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("group");
        fs::create_dir(&inside).unwrap();
        let stat = format!("file 0\nshmem 0\ninactive_file {inactive_file}\nactive_file 0\n");
        for (name, text) in [
            ("memory.max", limit),
            ("memory.current", usage),
            ("memory.stat", &stat),
            ("cgroup.events", "populated 1\n"),
        ] {
            fs::write(inside.join(name), text).unwrap();
        }
        folder
    }

    #[test]
    fn nearly_full_cgroup_is_severe_unless_memory_is_lazily_free() {
        let full = group("1073741824\n", "1073000000\n", 900 << 20);
        let folder = full.path().join("group");
        assert_eq!(level_in_cgroup(&folder, 0).unwrap(), Level::Severe);
        // The machine may be under pressure itself, so the figure behind the level counts.
        let groups = Groups::at(&folder);
        let bounds = Bounds::of(&groups).unwrap();
        let (reading, _) = Reading::of(&groups, &bounds, || 900 << 20);
        assert!(reading.groups[0].left_bytes >= 900 << 20, "{reading:?}");
    }

    #[test]
    fn stalls_of_cgroup_are_read_from_its_own_file() {
        let stalling = group("max\n", "1000\n", 0);
        let line = "avg10=50.00 avg60=0 avg300=0 total=7";
        let file = stalling.path().join("group/memory.pressure");
        fs::write(&file, format!("some {line}\nfull {line}\n")).unwrap();
        let groups = Groups::at(&stalling.path().join("group"));
        let bounds = Bounds::of(&groups).unwrap();
        let (reading, sources) = Reading::of(&groups, &bounds, || 0);
        assert_eq!(reading.own.unwrap().some.recent_share, 0.5);
        assert_eq!(sources.pressure_file, Some(file));
    }

    #[test]
    fn process_that_does_not_exist_is_an_error() {
        let none = u32::MAX >> 1;
        assert_eq!(level_of_process(none), Err(Error::NoProcess { pid: none }));
        level_of_process(std::process::id()).unwrap();
    }
}
