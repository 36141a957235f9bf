//! The huge pages of the hugetlb pool.

use super::{Undo, change_setting, lock_setting};

/// Free huge pages of 2 MiB in the hugetlb pool. Dropping it, or the end of this process,
/// removes the pages that it has added. Until then no other test changes the pool.
pub struct HugePool {
    /// Of a pool that is large enough.
    _lock: Option<std::fs::File>,
    _undo: Option<Undo>,
}

impl HugePool {
    pub const COUNT: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    pub const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

    /// Makes sure that `wanted` of them are free, if possible.
    pub fn of(wanted: usize) -> Option<Self> {
        let lock = lock_setting(Self::COUNT)?;
        if Self::read(Self::FREE)? >= wanted {
            return Some(Self {
                _lock: Some(lock),
                _undo: None,
            });
        }
        let count = Self::read(Self::COUNT)? + wanted;
        let undo = change_setting(Self::COUNT, lock, &count.to_string())?;
        (Self::read(Self::FREE)? >= wanted).then_some(Self {
            _lock: None,
            _undo: Some(undo),
        })
    }

    pub fn read(file: &str) -> Option<usize> {
        let text = std::fs::read_to_string(file).ok()?;
        text.trim().parse().ok()
    }
}
