//! Events at the limit of a memory cgroup.

use std::path::{Path, PathBuf};

use super::{MemoryCgroup, read};

/// Counters of a group, which only grow. A counter that the kernel does not
/// offer is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Events {
    /// How often an allocation hit the limit, so that the kernel had to reclaim
    /// first: `max` and `high` in `memory.events`; `memory.failcnt` and
    /// `memory.memsw.failcnt`. In version 1 it may stay 0: where memory and
    /// memory+swap have the same limit, only the latter is hit, and Linux 6.18
    /// does not count that.
    pub(crate) hits: u64,
    /// How often reclaim found nothing, or the kernel killed a process.
    pub(crate) ooms: u64,
    /// Whether processes wait for memory because the group does not kill
    /// (version 1).
    pub(crate) is_out_of_memory: bool,
}

impl Events {
    pub(super) fn read(directory: &Path, version: MemoryCgroup) -> Self {
        match version {
            MemoryCgroup::V2 => Self::parse(version, |_| read(&file(directory))),
            _ => Self::parse(version, |name| read(&directory.join(name))),
        }
    }

    /// Parses the files, whose contents `read` returns.
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

/// Reads the hits alone, for frequent polling.
pub(super) fn hits(directory: &Path, version: MemoryCgroup) -> u64 {
    if version == MemoryCgroup::V2 {
        return hits_of_version_2(&read(&file(directory)));
    }
    hits_of_version_1(|name| read(&directory.join(name)))
}

fn hits_of_version_1(read: impl Fn(&str) -> String) -> u64 {
    let count = |name| read(name).trim().parse().unwrap_or(0_u64);
    count("memory.failcnt").saturating_add(count("memory.memsw.failcnt"))
}

fn hits_of_version_2(text: &str) -> u64 {
    number(text, "max ").saturating_add(number(text, "high "))
}

/// Returns the events file of a version 2 group: its local events where the
/// kernel separates them from those of its descendants (Linux 5.2), because a
/// descendant may hit a lower limit that does not apply to this process.
pub(super) fn file(directory: &Path) -> PathBuf {
    let own = directory.join("memory.events.local");
    if own.is_file() {
        own
    } else {
        directory.join("memory.events")
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
    fn events_saturate_on_overflow() {
        let max = u64::MAX;
        for version in [MemoryCgroup::V1, MemoryCgroup::V2] {
            let read = |name: &str| match name {
                "memory.events" => format!("max {max}\nhigh 1\noom {max}\noom_kill {max}\n"),
                "memory.oom_control" => format!("oom_kill {max}\n"),
                _ => format!("{max}\n"),
            };
            let events = Events::parse(version, read);
            assert_eq!((events.hits, events.ooms), (max, max));
        }
    }
}
