//! Bytes that the program is about to take, and of which nobody can tell when it has: a
//! block that `malloc` returns is touched soon, later or never. They count as admitted for a
//! while.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::ledger::{Ledger, Watermark};

/// How long announced bytes count at least; at most twice as long.
const LIFE_NANOS: u64 = 100_000_000;

/// The announced bytes of this process.
pub(super) static ANNOUNCED: Announced = Announced::new();

/// Announced bytes in two generations: the older lapses when the newer becomes the older.
pub(super) struct Announced {
    newer_bytes: AtomicUsize,
    older_bytes: AtomicUsize,
    rotated_at_nanos: AtomicU64,
}

impl Announced {
    const fn new() -> Self {
        Self {
            newer_bytes: AtomicUsize::new(0),
            older_bytes: AtomicUsize::new(0),
            rotated_at_nanos: AtomicU64::new(0),
        }
    }

    pub(super) fn reset(&self) {
        self.newer_bytes.store(0, Ordering::Relaxed);
        self.older_bytes.store(0, Ordering::Relaxed);
    }

    /// Adds bytes, which count from now on: as many as leave half of what a cache may take.
    /// Programs allocate more than they touch, and values are not evicted for that.
    pub(super) fn add(&self, ledger: &Ledger, bytes: usize, now_nanos: u64) {
        self.lapse(ledger, now_nanos);
        let max_bytes = usize::try_from(ledger.surplus(Watermark::High) / 2).unwrap_or(0);
        let bytes = bytes.min(max_bytes);
        ledger.take_regardless(bytes);
        self.newer_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Settles what was announced long enough ago.
    pub(super) fn lapse(&self, ledger: &Ledger, now_nanos: u64) {
        let at_nanos = self.rotated_at_nanos.load(Ordering::Acquire);
        let age_nanos = now_nanos.saturating_sub(at_nanos);
        if age_nanos < LIFE_NANOS {
            return;
        }
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        let claimed = self
            .rotated_at_nanos
            .compare_exchange(at_nanos, now_nanos, success, failure);
        if claimed.is_err() {
            return;
        }
        let newer_bytes = self.newer_bytes.swap(0, Ordering::AcqRel);
        // Each announcement rotates first: after two lives without a rotation the newer
        // bytes are a life old as well.
        let (kept_bytes, old_bytes) = match age_nanos < 2 * LIFE_NANOS {
            true => (newer_bytes, 0),
            false => (0, newer_bytes),
        };
        let older_bytes = self.older_bytes.swap(kept_bytes, Ordering::AcqRel);
        ledger.mark_resident_without_shard(older_bytes + old_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::headroom::ledger::Limit;

    #[test]
    fn announced_bytes_count_for_one_to_two_lives() {
        let (announced, ledger) = (Announced::new(), Ledger::new());
        let limit = Limit {
            size_bytes: 1 << 30,
            free_bytes: 1 << 30,
        };
        ledger.end_reading(&ledger.begin_reading(1), &[limit], 1);
        let start = 10 * LIFE_NANOS;
        announced.add(&ledger, 1000, start);
        announced.add(&ledger, 500, start + LIFE_NANOS / 2);
        assert_eq!(ledger.outstanding_bytes(), 1500);
        announced.add(&ledger, 1, start + LIFE_NANOS);
        announced.lapse(&ledger, start + LIFE_NANOS * 3 / 2);
        assert_eq!(ledger.outstanding_bytes(), 1501);
        announced.lapse(&ledger, start + 2 * LIFE_NANOS);
        assert_eq!(ledger.outstanding_bytes(), 1);
        announced.add(&ledger, 70, start + 2 * LIFE_NANOS);
        // Nothing was announced for a long time.
        announced.lapse(&ledger, start + 9 * LIFE_NANOS);
        assert_eq!(ledger.outstanding_bytes(), 0);
        // A block that the limit cannot hold leaves enough for the values of a cache.
        announced.add(&ledger, 8 << 30, start + 10 * LIFE_NANOS);
        let surplus = ledger.surplus(Watermark::High);
        assert!(surplus > 400 << 20, "{surplus}");
    }
}
