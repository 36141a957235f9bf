//! What one look at the memory reads.

use std::path::PathBuf;

use super::judge;

use crate::ground::error::Result;
use crate::ground::sys::cgroup::{Events, Groups, LimitedGroup};
use crate::ground::sys::process::{self, MachineMemory};
use crate::ground::sys::psi::{self, Stalls};
use crate::observation::room::Bounds;

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
}

impl Reading {
    /// Looks now. A process may be moved from one group to another, so they are
    /// looked up each time.
    pub(super) fn now() -> Result<(Self, Sources, Bounds)> {
        let found = Groups::find();
        let bounds = Bounds::of(&found)?;
        let pressure_file = found.pressure_file();
        let groups = bounds.groups.iter();
        let mut reading = Self {
            own: pressure_file.as_deref().and_then(Stalls::read),
            system: Stalls::read(psi::SYSTEM.as_ref()),
            machine: Bound::of_machine(bounds.machine, process::direct_reclaims().unwrap_or(0)),
            groups: groups
                .map(|group| Bound::of_group(group, found.events(group)))
                .collect(),
        };
        reading.settle(|| process::lazily_free_bytes().unwrap_or(0));
        let sources = Sources {
            pressure_file: pressure_file.filter(|_| reading.own.is_some()),
            event_files: found.event_files(&bounds.groups),
        };
        Ok((reading, sources, bounds))
    }

    /// Finds out how much is still lazily free, where the level hangs on it: the
    /// kernel looks at every page of the process for that.
    fn settle(&mut self, lazily_free_bytes: impl Fn() -> usize) {
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

impl Bound {
    fn of_machine(memory: MachineMemory, direct_reclaims: u64) -> Self {
        Self {
            group: None,
            size_bytes: memory.total_bytes,
            left_bytes: memory.available_bytes,
            perhaps_free_bytes: 0,
            unused_bytes: memory.free_bytes,
            page_cache_bytes: memory.page_cache_bytes,
            events: Events {
                hits: direct_reclaims,
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
