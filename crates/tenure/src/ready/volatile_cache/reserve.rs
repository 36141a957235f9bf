//! The memory that the cache leaves to other users.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use crate::observation::headroom::Bounds;

/// A part of the memory of the machine or of a limited cgroup, and its upper bound in
/// bytes.
#[derive(Clone, Copy)]
struct Share {
    divisor: usize,
    max_bytes: usize,
}

impl Share {
    fn of(self, size_bytes: usize) -> usize {
        (size_bytes / self.divisor).min(self.max_bytes)
    }
}

/// The share that the cache leaves unused or to the page cache. It is a quarter more
/// than what is left when pressure begins (`pressure::Level::Some`), so that a cache
/// that fills its memory does not cause pressure itself.
const RESERVE: Share = Share {
    divisor: 8,
    max_bytes: 5 << 30,
};

/// The share that the cache leaves even if it has nothing to evict: where severe
/// pressure begins.
const MIN_RESERVE: Share = Share {
    divisor: 32,
    max_bytes: 1 << 30,
};

/// How long a reading is used; it takes 0.2 ms.
const MAX_AGE: Duration = Duration::from_millis(250);

/// Decides how much to evict and whether to insert, from the last reading of the
/// memory and from what was inserted and evicted since.
#[derive(Debug)]
pub(super) struct Reserve {
    read_at: Option<Instant>,
    /// How much may be inserted before the next reading.
    until_reading_bytes: usize,
    tightest: Limit,
}

/// A limit on the memory: the machine or a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    size_bytes: usize,
    /// How much of it is unused or page cache.
    free_bytes: usize,
}

impl Limit {
    /// Returns by how much the free memory exceeds the reserve.
    fn surplus_bytes(self) -> usize {
        self.free_bytes.saturating_sub(RESERVE.of(self.size_bytes))
    }

    /// Returns how much of the reserve is missing.
    fn deficit_bytes(self) -> usize {
        RESERVE.of(self.size_bytes).saturating_sub(self.free_bytes)
    }
}

impl Reserve {
    pub(super) const fn new() -> Self {
        Self {
            read_at: None,
            until_reading_bytes: 0,
            tightest: Limit {
                size_bytes: 0,
                free_bytes: 0,
            },
        }
    }

    /// Returns how much to evict before `bytes` are inserted.
    pub(super) fn bytes_to_evict(&mut self, bytes: usize) -> usize {
        let is_fresh = self.read_at.is_some_and(|at| at.elapsed() < MAX_AGE);
        if !is_fresh || self.until_reading_bytes < bytes {
            self.update(read_tightest());
        }
        let Limit {
            size_bytes,
            free_bytes,
        } = self.tightest;
        let deficit = |share: Share| (share.of(size_bytes) + bytes).saturating_sub(free_bytes);
        // The reserve is restored step by step, so that one caller does not pay for all
        // of it; the minimal reserve is restored at once.
        deficit(RESERVE).min(bytes.saturating_mul(4).max(deficit(MIN_RESERVE)))
    }

    /// Takes `bytes` for an insertion after `evicted_bytes` were freed. Returns `false`,
    /// and takes nothing, if that would leave less than the minimal reserve.
    pub(super) fn try_take(&mut self, bytes: usize, evicted_bytes: usize) -> bool {
        let free_bytes = self.tightest.free_bytes.saturating_add(evicted_bytes);
        let min_bytes = MIN_RESERVE.of(self.tightest.size_bytes);
        let left_bytes = free_bytes
            .checked_sub(bytes)
            .filter(|&left_bytes| left_bytes >= min_bytes);
        self.tightest.free_bytes = left_bytes.unwrap_or(free_bytes);
        self.until_reading_bytes = self.until_reading_bytes.saturating_sub(bytes);
        left_bytes.is_some()
    }

    fn update(&mut self, tightest: Limit) {
        self.read_at = Some(Instant::now());
        let reserve_bytes = RESERVE.of(tightest.size_bytes);
        // A quarter only, because other processes take memory as well.
        self.until_reading_bytes = (tightest.surplus_bytes() / 4).max(reserve_bytes / 4);
        self.tightest = tightest;
    }
}

/// Reads the limit that leaves the least memory. If none can be read, memory counts as
/// unlimited.
fn read_tightest() -> Limit {
    let bounds = Bounds::now().ok();
    let limits = bounds.iter().flat_map(Bounds::unused_or_cached);
    let limits = limits.map(|(size_bytes, free_bytes)| Limit {
        size_bytes,
        free_bytes,
    });
    // Compared in bytes and not in parts of the limit, because an insertion takes bytes.
    let tightest =
        limits.min_by_key(|limit| (limit.surplus_bytes(), Reverse(limit.deficit_bytes())));
    tightest.unwrap_or(Limit {
        size_bytes: 0,
        free_bytes: usize::MAX,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// A fresh reading of a cgroup of 256 MiB, with a reserve of 32 MiB and a minimal
    /// reserve of 8 MiB.
    fn with_free(free_mib: usize) -> Reserve {
        let mut reserve = Reserve::new();
        reserve.update(Limit {
            size_bytes: 256 * MIB,
            free_bytes: free_mib * MIB,
        });
        reserve.until_reading_bytes = usize::MAX;
        reserve
    }

    #[test]
    fn insertion_above_the_reserve_evicts_nothing() {
        let mut reserve = with_free(100);
        assert_eq!(reserve.bytes_to_evict(68 * MIB), 0);
        assert!(reserve.try_take(68 * MIB, 0));
        assert_eq!(reserve.tightest.free_bytes, 32 * MIB);
        assert_eq!(reserve.bytes_to_evict(MIB), MIB, "each byte for another");
        assert!(reserve.try_take(MIB, MIB));
        assert_eq!(reserve.bytes_to_evict(MIB), MIB);
    }

    #[test]
    fn missing_reserve_is_restored_step_by_step() {
        let mut reserve = with_free(20);
        for step in 1..=4 {
            assert_eq!(reserve.bytes_to_evict(MIB), 4 * MIB, "{step}");
            assert!(reserve.try_take(MIB, 4 * MIB));
        }
        assert_eq!(reserve.tightest.free_bytes, 32 * MIB);
        assert_eq!(reserve.bytes_to_evict(MIB), MIB);
    }

    #[test]
    fn missing_min_reserve_is_restored_at_once_or_insertion_refused() {
        let mut reserve = with_free(2);
        assert_eq!(reserve.bytes_to_evict(MIB), 7 * MIB);
        assert!(!reserve.try_take(MIB, 6 * MIB));
        assert!(reserve.try_take(MIB, MIB), "evicted memory counts");
        assert!(!reserve.try_take(MIB, 0));
        assert!(!with_free(0).try_take(1, 0));
    }

    #[test]
    fn larger_surplus_makes_readings_rarer() {
        let mut reserve = with_free(232);
        reserve.update(reserve.tightest);
        assert_eq!(reserve.until_reading_bytes, 50 * MIB);
        reserve.update(with_free(20).tightest);
        assert_eq!(reserve.until_reading_bytes, 8 * MIB);
    }

    #[test]
    fn reading_this_machine_is_consistent() {
        let limit = read_tightest();
        assert!(limit.free_bytes <= limit.size_bytes);
        let mut reserve = Reserve::new();
        let _ = reserve.bytes_to_evict(1);
        assert!(reserve.read_at.is_some());
    }
}
