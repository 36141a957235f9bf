//! One reading of the limits, and the headroom that it leaves.
//!
//! For each cgroup it is limit − (usage − what the kernel reclaims first).
//! Memory that was freed lazily and then reused stays in the kernel's
//! `inactive_file` (and in MemAvailable) until reclaim meets it (seen on 6.18);
//! so beyond the page cache only what `smaps_rollup` calls LazyFree counts.

use std::cell::LazyCell;

use super::ledger::Limit;
use super::pooled_bytes;
use super::reader::outstanding_bytes;
use crate::ground::error::{Error, Result};
use crate::ground::headroom_limit::HeadroomLimit;
use crate::ground::sys::cgroup::{Groups, LimitedGroup};
use crate::ground::sys::process::MachineMemory;
use crate::ground::sys::{Errno, empty_table, smaps};

/// How much more memory this process may take, and the limit that determines
/// it.
///
/// The answer holds for a moment only, because other processes take memory too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// The headroom, in bytes.
    pub bytes: usize,
    /// The limit that leaves no more.
    pub limit: HeadroomLimit,
}

impl Headroom {
    /// Reads `MemAvailable` and the memory limits of this process's cgroup and
    /// its ancestors (version 1 or 2), and returns the smallest headroom.
    ///
    /// In a cgroup, inactive page cache and memory that this process has freed
    /// lazily count as headroom, because the kernel reclaims them first. Swap
    /// does not. Limits that this process cannot see, outside its container, do
    /// not count. Memory that is [admitted](super::admit) and not resident yet is subtracted;
    /// what the page [pool](crate::pool) holds is added.
    ///
    /// Reads a few small files. In a cgroup that holds lazily freed memory, the
    /// kernel also walks every page of this process.
    ///
    /// # Errors
    ///
    /// [`Error::System`] when `/proc/meminfo` or a limit cannot be read.
    ///
    /// ```
    /// let headroom = tenure::Headroom::now()?;
    /// println!("{} bytes, limited by {}", headroom.bytes, headroom.limit);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn now() -> Result<Self> {
        Ok(Bounds::now()?.tightest())
    }

    /// Returns a lower bound of [`now`](Headroom::now) that never walks pages,
    /// so it can be called often. Memory that this process has freed lazily
    /// counts only as far as the kernel counts it in `MemAvailable`: in a
    /// cgroup there may be more headroom.
    ///
    /// # Errors
    ///
    /// [`Error::System`] when `/proc/meminfo` or a limit cannot be read.
    ///
    /// ```
    /// let headroom = tenure::Headroom::lower_bound()?;
    /// println!("{} bytes or more", headroom.bytes);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn lower_bound() -> Result<Self> {
        Ok(Bounds::now()?.lower_bound())
    }

    fn smallest(available_bytes: usize, in_groups: impl Iterator<Item = Self>) -> Self {
        let machine = Self {
            bytes: available_bytes,
            limit: HeadroomLimit::MemAvailable,
        };
        // Of equals the first wins: the machine, then the innermost group.
        in_groups.fold(machine, |smallest, headroom| {
            if headroom.bytes < smallest.bytes {
                headroom
            } else {
                smallest
            }
        })
    }

    fn in_group(group: LimitedGroup, lazily_free_bytes: impl Fn() -> usize) -> Self {
        let reclaimed_bytes = reclaimed_first(&group, lazily_free_bytes);
        let used_bytes = group.usage_bytes.saturating_sub(reclaimed_bytes);
        Self {
            bytes: group.limit_bytes.saturating_sub(used_bytes),
            limit: HeadroomLimit::Cgroup {
                path: group.path,
                limit_bytes: group.limit_bytes,
                used_bytes,
            },
        }
    }
}

/// The bounds of this process's memory, all read at one time.
pub(crate) struct Bounds {
    pub(crate) machine: MachineMemory,
    pub(crate) groups: Vec<LimitedGroup>,
}

impl Bounds {
    pub(crate) fn now() -> Result<Self> {
        Ok(Self::find()?.1)
    }

    /// Finds the groups of this process and reads all bounds; on a thread with a descriptor
    /// table of its own, where this process has no descriptor left.
    pub(crate) fn find() -> Result<(Groups, Self)> {
        let find = || {
            assure_memory()?;
            let groups = Groups::find()?;
            let bounds = Self::of(&groups)?;
            Ok((groups, bounds))
        };
        let found = match find() {
            Err(Errno::MFILE | Errno::NFILE) => empty_table::run(find).and_then(|found| found),
            found => found,
        };
        found.map_err(|errno| Error::System {
            call: "reading the memory limits in /proc and the cgroups",
            errno,
        })
    }

    pub(crate) fn of(groups: &Groups) -> std::result::Result<Self, Errno> {
        assure_memory()?;
        Ok(Self {
            machine: MachineMemory::now()?,
            groups: groups.limited()?,
        })
    }

    /// Returns, for each bound, its size and its memory that is unused or page
    /// cache: the memory that can be taken without checking which
    /// lazily freed or offered memory was reused.
    pub(super) fn limits(&self) -> Vec<Limit> {
        let machine = &self.machine;
        let machine = Limit {
            size_bytes: machine.total_bytes,
            free_bytes: machine
                .available_bytes
                .min(machine.free_bytes.saturating_add(machine.page_cache_bytes)),
        };
        let groups = self.groups.iter().map(|group| {
            let unused_bytes = group.limit_bytes.saturating_sub(group.usage_bytes);
            let listed_bytes = group.inactive_file_bytes + group.active_file_bytes;
            let free_bytes = unused_bytes + listed_bytes.min(group.page_cache_bytes);
            Limit {
                size_bytes: group.limit_bytes,
                free_bytes: free_bytes.min(group.limit_bytes),
            }
        });
        std::iter::once(machine).chain(groups).collect()
    }

    /// Returns the same with the memory that this process has freed lazily and not reused.
    pub(super) fn limits_with_lazily_free(&self) -> Vec<Limit> {
        let lazily_free = LazyCell::new(lazily_free_bytes);
        let groups = self.groups.iter().cloned();
        let headrooms = groups.map(|group| Headroom::in_group(group, || *lazily_free).bytes);
        let headrooms = std::iter::once(self.machine.available_bytes).chain(headrooms);
        let limits = self.limits().into_iter().zip(headrooms);
        let larger = |(limit, headroom): (Limit, usize)| Limit {
            free_bytes: limit.free_bytes.max(headroom),
            ..limit
        };
        limits.map(larger).collect()
    }

    /// Returns the headroom of the tightest bound.
    pub(crate) fn tightest(&self) -> Headroom {
        let lazily_free = LazyCell::new(lazily_free_bytes);
        self.tightest_with(|| *lazily_free)
    }

    /// Returns the same without walking pages, as [`Headroom::lower_bound`].
    pub(super) fn lower_bound(&self) -> Headroom {
        self.tightest_with(|| 0)
    }

    fn tightest_with(&self, lazily_free_bytes: impl Fn() -> usize) -> Headroom {
        let groups = self.groups.iter().cloned();
        let in_groups = groups.map(|group| Headroom::in_group(group, &lazily_free_bytes));
        let mut tightest = Headroom::smallest(self.machine.available_bytes, in_groups);
        // The pool is emptied before an admission is refused.
        tightest.bytes = tightest.bytes.saturating_add(pooled_bytes());
        tightest.bytes = tightest.bytes.saturating_sub(outstanding_bytes());
        tightest
    }
}

/// Returns an error where the allocator has no memory for paths and the contents of files:
/// with all addresses of RLIMIT_AS in use, an allocation of a few bytes ends the process.
/// The memory freed here serves them, unless another thread takes it meanwhile.
pub(super) fn assure_memory() -> std::result::Result<(), Errno> {
    const BYTES: usize = 64 << 10;
    let mut memory = Vec::<u8>::new();
    memory.try_reserve_exact(BYTES).map_err(|_| Errno::NOMEM)?;
    // The compiler must not leave the allocation out.
    std::hint::black_box(&mut memory);
    Ok(())
}

/// Returns the bytes that the kernel reclaims before it kills. Memory that was
/// freed lazily and reused stays on its inactive file list, because it notices
/// the reuse only during reclaim: the list beyond the page cache counts as far
/// as this process knows it to be free.
fn reclaimed_first(group: &LimitedGroup, lazily_free_bytes: impl Fn() -> usize) -> usize {
    /// In bytes; the figures are this inexact anyway.
    const MIN_RELEVANT_BYTES: usize = 1 << 20;
    let page_cache = group.inactive_file_bytes.min(group.page_cache_bytes);
    let beyond = group.inactive_file_bytes - page_cache;
    if beyond < MIN_RELEVANT_BYTES {
        return page_cache;
    }
    page_cache + beyond.min(lazily_free_bytes())
}

/// Returns how much of this process's memory is lazily free and was not reused;
/// 0 where the kernel does not tell.
pub(crate) fn lazily_free_bytes() -> usize {
    let own = smaps::of_process(None).ok();
    own.and_then(|own| own.figures.lazily_free).unwrap_or(0)
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

    fn smallest(available: usize, groups: Vec<LimitedGroup>) -> Headroom {
        let unused = || panic!("all of the list is page cache");
        let groups = groups.into_iter();
        Headroom::smallest(
            available * MIB,
            groups.map(|group| Headroom::in_group(group, unused)),
        )
    }

    #[test]
    fn headroom_without_tighter_group_is_mem_available() {
        let machine = Headroom {
            bytes: 500 * MIB,
            limit: HeadroomLimit::MemAvailable,
        };
        assert_eq!(smallest(500, vec![]), machine);
        let wide = vec![group("in", 1000, 400, 0), group("out", 2000, 1500, 0)];
        assert_eq!(smallest(500, wide), machine);
    }

    #[test]
    fn headroom_is_that_of_tightest_group() {
        let groups = vec![
            group("in", 1000, 900, 500),
            group("between", 1000, 900, 300),
            group("out", 2000, 1500, 0),
        ];
        let headroom = smallest(10_000, groups);
        assert_eq!(headroom.bytes, 400 * MIB);
        let limit = HeadroomLimit::Cgroup {
            path: "between".into(),
            limit_bytes: 1000 * MIB,
            used_bytes: 600 * MIB,
        };
        assert_eq!(headroom.limit, limit);
    }

    #[test]
    fn headroom_of_group_past_its_limit_is_zero() {
        assert_eq!(smallest(500, vec![group("a", 100, 130, 10)]).bytes, 0);
        // The kernel updates the two figures independently.
        assert_eq!(
            smallest(500, vec![group("a", 100, 10, 20)]).bytes,
            100 * MIB
        );
    }

    #[test]
    fn headroom_counts_lazily_freed_memory_only_while_free() {
        let with_lazy = LimitedGroup {
            page_cache_bytes: 40 * MIB,
            ..group("a", 1000, 900, 300)
        };
        let headroom = |free| Headroom::in_group(with_lazy.clone(), || free * MIB).bytes;
        assert_eq!(headroom(0), 140 * MIB);
        assert_eq!(headroom(100), 240 * MIB);
        // Small ranges become free before they are on the list.
        assert_eq!(headroom(500), 400 * MIB);
    }

    #[test]
    fn unused_or_cached_excludes_lazily_freed_memory() {
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
        let limits = Bounds { machine, groups }.limits();
        let limits = limits
            .iter()
            .map(|limit| (limit.size_bytes, limit.free_bytes));
        assert!(limits.eq([(900 * MIB, 300 * MIB), (500 * MIB, 90 * MIB)]));
    }

    #[test]
    fn headroom_of_this_machine_is_consistent() {
        let headroom = Headroom::now().unwrap();
        assert!(
            headroom.bytes > 0
                && headroom.bytes <= crate::ground::sys::process::mem_total_bytes().unwrap()
        );
        let huge = super::super::huge_page_headroom;
        assert!(huge(2 << 20).is_none_or(|bytes| bytes.is_multiple_of(2 << 20)));
        assert_eq!(huge(1234), None);
    }
}
