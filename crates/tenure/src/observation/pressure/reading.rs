//! What one look at the memory reads.

use std::path::PathBuf;
use std::time::Instant;

use super::judge;

use crate::ground::error::Result;
use crate::ground::sys::cgroup::{Events, Groups, Limit, LimitedGroup};
use crate::ground::sys::process::{self, MachineMemory, Reclaims};
use crate::ground::sys::psi::{self, Stalls};
use crate::observation::room::{self, Bounds};

/// The figures of one look.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reading {
    /// How long this process's own cgroup has stalled; `None` where it is in
    /// none, or the kernel does not tell.
    pub(super) own: Option<Stalls>,
    /// How long the system has.
    pub(super) system: Option<Stalls>,
    pub(super) machine: Bound,
    /// The limited cgroups around the process, innermost first.
    pub(super) groups: Vec<Bound>,
}

/// What bounds the memory of this process: the machine, or a cgroup.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bound {
    /// The folder of the cgroup; none for the machine.
    pub(super) group: Option<PathBuf>,
    pub(super) size_bytes: usize,
    /// What can be taken before the kernel must kill (or swap): unused, or page
    /// cache. That may be slow; then stalls show it.
    pub(super) left_bytes: usize,
    /// What can be taken besides if nobody has taken back what was freed lazily.
    pub(super) perhaps_free_bytes: usize,
    /// What nobody has taken, not even the page cache.
    pub(super) unused_bytes: usize,
    pub(super) page_cache_bytes: usize,
    pub(super) events: Events,
}

/// Where a look reads.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sources {
    pub(super) pressure_file: Option<PathBuf>,
    pub(super) event_files: Vec<PathBuf>,
    pub(super) limits: Vec<Limit>,
}

impl Reading {
    /// Looks now. A process may be moved from one group to another, so they are
    /// looked up each time.
    pub(super) fn now(lazily_free: &mut LazilyFree) -> Result<(Self, Sources, Bounds)> {
        let found = Groups::find();
        let bounds = Bounds::of(&found)?;
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
        reading.settle(|| lazily_free.bytes());
        let sources = Sources {
            pressure_file: pressure_file.filter(|_| reading.own.is_some()),
            event_files: found.event_files(&bounds.groups),
            limits: found.limits(&bounds.groups),
        };
        Ok((reading, sources, bounds))
    }

    /// Finds out how much is still lazily free, where the level hangs on it.
    fn settle(&mut self, lazily_free_bytes: impl FnOnce() -> usize) {
        let level = |bound: &Bound, more| {
            judge::level_by_room(bound.size_bytes, bound.left_bytes.saturating_add(more))
        };
        let hangs_on_it = |bound: &Bound| level(bound, 0) != level(bound, bound.perhaps_free_bytes);
        if self.groups.iter().any(hangs_on_it) {
            let free_bytes = lazily_free_bytes();
            for bound in &mut self.groups {
                let more = bound.perhaps_free_bytes.min(free_bytes);
                bound.left_bytes = bound.left_bytes.saturating_add(more);
                bound.perhaps_free_bytes = 0;
            }
        }
    }

    pub(super) fn bounds(&self) -> impl Iterator<Item = &Bound> {
        std::iter::once(&self.machine).chain(&self.groups)
    }
}

/// How much of the process's memory is lazily free. The kernel looks at every page
/// of the process for it, so the answer is remembered for thirty times as long as
/// it took: that is 3 % of a CPU.
#[derive(Default)]
pub(super) struct LazilyFree {
    bytes: usize,
    good_until: Option<Instant>,
}

impl LazilyFree {
    const REST: u32 = 30;

    fn bytes(&mut self) -> usize {
        if self.good_until.is_none_or(|end| Instant::now() >= end) {
            // The time to wait for a CPU does not count.
            let before = process::thread_time();
            self.bytes = room::lazily_free_bytes();
            let took = process::thread_time() - before;
            self.good_until = Some(Instant::now() + took * Self::REST);
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
            perhaps_free_bytes: 0,
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
        // What was freed lazily is on the list of inactive files, too.
        let listed_bytes = group.inactive_file_bytes + group.active_file_bytes;
        let page_cache_bytes = listed_bytes.min(group.page_cache_bytes);
        Self {
            group: Some(group.path.clone()),
            size_bytes: group.limit_bytes,
            left_bytes: unused_bytes.saturating_add(page_cache_bytes),
            perhaps_free_bytes: listed_bytes - page_cache_bytes,
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

    /// Of 256 MiB, with so much on the lists of files.
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
        (bound.left_bytes / MIB, bound.perhaps_free_bytes / MIB)
    }

    #[test]
    fn page_cache_is_left_whether_in_use_or_not() {
        assert_eq!(left_mib(&group(256, 20, 180, 200)), (200, 0));
        // Locked page cache is on no such list.
        assert_eq!(left_mib(&group(256, 20, 30, 200)), (50, 0));
        assert_eq!(left_mib(&group(100, 0, 0, 0)), (156, 0));
        // The figures are read one after the other.
        assert_eq!(left_mib(&group(300, 0, 0, 0)), (0, 0));
    }

    #[test]
    fn what_was_freed_lazily_is_perhaps_free() {
        assert_eq!(left_mib(&group(256, 150, 10, 20)), (20, 140));
    }

    fn settled(groups: Vec<Bound>, lazily_free: Option<usize>) -> Vec<(usize, usize)> {
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
        reading.settle(|| lazily_free.expect("not to be asked") * MIB);
        reading.groups.iter().map(left_mib).collect()
    }

    #[test]
    fn the_process_is_looked_through_only_if_the_level_hangs_on_it() {
        // Enough is left anyway, or nothing would change.
        assert_eq!(settled(vec![group(256, 150, 0, 60)], None), [(60, 90)]);
        assert_eq!(settled(vec![group(256, 7, 0, 4)], None), [(4, 3)]);
        let hangs_on_it = || group(256, 150, 0, 2);
        assert_eq!(settled(vec![hangs_on_it()], Some(100)), [(102, 0)]);
        // Others' may have been taken back.
        assert_eq!(settled(vec![hangs_on_it()], Some(0)), [(2, 0)]);
        assert_eq!(settled(vec![hangs_on_it()], Some(500)), [(150, 0)]);
    }

    #[test]
    fn the_answer_is_remembered_as_long_as_it_is_good() {
        let far = Instant::now() + std::time::Duration::from_secs(60);
        let mut remembered = LazilyFree {
            bytes: 1234,
            good_until: Some(far),
        };
        assert_eq!(remembered.bytes(), 1234);
        remembered.good_until = Some(Instant::now());
        assert_ne!(remembered.bytes(), 1234);
    }

    #[test]
    fn reads_this_machine() {
        let (reading, sources, _) = Reading::now(&mut LazilyFree::default()).unwrap();
        assert_eq!(reading.own.is_some(), sources.pressure_file.is_some());
        for bound in reading.bounds() {
            assert!(bound.left_bytes <= bound.size_bytes, "{bound:?}");
            assert!(bound.unused_bytes <= bound.left_bytes || bound.group.is_none());
        }
        assert!(judge::level_by_room(reading.machine.size_bytes, 0) == Level::Severe);
    }
}
