//! How much more memory may be taken.

use crate::ground::error::{Error, Result};
use crate::ground::room_bound::RoomBound;
use crate::ground::sys::Errno;
use crate::ground::sys::cgroup::{self, LimitedGroup};
use crate::ground::sys::{hugetlb, process};

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
    /// Inactive page cache and lazily freed memory count as room, for the
    /// kernel gives them up first; swap does not. Limits that this process
    /// cannot see, outside its container, cannot count.
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
        let available = process::mem_available_bytes().ok_or(Error::System {
            call: "reading MemAvailable in /proc/meminfo",
            errno: Errno::NOENT,
        })?;
        Ok(Self::least(available, cgroup::limited_groups()))
    }

    fn least(available_bytes: usize, groups: Vec<LimitedGroup>) -> Self {
        let machine = Self {
            bytes: available_bytes,
            bound: RoomBound::MemAvailable,
        };
        groups
            .into_iter()
            .map(Self::in_group)
            .fold(machine, |least, room| {
                if room.bytes < least.bytes {
                    room
                } else {
                    least
                }
            })
    }

    fn in_group(group: LimitedGroup) -> Self {
        let used_bytes = group.usage_bytes.saturating_sub(group.inactive_file_bytes);
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

/// The room in the pool of huge pages of `page_bytes`, in bytes; `None` where
/// there is no such pool or it cannot be read.
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "for the room check of populate")
)]
pub(crate) fn huge_room(page_bytes: usize) -> Option<usize> {
    Some(hugetlb::free_pages(page_bytes)?.saturating_mul(page_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str, limit: usize, usage: usize, inactive: usize) -> LimitedGroup {
        LimitedGroup {
            path: name.into(),
            limit_bytes: limit,
            usage_bytes: usage,
            inactive_file_bytes: inactive,
        }
    }

    #[test]
    fn the_machine_bounds_where_no_group_does() {
        let machine = Room {
            bytes: 500,
            bound: RoomBound::MemAvailable,
        };
        assert_eq!(Room::least(500, vec![]), machine);
        let wide = vec![group("in", 1000, 400, 0), group("out", 2000, 1500, 0)];
        assert_eq!(Room::least(500, wide), machine);
    }

    #[test]
    fn the_tightest_group_bounds_and_idle_cache_is_room() {
        let groups = vec![
            group("in", 1000, 900, 500),
            group("between", 1000, 900, 300),
            group("out", 2000, 1500, 0),
        ];
        let room = Room::least(10_000, groups);
        assert_eq!(room.bytes, 400);
        let bound = RoomBound::Cgroup {
            path: "between".into(),
            limit_bytes: 1000,
            used_bytes: 600,
        };
        assert_eq!(room.bound, bound);
    }

    #[test]
    fn a_group_past_its_limit_leaves_nothing() {
        assert_eq!(Room::least(500, vec![group("a", 100, 130, 10)]).bytes, 0);
        // The two figures are read one after the other.
        assert_eq!(Room::least(500, vec![group("a", 100, 10, 20)]).bytes, 100);
    }

    #[test]
    fn reads_this_machine() {
        let room = Room::now().unwrap();
        assert!(room.bytes > 0 && room.bytes <= process::mem_total_bytes().unwrap());
        assert!(huge_room(2 << 20).is_none_or(|bytes| bytes.is_multiple_of(2 << 20)));
        assert_eq!(huge_room(1234), None);
    }
}
