//! Counting: one addition to memory for each figure, whoever reads it.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use super::Stats;
use crate::ground::sys::counters::{ROOM, counters};

const _: () = assert!(size_of::<Stats>() <= ROOM * size_of::<u64>());

/// A figure that only grows.
#[derive(Clone, Copy)]
pub(crate) struct Counter(usize);

/// A [`Count`](super::Count): how often, and how much.
#[derive(Clone, Copy)]
pub(crate) struct Verb(usize);

/// A figure that says how it is at the moment; set by whoever keeps the state,
/// with the state in hand.
#[derive(Clone, Copy)]
pub(crate) struct Gauge(usize);

impl Counter {
    pub(crate) fn add(self, more: usize) {
        counters()[self.0].fetch_add(more as u64, Ordering::Relaxed);
    }
}

impl Verb {
    /// Counts a call that has succeeded.
    pub(crate) fn done(self, bytes: usize) {
        let counters = counters();
        counters[self.0].fetch_add(1, Ordering::Relaxed);
        counters[self.0 + 1].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts so many calls that have succeeded, with so many bytes each.
    pub(crate) fn done_often(self, calls: u64, bytes_each: usize) {
        let counters = counters();
        counters[self.0].fetch_add(calls, Ordering::Relaxed);
        counters[self.0 + 1].fetch_add(calls * bytes_each as u64, Ordering::Relaxed);
    }
}

impl Gauge {
    pub(crate) fn set(self, now: usize) {
        counters()[self.0].store(now as u64, Ordering::Relaxed);
    }

    pub(crate) fn add(self, more: usize) {
        counters()[self.0].fetch_add(more as u64, Ordering::Relaxed);
    }

    pub(crate) fn sub(self, less: usize) {
        counters()[self.0].fetch_sub(less as u64, Ordering::Relaxed);
    }
}

/// Sees to it that counting has begun.
pub(crate) fn begin() {
    counters();
}

macro_rules! at {
    ($kind:ident, $field:ident) => {
        $kind(offset_of!(Stats, $field) / size_of::<u64>())
    };
}

pub(crate) const POPULATE: Verb = at!(Verb, populate);
pub(crate) const LOCK: Verb = at!(Verb, lock);
pub(crate) const UNLOCK: Verb = at!(Verb, unlock);
pub(crate) const LOCK_ALL_CALLS: Counter = at!(Counter, lock_all_calls);
pub(crate) const UNLOCK_ALL_CALLS: Counter = at!(Counter, unlock_all_calls);
pub(crate) const LAZY_FREE: Verb = at!(Verb, lazy_free);
pub(crate) const MARK_VOLATILE: Verb = at!(Verb, mark_volatile);
pub(crate) const MARK_NONVOLATILE: Verb = at!(Verb, mark_nonvolatile);
pub(crate) const PURGED_BY_KERNEL_BYTES: Counter = at!(Counter, purged_by_kernel_bytes);
pub(crate) const PURGED_ON_REQUEST_BYTES: Counter = at!(Counter, purged_on_request_bytes);
pub(crate) const UNPROTECTED_BYTES: Counter = at!(Counter, unprotected_bytes);
pub(crate) const VOLATILE_BYTES: Gauge = at!(Gauge, volatile_bytes);
pub(crate) const MUNMAP: Verb = at!(Verb, munmap);
pub(crate) const DISCARD: Verb = at!(Verb, discard);
pub(crate) const PUNCH: Verb = at!(Verb, punch);
pub(crate) const CARRIED_OFF: Verb = at!(Verb, carried_off);
pub(crate) const FREED_BY_CALLER_BYTES: Counter = at!(Counter, freed_by_caller_bytes);
pub(crate) const WORKERS_STARTED: Counter = at!(Counter, workers_started);
pub(crate) const PURGED_UNDER_PRESSURE_BYTES: Counter = at!(Counter, purged_under_pressure_bytes);
pub(crate) const OFFERED_BYTES: Gauge = at!(Gauge, offered_bytes);
pub(crate) const NOT_OFFERED_BYTES: Counter = at!(Counter, not_offered_bytes);
pub(crate) const KEPT_FROM_KERNEL_BYTES: Gauge = at!(Gauge, kept_from_kernel_bytes);
pub(crate) const PENDING_RELEASE_BYTES: Gauge = at!(Gauge, pending_release_bytes);
pub(crate) const EAGER_FREE: Verb = at!(Verb, eager_free);
pub(crate) const GIVEN_BACK: Verb = at!(Verb, given_back);
