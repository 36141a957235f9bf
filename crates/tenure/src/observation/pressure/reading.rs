//! One reading of the figures that determine the level.

use std::path::PathBuf;
use std::time::Instant;

use super::judge;

use crate::ground::error::Result;
use crate::ground::sys::cgroup::{Events, Groups, Limit, LimitedGroup};
use crate::ground::sys::process::{self, MachineMemory, Reclaims};
use crate::ground::sys::psi::{self, Stalls};
use crate::observation::headroom::{self, Bounds};

/// The figures of one reading.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reading {
    /// The stalls of this process's own cgroup; `None` where it has none, or
    /// the kernel does not tell.
    pub(super) own: Option<Stalls>,
    /// The stalls of the system.
    pub(super) system: Option<Stalls>,
    pub(super) machine: Bound,
    /// The cgroups that limit the process, innermost first.
    pub(super) groups: Vec<Bound>,
}

/// A bound of this process's memory: the machine, or a cgroup with a limit.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bound {
    /// The directory of the cgroup; `None` for the machine.
    pub(super) group: Option<PathBuf>,
    pub(super) size_bytes: usize,
    /// The memory that can be taken before the kernel must kill (or swap):
    /// unused, or page cache. Reclaiming that may be slow; then stalls show it.
    pub(super) left_bytes: usize,
    /// The further memory that can be taken if no lazily freed page was reused.
    pub(super) maybe_free_bytes: usize,
    /// The memory that is unused, even by the page cache.
    pub(super) unused_bytes: usize,
    pub(super) page_cache_bytes: usize,
    pub(super) events: Events,
}

/// The files of a reading.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sources {
    pub(super) pressure_file: Option<PathBuf>,
    pub(super) event_files: Vec<PathBuf>,
    pub(super) limits: Vec<Limit>,
}

impl Reading {
    /// Takes a reading. It looks the groups up each time, because a process may
    /// be moved from one to another.
    pub(super) fn now(lazily_free: &mut LazilyFree) -> Result<(Self, Sources, Bounds)> {
        let (found, bounds) = Bounds::find()?;
        let (reading, sources) = Self::of(&found, &bounds, || lazily_free.bytes());
        Ok((reading, sources, bounds))
    }

    /// Takes a reading of these groups and the machine.
    pub(super) fn of(
        found: &Groups,
        bounds: &Bounds,
        lazily_free_bytes: impl FnOnce() -> usize,
    ) -> (Self, Sources) {
        let pressure_file = found.pressure_file();
        let groups = bounds.groups.iter();
        let mut reading = Self {
            own: pressure_file.as_deref().and_then(Stalls::read),
            system: Stalls::read(psi::SYSTEM.as_ref()),
            machine: Bound::of_machine(bounds.machine, Reclaims::now().unwrap_or_default()),
            groups: groups
                .map(|group| Bound::of_group(group, found.events(group)))
                .collect(),
        };
        reading.resolve_lazily_free(lazily_free_bytes);
        let sources = Sources {
            pressure_file: pressure_file.filter(|_| reading.own.is_some()),
            event_files: found.event_files(&bounds.groups),
            limits: found.limits(&bounds.groups),
        };
        (reading, sources)
    }

    /// Reads how much is still lazily free, where the level depends on it.
    fn resolve_lazily_free(&mut self, lazily_free_bytes: impl FnOnce() -> usize) {
        let level = |bound: &Bound, more| {
            judge::level_by_headroom(bound.size_bytes, bound.left_bytes.saturating_add(more))
        };
        let depends_on_it = |bound: &Bound| level(bound, 0) != level(bound, bound.maybe_free_bytes);
        if self.groups.iter().any(depends_on_it) {
            let free_bytes = lazily_free_bytes();
            for bound in &mut self.groups {
                let more = bound.maybe_free_bytes.min(free_bytes);
                bound.left_bytes = bound.left_bytes.saturating_add(more);
                bound.maybe_free_bytes = 0;
            }
        }
    }

    pub(super) fn bounds(&self) -> impl Iterator<Item = &Bound> {
        std::iter::once(&self.machine).chain(&self.groups)
    }
}

/// How much of the process's memory is lazily free. The kernel walks every page
/// of the process for it, so the answer is cached for thirty times as long as
/// it took: that is 3 % of a CPU.
#[derive(Default)]
pub(super) struct LazilyFree {
    bytes: usize,
    valid_until: Option<Instant>,
}

impl LazilyFree {
    /// The time that an answer is cached, as a multiple of the time that it took.
    const CACHE_FACTOR: u32 = 30;

    fn bytes(&mut self) -> usize {
        if self.valid_until.is_none_or(|end| Instant::now() >= end) {
            // CPU time, because waiting for a CPU does not count.
            let before = process::thread_time();
            self.bytes = headroom::lazily_free_bytes();
            let took = process::thread_time() - before;
            self.valid_until = Some(Instant::now() + took * Self::CACHE_FACTOR);
        }
        self.bytes
    }
}

impl Bound {
    fn of_machine(memory: MachineMemory, reclaims: Reclaims) -> Self {
        Self {
            group: None,
            size_bytes: memory.total_bytes,
            left_bytes: memory.available_bytes,
            maybe_free_bytes: 0,
            unused_bytes: memory.free_bytes,
            page_cache_bytes: memory.page_cache_bytes,
            events: Events {
                hits: reclaims.direct,
                ..Events::default()
            },
        }
    }

    fn of_group(group: &LimitedGroup, events: Events) -> Self {
        let unused_bytes = group.limit_bytes.saturating_sub(group.usage_bytes);
        // Lazily freed memory is on the inactive file list, too.
        let listed_bytes = group.inactive_file_bytes + group.active_file_bytes;
        let page_cache_bytes = listed_bytes.min(group.page_cache_bytes);
        Self {
            group: Some(group.path.clone()),
            size_bytes: group.limit_bytes,
            left_bytes: unused_bytes.saturating_add(page_cache_bytes),
            maybe_free_bytes: listed_bytes - page_cache_bytes,
            unused_bytes,
            page_cache_bytes,
            events,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::pressure::Level;

    const MIB: usize = 1 << 20;

    /// A group of 256 MiB, with so many MiB on the file lists.
    fn group(usage: usize, inactive: usize, active: usize, page_cache: usize) -> Bound {
        let group = LimitedGroup {
            path: "group".into(),
            limit_bytes: 256 * MIB,
            usage_bytes: usage * MIB,
            inactive_file_bytes: inactive * MIB,
            active_file_bytes: active * MIB,
            page_cache_bytes: page_cache * MIB,
        };
        Bound::of_group(&group, Events::default())
    }

    fn left_mib(bound: &Bound) -> (usize, usize) {
        (bound.left_bytes / MIB, bound.maybe_free_bytes / MIB)
    }

    #[test]
    fn left_bytes_include_listed_page_cache() {
        assert_eq!(left_mib(&group(256, 20, 180, 200)), (200, 0));
        // Locked page cache is on neither list.
        assert_eq!(left_mib(&group(256, 20, 30, 200)), (50, 0));
        assert_eq!(left_mib(&group(100, 0, 0, 0)), (156, 0));
        // The kernel updates the figures independently.
        assert_eq!(left_mib(&group(300, 0, 0, 0)), (0, 0));
    }

    #[test]
    fn lazily_freed_memory_is_maybe_free() {
        assert_eq!(left_mib(&group(256, 150, 10, 20)), (20, 140));
    }

    fn resolved(groups: Vec<Bound>, lazily_free: Option<usize>) -> Vec<(usize, usize)> {
        let machine = MachineMemory {
            total_bytes: 1 << 40,
            free_bytes: 1 << 39,
            available_bytes: 1 << 39,
            page_cache_bytes: 0,
        };
        let mut reading = Reading {
            own: None,
            system: None,
            machine: Bound::of_machine(machine, Reclaims::default()),
            groups,
        };
        reading.resolve_lazily_free(|| {
            lazily_free.expect("a read that the level does not depend on") * MIB
        });
        reading.groups.iter().map(left_mib).collect()
    }

    #[test]
    fn lazily_free_bytes_are_read_only_if_level_depends_on_them() {
        // The level is the same either way.
        assert_eq!(resolved(vec![group(256, 150, 0, 60)], None), [(60, 90)]);
        assert_eq!(resolved(vec![group(256, 7, 0, 4)], None), [(4, 3)]);
        let depends_on_it = || group(256, 150, 0, 2);
        assert_eq!(resolved(vec![depends_on_it()], Some(100)), [(102, 0)]);
        // The memory may belong to other processes, which may have reused it.
        assert_eq!(resolved(vec![depends_on_it()], Some(0)), [(2, 0)]);
        assert_eq!(resolved(vec![depends_on_it()], Some(500)), [(150, 0)]);
    }

    #[test]
    fn lazily_free_bytes_are_cached_until_they_expire() {
        let far = Instant::now() + std::time::Duration::from_secs(60);
        let mut cached = LazilyFree {
            bytes: 1234,
            valid_until: Some(far),
        };
        assert_eq!(cached.bytes(), 1234);
        cached.valid_until = Some(Instant::now());
        assert_ne!(cached.bytes(), 1234);
    }

    #[test]
    fn reading_of_this_machine_is_consistent() {
        let (reading, sources, _) = Reading::now(&mut LazilyFree::default()).unwrap();
        assert_eq!(reading.own.is_some(), sources.pressure_file.is_some());
        for bound in reading.bounds() {
            assert!(bound.left_bytes <= bound.size_bytes, "{bound:?}");
            assert!(bound.unused_bytes <= bound.left_bytes || bound.group.is_none());
        }
        assert!(judge::level_by_headroom(reading.machine.size_bytes, 0) == Level::Severe);
    }
}
