//! Admission of memory for values, and eviction of others for it.

use std::hash::Hash;
use std::sync::atomic::Ordering;

use super::gate::Inside;
use super::segment::Reserved;
use super::segments::shared_bytes;
use super::shared::Shared;
use crate::observation::headroom::{self, Admission, LEDGER, Watermark};
use crate::verbs::volatile::Priority;

/// Before it evicts more than one part in so many, the cache looks whether that is enough.
const LOOK_DIVISOR: usize = 16;

/// The bytes that the entries of a segment of small values take.
const SHARED_OVERHEAD_BYTES: usize = 4 << 10;

/// The bytes that a large value takes besides its pages and its key.
const LARGE_OVERHEAD_BYTES: usize = 256;

/// Memory that a segment may take.
pub(super) struct Admitted<'a, K> {
    pub(super) admission: Admission,
    /// While memory is short.
    pub(super) inside: Option<Inside<'a>>,
    pub(super) reserved: Reserved,
    /// The keys of what was evicted, to be dropped outside of the gate: their `Drop` may use the
    /// cache, and would wait for this thread to leave.
    pub(super) keys: Vec<K>,
}

impl<K: Hash + Eq> Shared<K> {
    /// Admits memory, after evicting as many values as needed; `None` if it is unavailable.
    pub(super) fn admit(&self, memory_bytes: usize, priority: Priority) -> Option<Admitted<'_, K>> {
        let overhead_bytes = match memory_bytes <= shared_bytes() {
            true => SHARED_OVERHEAD_BYTES,
            false => LARGE_OVERHEAD_BYTES,
        };
        let bytes = memory_bytes.checked_add(overhead_bytes)?;
        let reserved = self.reserve(memory_bytes, bytes, priority)?;
        let admitted = |admission, inside, keys| Admitted {
            admission,
            inside,
            reserved,
            keys,
        };
        if !LEDGER.is_due()
            && let Some(admission) = headroom::take(bytes, Watermark::High)
        {
            return Some(admitted(admission, None, Vec::new()));
        }
        // Before the gate, so that it is dropped behind it.
        let mut keys = Vec::new();
        let inside = Some(self.gate.enter(bytes).ok()?);
        if !self.can_fit_after_reading(bytes, priority) {
            return None;
        }
        let mut is_read = false;
        loop {
            let evicted_bytes = self.evict_for(bytes, priority, &mut keys);
            // The reserve is restored step by step, so that one caller does not pay for all
            // of it; the minimal reserve is restored at once.
            if let Some(admission) = headroom::take(bytes, Watermark::Low) {
                return Some(admitted(admission, inside, keys));
            }
            if evicted_bytes == 0 {
                if is_read {
                    return None;
                }
                // Memory may have become free since the last reading.
                headroom::refresh().ok()?;
                is_read = true;
            }
        }
    }

    /// Reserves bytes below the cache's limit, after evicting as many values as needed. They
    /// take `admitted_bytes` of the memory.
    fn reserve(&self, bytes: usize, admitted_bytes: usize, priority: Priority) -> Option<Reserved> {
        if bytes > self.max_bytes {
            return None;
        }
        if let Some(reserved) = Reserved::try_new(&self.used, bytes, self.max_bytes) {
            return Some(reserved);
        }
        let used = self.used.load(Ordering::Relaxed);
        let missing_bytes = used.saturating_sub(self.max_bytes - bytes);
        if !self.can_evict(missing_bytes, priority)
            || !self.can_fit_after_reading(admitted_bytes, priority)
        {
            return None;
        }
        let mut keys = Vec::new();
        loop {
            if let Some(reserved) = Reserved::try_new(&self.used, bytes, self.max_bytes) {
                return Some(reserved);
            }
            let fits = || self.used.load(Ordering::Relaxed) <= self.max_bytes - bytes;
            if self.evict_until(priority, &mut keys, |_| fits()) == 0 && !fits() {
                return None;
            }
        }
    }

    /// Returns whether evicting values would make as much memory free; takes a reading if it
    /// would not, since which memory may have become free.
    fn can_fit_after_reading(&self, bytes: usize, priority: Priority) -> bool {
        self.can_fit(bytes, priority)
            || headroom::refresh().is_ok() && self.can_fit(bytes, priority)
    }

    /// Returns whether evicting values would make as much memory free. Values are not evicted
    /// for one that is refused then.
    fn can_fit(&self, bytes: usize, priority: Priority) -> bool {
        let surplus_bytes = LEDGER.surplus(Watermark::Low);
        let missing_bytes = isize::try_from(bytes).map(|bytes| bytes.saturating_sub(surplus_bytes));
        let missing_bytes = missing_bytes.unwrap_or(isize::MAX);
        missing_bytes <= 0 || self.can_evict(missing_bytes as usize, priority)
    }

    /// Returns whether so many bytes can be evicted. Assumes that they can if they are less
    /// than a part of what the cache has: to look at all segments would take longer than to
    /// evict those.
    fn can_evict(&self, bytes: usize, max_priority: Priority) -> bool {
        let used = self.used.load(Ordering::Relaxed);
        if bytes <= used / LOOK_DIVISOR {
            return true;
        }
        let shards = self.shards.iter();
        let idle_bytes = shards.map(|shard| shard.idle_bytes(max_priority)).sum();
        bytes <= idle_bytes
    }

    /// Evicts values until the reserve allows for `bytes`, or four times as much is evicted
    /// and the minimal reserve allows for them, or nothing of this or a lower priority is
    /// left to evict. Returns the number of bytes freed.
    fn evict_for(&self, bytes: usize, max_priority: Priority, keys: &mut Vec<K>) -> usize {
        let has_surplus = |watermark| LEDGER.surplus(watermark) >= bytes as isize;
        self.evict_until(max_priority, keys, |freed_bytes| {
            has_surplus(Watermark::High)
                || freed_bytes >= bytes.saturating_mul(4) && has_surplus(Watermark::Low)
        })
    }

    /// Evicts values of this or lower priorities until it is enough. Returns the number of
    /// bytes freed.
    fn evict_until(
        &self,
        max_priority: Priority,
        keys: &mut Vec<K>,
        is_enough: impl Fn(usize) -> bool,
    ) -> usize {
        let mut freed_bytes = 0;
        let priorities = Priority::ALL.into_iter();
        for priority in priorities.filter(|&priority| priority <= max_priority) {
            let mut failures = 0;
            while !is_enough(freed_bytes) && failures < self.shards.len() {
                // Round robin, because all shards have about the same size.
                let next = self.next_eviction.fetch_add(1, Ordering::Relaxed);
                let shard = &self.shards[next % self.shards.len()];
                match shard.evict_one(priority, || self.make_spare(priority), keys) {
                    Some(bytes) => (freed_bytes, failures) = (freed_bytes + bytes, 0),
                    None => failures += 1,
                }
            }
        }
        freed_bytes
    }
}
