//! How much more memory may be taken.

use std::cell::LazyCell;

use crate::ground::error::{Error, Result};
use crate::ground::room_bound::RoomBound;
use crate::ground::sys::cgroup::{Groups, LimitedGroup};
use crate::ground::sys::process::MachineMemory;
use crate::ground::sys::{hugetlb, smaps};

/// How much more memory this process may take, and what bounds it.
///
/// A moment's answer: others take memory too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// The room, in bytes.
    pub bytes: usize,
    /// What leaves no more.
    pub bound: RoomBound,
}

impl Room {
    /// Reads `MemAvailable` and the memory limits of this process's cgroup and
    /// of those around it (version 1 or 2), and tells which leaves least.
    ///
    /// In a cgroup, inactive page cache and what this process has freed lazily
    /// count as room, for the kernel gives them up first. Swap does not. Limits
    /// that this process cannot see, outside its container, cannot count.
    ///
    /// Reads a few small files; in a cgroup that holds memory that was freed
    /// lazily it also has the kernel look at every page of this process.
    ///
    /// # Errors
    ///
    /// [`Error::System`] when `/proc/meminfo` cannot be read.
    ///
    /// ```
    /// let room = tenure::Room::now()?;
    /// println!("{} bytes may be taken, says {}", room.bytes, room.bound);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn now() -> Result<Self> {
        Ok(Bounds::now()?.tightest())
    }

    /// The same, but what this process has freed lazily counts only as far as the
    /// kernel counts it in `MemAvailable`: in a cgroup there may be more room. It
    /// never has the kernel look at pages, so it can be asked often.
    ///
    /// # Errors
    ///
    /// As for [`now`](Room::now).
    ///
    /// ```
    /// let room = tenure::Room::at_least()?;
    /// println!("{} bytes or more may be taken", room.bytes);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn at_least() -> Result<Self> {
        Ok(Bounds::now()?.tightest_but_for(|| 0))
    }

    fn least(available_bytes: usize, in_groups: impl Iterator<Item = Self>) -> Self {
        let machine = Self {
            bytes: available_bytes,
            bound: RoomBound::MemAvailable,
        };
        // Of equals the first counts: the machine, then the innermost group.
        in_groups.fold(machine, |least, room| {
            if room.bytes < least.bytes {
                room
            } else {
                least
            }
        })
    }

    fn in_group(group: LimitedGroup, lazily_free_bytes: impl Fn() -> usize) -> Self {
        let given_up_bytes = given_up_first(&group, lazily_free_bytes);
        let used_bytes = group.usage_bytes.saturating_sub(given_up_bytes);
        Self {
            bytes: group.limit_bytes.saturating_sub(used_bytes),
            bound: RoomBound::Cgroup {
                path: group.path,
                limit_bytes: group.limit_bytes,
                used_bytes,
            },
        }
    }
}

/// What bounds this process's memory, all read at one time.
pub(crate) struct Bounds {
    pub(crate) machine: MachineMemory,
    pub(crate) groups: Vec<LimitedGroup>,
}

impl Bounds {
    pub(crate) fn now() -> Result<Self> {
        Self::of(&Groups::find())
    }

    pub(crate) fn of(groups: &Groups) -> Result<Self> {
        let machine = MachineMemory::now().map_err(|errno| Error::System {
            call: "reading MemAvailable in /proc/meminfo",
            errno,
        })?;
        Ok(Self {
            machine,
            groups: groups.limited(),
        })
    }

    /// The size of each, and what of it is unused or page cache: what can be taken
    /// without a look at what was freed lazily, or offered, and may have been
    /// taken back.
    pub(crate) fn spare(&self) -> impl Iterator<Item = (usize, usize)> {
        let machine = &self.machine;
        let of_machine = machine
            .available_bytes
            .min(machine.free_bytes.saturating_add(machine.page_cache_bytes));
        let groups = self.groups.iter().map(|group| {
            let unused_bytes = group.limit_bytes.saturating_sub(group.usage_bytes);
            let listed_bytes = group.inactive_file_bytes + group.active_file_bytes;
            let spare_bytes = unused_bytes + listed_bytes.min(group.page_cache_bytes);
            (group.limit_bytes, spare_bytes.min(group.limit_bytes))
        });
        std::iter::once((machine.total_bytes, of_machine)).chain(groups)
    }

    /// The room that the tightest of them leaves.
    pub(crate) fn tightest(&self) -> Room {
        let lazily_free = LazyCell::new(lazily_free_bytes);
        self.tightest_but_for(|| *lazily_free)
    }

    fn tightest_but_for(&self, lazily_free_bytes: impl Fn() -> usize) -> Room {
        let groups = self.groups.iter().cloned();
        let rooms = groups.map(|group| Room::in_group(group, &lazily_free_bytes));
        Room::least(self.machine.available_bytes, rooms)
    }
}

/// What the kernel gives up before it kills. Memory that was freed lazily and
/// taken back is still on its list of inactive files, for it notices only when
/// it comes to take it: the list beyond the page cache counts as far as this
/// process knows it to be free.
fn given_up_first(group: &LimitedGroup, lazily_free_bytes: impl Fn() -> usize) -> usize {
    /// The figures are this inexact anyway.
    const WORTH_ASKING: usize = 1 << 20;
    let page_cache = group.inactive_file_bytes.min(group.page_cache_bytes);
    let beyond = group.inactive_file_bytes - page_cache;
    if beyond < WORTH_ASKING {
        return page_cache;
    }
    page_cache + beyond.min(lazily_free_bytes())
}

/// How much of this process's memory is lazily free and not taken back; none
/// where the kernel does not say.
pub(super) fn lazily_free_bytes() -> usize {
    let own = smaps::of_process(None).ok();
    own.and_then(|own| own.figures.lazily_free).unwrap_or(0)
}

/// The room in the pool of huge pages of `page_bytes`, in bytes; `None` where
/// there is no such pool or it cannot be read.
pub(crate) fn huge_room(page_bytes: usize) -> Option<usize> {
    Some(hugetlb::free_pages(page_bytes)?.saturating_mul(page_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn group(name: &str, limit: usize, usage: usize, inactive: usize) -> LimitedGroup {
        LimitedGroup {
            path: name.into(),
            limit_bytes: limit * MIB,
            usage_bytes: usage * MIB,
            inactive_file_bytes: inactive * MIB,
            active_file_bytes: 0,
            page_cache_bytes: inactive * MIB,
        }
    }

    fn least(available: usize, groups: Vec<LimitedGroup>) -> Room {
        let not_asked = || panic!("nothing there but page cache");
        let rooms = groups.into_iter();
        Room::least(
            available * MIB,
            rooms.map(|group| Room::in_group(group, not_asked)),
        )
    }

    #[test]
    fn the_machine_bounds_where_no_group_does() {
        let machine = Room {
            bytes: 500 * MIB,
            bound: RoomBound::MemAvailable,
        };
        assert_eq!(least(500, vec![]), machine);
        let wide = vec![group("in", 1000, 400, 0), group("out", 2000, 1500, 0)];
        assert_eq!(least(500, wide), machine);
    }

    #[test]
    fn the_tightest_group_bounds_and_idle_cache_is_room() {
        let groups = vec![
            group("in", 1000, 900, 500),
            group("between", 1000, 900, 300),
            group("out", 2000, 1500, 0),
        ];
        let room = least(10_000, groups);
        assert_eq!(room.bytes, 400 * MIB);
        let bound = RoomBound::Cgroup {
            path: "between".into(),
            limit_bytes: 1000 * MIB,
            used_bytes: 600 * MIB,
        };
        assert_eq!(room.bound, bound);
    }

    #[test]
    fn a_group_past_its_limit_leaves_nothing() {
        assert_eq!(least(500, vec![group("a", 100, 130, 10)]).bytes, 0);
        // The two figures are read one after the other.
        assert_eq!(least(500, vec![group("a", 100, 10, 20)]).bytes, 100 * MIB);
    }

    #[test]
    fn of_what_was_freed_lazily_only_what_is_still_free_is_room() {
        let with_lazy = LimitedGroup {
            page_cache_bytes: 40 * MIB,
            ..group("a", 1000, 900, 300)
        };
        let room = |free| Room::in_group(with_lazy.clone(), || free * MIB).bytes;
        assert_eq!(room(0), 140 * MIB);
        assert_eq!(room(100), 240 * MIB);
        // Small ranges are free before they are on the list.
        assert_eq!(room(500), 400 * MIB);
    }

    #[test]
    fn what_was_freed_lazily_is_not_spare() {
        let machine = MachineMemory {
            total_bytes: 900 * MIB,
            free_bytes: 100 * MIB,
            available_bytes: 600 * MIB,
            page_cache_bytes: 200 * MIB,
        };
        let group = LimitedGroup {
            page_cache_bytes: 40 * MIB,
            active_file_bytes: 30 * MIB,
            ..group("a", 500, 450, 300)
        };
        let groups = vec![group];
        let spare: Vec<_> = Bounds { machine, groups }.spare().collect();
        assert_eq!(spare, [(900 * MIB, 300 * MIB), (500 * MIB, 90 * MIB)]);
    }

    #[test]
    fn reads_this_machine() {
        let room = Room::now().unwrap();
        assert!(
            room.bytes > 0 && room.bytes <= crate::ground::sys::process::mem_total_bytes().unwrap()
        );
        assert!(huge_room(2 << 20).is_none_or(|bytes| bytes.is_multiple_of(2 << 20)));
        assert_eq!(huge_room(1234), None);
    }
}
