//! Counts of marks and unmarks, in shards that threads do not share.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::ground::sys::shard::{LEASES, Lease, shard_of_thread};

/// The counts of all objects of the process.
pub(super) static COUNTS: Counts = Counts::new();

/// How many threads count without contention.
const SHARDS: usize = 16;

/// The process's counters are memory that all threads write: marking a buffer takes
/// several times as long while another thread adds to them. So each thread adds to a
/// shard, and the ENGINE lock holder flushes the sums.
pub(super) struct Counts {
    shards: [Shard; SHARDS],
    /// For the marks of buffers whose marks must be cheap.
    leased: [Shard; LEASES],
    unpinned_bytes: [Unpinned; LEASES],
}

/// Bytes of unpinned objects less those of pinned ones; wraps around. Aligned as a [`Shard`].
#[repr(align(128))]
struct Unpinned(AtomicU64);

/// Aligned so that no two shards share a cache line, or a pair of lines that the CPU
/// fetches together.
#[repr(align(128))]
struct Shard {
    marks: AtomicU64,
    marked_bytes: AtomicU64,
    renewed_bytes: AtomicU64,
    unmarks: AtomicU64,
    unmarked_bytes: AtomicU64,
    dropped_bytes: AtomicU64,
    revoked_bytes: AtomicU64,
}

impl Shard {
    const fn new() -> Self {
        Self {
            marks: AtomicU64::new(0),
            marked_bytes: AtomicU64::new(0),
            renewed_bytes: AtomicU64::new(0),
            unmarks: AtomicU64::new(0),
            unmarked_bytes: AtomicU64::new(0),
            dropped_bytes: AtomicU64::new(0),
            revoked_bytes: AtomicU64::new(0),
        }
    }

    #[inline]
    fn add_mark(&self, bytes: usize, was_nonvolatile: bool, add: impl Fn(&AtomicU64, usize)) {
        add(&self.marks, 1);
        add(&self.marked_bytes, bytes);
        if !was_nonvolatile {
            add(&self.renewed_bytes, bytes);
        }
    }

    #[inline]
    fn add_unmark(&self, bytes: usize, add: impl Fn(&AtomicU64, usize)) {
        add(&self.unmarks, 1);
        add(&self.unmarked_bytes, bytes);
    }
}

/// Sums of all shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) marks: u64,
    pub(super) marked_bytes: u64,
    /// The part of `marked_bytes` that was volatile already.
    renewed_bytes: u64,
    pub(super) unmarks: u64,
    pub(super) unmarked_bytes: u64,
    /// Bytes of objects that were dropped while volatile.
    dropped_bytes: u64,
    /// Bytes of offers that owners have revoked without the ENGINE lock.
    pub(super) revoked_bytes: u64,
    /// Bytes that unpinning has made volatile, less those that pinning has made nonvolatile.
    unpinned_bytes: i64,
}

impl Sums {
    pub(super) const ZERO: Self = Self {
        marks: 0,
        marked_bytes: 0,
        renewed_bytes: 0,
        unmarks: 0,
        unmarked_bytes: 0,
        dropped_bytes: 0,
        revoked_bytes: 0,
        unpinned_bytes: 0,
    };

    /// Returns how much is volatile.
    pub(super) fn volatile_bytes(&self) -> usize {
        let gone = self.renewed_bytes + self.unmarked_bytes + self.dropped_bytes;
        // A thread may unmark, in another shard, what was marked after that was read.
        (self.marked_bytes as i64 - gone as i64 + self.unpinned_bytes).max(0) as usize
    }
}

impl Counts {
    const fn new() -> Self {
        Self {
            shards: [const { Shard::new() }; SHARDS],
            leased: [const { Shard::new() }; LEASES],
            unpinned_bytes: [const { Unpinned(AtomicU64::new(0)) }; LEASES],
        }
    }

    /// Counts a mark.
    pub(super) fn add_mark(&self, bytes: usize, was_nonvolatile: bool) {
        let shard = self.shard();
        shard.add_mark(bytes, was_nonvolatile, add);
    }

    /// Counts an unmark of a volatile object.
    pub(super) fn add_unmark(&self, bytes: usize) {
        self.shard().add_unmark(bytes, add);
    }

    /// Counts a mark with a [`Lease`].
    pub(super) fn add_leased_mark(&self, bytes: usize, was_nonvolatile: bool) {
        let lease = Lease::of_thread();
        let shard = &self.leased[lease.shard()];
        shard.add_mark(bytes, was_nonvolatile, |count, more| {
            lease.add(count, more as u64);
        });
    }

    /// Counts an unmark of a volatile object with a [`Lease`].
    pub(super) fn add_leased_unmark(&self, bytes: usize) {
        let lease = Lease::of_thread();
        let shard = &self.leased[lease.shard()];
        shard.add_unmark(bytes, |count, more| lease.add(count, more as u64));
    }

    /// Counts the drop of a volatile object.
    pub(super) fn add_drop(&self, bytes: usize) {
        add(&self.shard().dropped_bytes, bytes);
    }

    /// Counts an offer that its owner has revoked without the ENGINE lock.
    pub(super) fn add_revoked(&self, bytes: usize) {
        add(&self.shard().revoked_bytes, bytes);
    }

    /// Counts that the first pin has made an object nonvolatile, with the thread's lease.
    #[inline]
    pub(super) fn add_pinned(&self, bytes: usize, lease: Lease) {
        self.add_unpinned(bytes.wrapping_neg(), lease);
    }

    /// Counts that the last pin has made an object volatile, with the thread's lease.
    #[inline]
    pub(super) fn add_unpinned(&self, bytes: usize, lease: Lease) {
        lease.add(&self.unpinned_bytes[lease.shard()].0, bytes as u64);
    }

    pub(super) fn sums(&self) -> Sums {
        let mut sums = Sums::ZERO;
        // The counts that end volatility are read first, so that the difference is not negative.
        let add_to = |sum: &mut u64, count: fn(&Shard) -> &AtomicU64| {
            let counts = self.shards.iter().chain(&self.leased).map(count);
            *sum = counts.map(|count| count.load(Ordering::Acquire)).sum();
        };
        add_to(&mut sums.unmarks, |shard| &shard.unmarks);
        add_to(&mut sums.unmarked_bytes, |shard| &shard.unmarked_bytes);
        add_to(&mut sums.dropped_bytes, |shard| &shard.dropped_bytes);
        add_to(&mut sums.renewed_bytes, |shard| &shard.renewed_bytes);
        add_to(&mut sums.revoked_bytes, |shard| &shard.revoked_bytes);
        let unpinned = self.unpinned_bytes.iter();
        let sum = |sum: u64, count: &Unpinned| sum.wrapping_add(count.0.load(Ordering::Acquire));
        sums.unpinned_bytes = unpinned.fold(0, sum) as i64;
        add_to(&mut sums.marks, |shard| &shard.marks);
        add_to(&mut sums.marked_bytes, |shard| &shard.marked_bytes);
        sums
    }

    fn shard(&self) -> &Shard {
        &self.shards[shard_of_thread(SHARDS)]
    }
}

fn add(count: &AtomicU64, more: usize) {
    count.fetch_add(more as u64, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_cover_all_threads() {
        let counts = Counts::new();
        std::thread::scope(|scope| {
            for _ in 0..2 * SHARDS {
                scope.spawn(|| {
                    counts.add_mark(100, true);
                    counts.add_mark(100, false);
                    counts.add_unmark(100);
                    counts.add_mark(30, true);
                    counts.add_mark(7, true);
                    counts.add_drop(7);
                    counts.add_leased_mark(100, true);
                    counts.add_leased_mark(100, false);
                    counts.add_leased_unmark(100);
                });
            }
        });
        let sums = counts.sums();
        let threads = 2 * SHARDS as u64;
        assert_eq!((sums.marks, sums.unmarks), (6 * threads, 2 * threads));
        assert_eq!(sums.marked_bytes, 437 * threads);
        assert_eq!(sums.volatile_bytes() as u64, 30 * threads);
    }
}
