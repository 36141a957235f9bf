//! What has happened at the limit of a memory cgroup.

use std::path::{Path, PathBuf};

use super::{MemoryCgroup, read};

/// Counters of a group; they only grow. What the kernel does not tell is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Events {
    /// How often something met the limit, so that the kernel had to take pages
    /// back first: `max` and `high` in `memory.events`; `memory.failcnt` and
    /// `memory.memsw.failcnt`. Of version 1 it may be 0 however often that was:
    /// where the limit on memory and swap is the same one, it alone is met, and
    /// Linux 6.18 does not count that.
    pub(crate) hits: u64,
    /// How often nothing could be taken back, or a process was killed for it.
    pub(crate) ooms: u64,
    /// Processes wait for memory because the group does not kill (version 1).
    pub(crate) is_out_of_memory: bool,
}

impl Events {
    pub(super) fn read(folder: &Path, version: MemoryCgroup) -> Self {
        match version {
            MemoryCgroup::V2 => Self::parse(version, |_| read(&file(folder))),
            _ => Self::parse(version, |name| read(&folder.join(name))),
        }
    }

    /// The same for files that `read` has.
    pub(super) fn parse(version: MemoryCgroup, read: impl Fn(&str) -> String) -> Self {
        if version == MemoryCgroup::V2 {
            let text = read("memory.events");
            let count = |name| number(&text, name);
            return Self {
                hits: hits_of_version_2(&text),
                ooms: count("oom ").saturating_add(count("oom_kill ")),
                is_out_of_memory: false,
            };
        }
        let control = read("memory.oom_control");
        Self {
            hits: hits_of_version_1(&read),
            // Linux 4.13.
            ooms: number(&control, "oom_kill "),
            is_out_of_memory: number(&control, "under_oom ") != 0,
        }
    }
}

/// The hits alone, for those who look often.
pub(super) fn hits(folder: &Path, version: MemoryCgroup) -> u64 {
    if version == MemoryCgroup::V2 {
        return hits_of_version_2(&read(&file(folder)));
    }
    hits_of_version_1(|name| read(&folder.join(name)))
}

fn hits_of_version_1(read: impl Fn(&str) -> String) -> u64 {
    let count = |name| read(name).trim().parse().unwrap_or(0_u64);
    count("memory.failcnt").saturating_add(count("memory.memsw.failcnt"))
}

fn hits_of_version_2(text: &str) -> u64 {
    number(text, "max ").saturating_add(number(text, "high "))
}

/// The file of a group of version 2: its own events where the kernel tells them
/// apart from those of the groups in it (Linux 5.2), for a group in it may meet a
/// lower limit that is not ours.
pub(super) fn file(folder: &Path) -> PathBuf {
    let own = folder.join("memory.events.local");
    if own.is_file() {
        own
    } else {
        folder.join("memory.events")
    }
}

fn number(text: &str, name: &str) -> u64 {
    let mut numbers = text.lines().filter_map(|line| line.strip_prefix(name));
    numbers
        .next()
        .and_then(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_are_too_large_are_the_largest() {
        let most = u64::MAX;
        for version in [MemoryCgroup::V1, MemoryCgroup::V2] {
            let read = |name: &str| match name {
                "memory.events" => format!("max {most}\nhigh 1\noom {most}\noom_kill {most}\n"),
                "memory.oom_control" => format!("oom_kill {most}\n"),
                _ => format!("{most}\n"),
            };
            let events = Events::parse(version, read);
            assert_eq!((events.hits, events.ooms), (most, most));
        }
    }
}
