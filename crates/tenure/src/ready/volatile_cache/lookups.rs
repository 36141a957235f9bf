//! The hits and misses of a cache, in shards that threads do not share.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::ground::sys::shard::{LEASES, Lease};
use crate::observation::stats::{CACHE_HITS, CACHE_MISSES};
use crate::verbs::volatile::NewlyPinned;

/// Counts the look-ups of a cache, and of the process.
pub(super) struct Lookups(Box<[Line; LEASES]>);

/// Aligned so that no two shards share a cache line, or a pair of lines that the CPU
/// fetches together.
#[derive(Default)]
#[repr(align(128))]
struct Line {
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Lookups {
    pub(super) fn new() -> Self {
        Self(Box::default())
    }

    /// Counts a hit, with its pin.
    #[inline]
    pub(super) fn count_hit(&self, pinned: NewlyPinned) {
        Lease::with(move |lease| {
            pinned.count(lease);
            lease.add(&self.0[lease.shard()].hits, 1);
            CACHE_HITS.count_with(lease);
        });
    }

    #[inline]
    pub(super) fn count_miss(&self) {
        Lease::with(move |lease| {
            lease.add(&self.0[lease.shard()].misses, 1);
            CACHE_MISSES.count_with(lease);
        });
    }

    pub(super) fn hits(&self) -> u64 {
        self.sum(|line| &line.hits)
    }

    pub(super) fn misses(&self) -> u64 {
        self.sum(|line| &line.misses)
    }

    fn sum(&self, count: fn(&Line) -> &AtomicU64) -> u64 {
        let counts = self.0.iter().map(count);
        counts.map(|count| count.load(Ordering::Acquire)).sum()
    }
}
