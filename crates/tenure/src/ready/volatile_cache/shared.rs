//! The common part of a cache's shards: memory and its limits.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;

use super::arenas::Arenas;
use super::evict::OwnPin;
use super::flight::Maker;
use super::gate::Gate;
use super::lookups::Lookups;
use super::options::CacheOptions;
use super::pinned::{Found, Pinned};
use super::reservation::Reservation;
use super::segment::{Process, Reserved, Segment};
use super::segments::{MAX_SMALL_BYTES, MAX_SMALL_KEY_BYTES, shared_bytes};
use super::shard::Shard;
use crate::ground::error::Result;
use crate::ground::sys::{fork, page_size};
use crate::observation::headroom::{self, Admission, Watermark};
use crate::verbs::volatile::{Priority, VolatileBuffer};

/// A cache with a limit has a shard for so many bytes at least.
const MIN_SHARD_BYTES: usize = 1 << 20;

pub(super) struct Shared<K> {
    pub(super) process: Process,
    pub(super) shards: Box<[Shard<K>]>,
    /// Without a last multiplication, which the entries do.
    hasher: SeedableRandomState,
    arenas: Mutex<Arenas>,
    pub(super) gate: Gate,
    /// The bytes of all segments.
    pub(super) used: Arc<AtomicUsize>,
    pub(super) max_bytes: usize,
    /// The shard to evict from next, modulo their number.
    pub(super) next_eviction: AtomicUsize,
    pub(super) refused: AtomicU64,
    pub(super) lookups: Lookups,
}

impl<K> Drop for Shared<K> {
    /// The values are dropped before the arenas.
    fn drop(&mut self) {
        lock(&self.arenas).close();
    }
}

/// A value that is made, or being made. Dropping it before it is committed gives its place
/// back.
pub(super) struct Making<'a, K: Hash + Eq> {
    shared: &'a Shared<K>,
    shard: &'a Shard<K>,
    reservation: Option<Reservation>,
}

impl<K: Hash + Eq> Making<'_, K> {
    /// Inserts the value, and returns it with its pin; `None` if it is out of date.
    pub(super) fn commit(mut self, key: K, hash: u64, maker: Option<&Maker>) -> Option<Pinned> {
        if !self.shared.process.is_this() {
            // The program has forked while it made the value.
            return None;
        }
        let reservation = self.reservation.as_ref()?;
        // If comparing keys panics, the place is given back.
        let garbage = self.shard.commit(key, hash, reservation, maker)?;
        let found = Found {
            start: reservation.start(),
            len: reservation.len,
            segment: Segment::address(&reservation.segment),
        };
        // The guard takes over the pin, which keeps the segment alive without a reference.
        drop(self.reservation.take());
        // SAFETY: the place is filled, and the pin is this guard's.
        let pinned = unsafe { Pinned::of(found) };
        // If that panics, the value is in all the same.
        drop(garbage);
        Some(pinned)
    }

    fn bytes(&mut self) -> &mut [u8] {
        match &self.reservation {
            // SAFETY: the place is this value's own until it is committed, and the segment
            // is pinned.
            Some(place) => unsafe {
                std::slice::from_raw_parts_mut(place.start().as_ptr(), place.len)
            },
            None => &mut [],
        }
    }
}

impl<K: Hash + Eq> Drop for Making<'_, K> {
    fn drop(&mut self) {
        let Some(reservation) = self.reservation.take() else {
            return;
        };
        if !self.shared.process.is_this() {
            std::mem::forget(reservation);
            return;
        }
        self.shard.abort(&reservation);
        drop(OwnPin(reservation.segment));
    }
}

impl<K: Hash + Eq> Shared<K> {
    pub(super) fn new(options: CacheOptions) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let max_bytes = options.max_bytes.unwrap_or(usize::MAX);
        let max_shards = (max_bytes / MIN_SHARD_BYTES).clamp(1, 1 << 10);
        let shards = (4 * threads).min(max_shards).next_power_of_two();
        // The standard library's seeds come from the kernel.
        let seed = RandomState::new().hash_one(0);
        let hasher = SeedableRandomState::with_seed(seed, SharedSeed::global_random());
        let lifetime = options.time_to_live.map(|lifetime| {
            // 584 years.
            u64::try_from(lifetime.as_nanos()).unwrap_or(u64::MAX)
        });
        let seeds = (0..shards).map(|index| hasher.hash_one(index));
        Self {
            process: Process::this(),
            shards: seeds.map(|seed| Shard::new(seed, lifetime)).collect(),
            hasher,
            arenas: Mutex::new(Arenas::default()),
            gate: Gate::new(),
            used: Arc::default(),
            max_bytes,
            next_eviction: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            lookups: Lookups::new(),
        }
    }

    /// Returns the hash of the key, and its shard.
    #[inline]
    pub(super) fn shard<Q: Hash + ?Sized>(&self, key: &Q) -> (u64, &Shard<K>) {
        let hash = self.hasher.hash_one(key);
        // Entries keep the lower half.
        let index = (hash >> 32) as usize & (self.shards.len() - 1);
        (hash, &self.shards[index])
    }

    /// Makes a value, whose key takes `key_bytes` that are to count; `None` if memory is
    /// unavailable.
    pub(super) fn make<'a>(
        &'a self,
        (hash, shard): (u64, &'a Shard<K>),
        (len, key_bytes): (usize, usize),
        priority: Priority,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Option<Making<'a, K>>> {
        let is_small = len <= MAX_SMALL_BYTES
            && key_bytes <= MAX_SMALL_KEY_BYTES
            && shared_bytes() <= self.max_bytes;
        // The overhead of a segment of small values has their keys.
        let key_bytes = if is_small { 0 } else { key_bytes };
        let reserved = is_small.then(|| shard.reserve(hash, len, priority));
        let (admission, reservation) = match reserved.flatten() {
            Some(reservation) => (None, reservation),
            None => {
                let size = if is_small { shared_bytes() } else { len };
                let Some((admission, segment)) = self.new_segment(size, key_bytes, priority)?
                else {
                    return Ok(None);
                };
                shard.sweep();
                let reservation = shard.add_segment(hash, segment, len, priority, is_small);
                (Some(admission), reservation)
            }
        };
        let mut making = Making {
            shared: self,
            shard,
            reservation: Some(reservation),
        };
        let filled = FillGuard(admission.as_ref());
        fill(making.bytes());
        drop(filled);
        Ok(Some(making))
    }

    /// Makes a segment of at least `len` bytes, with one pin; `None` if memory is
    /// unavailable. The caller marks the admission as resident when the segment is filled.
    fn new_segment(
        &self,
        len: usize,
        key_bytes: usize,
        priority: Priority,
    ) -> Result<Option<(Admission, Arc<Segment>)>> {
        let refuse = || {
            self.refused.fetch_add(1, Ordering::Relaxed);
        };
        let memory_bytes = len.max(1).checked_next_multiple_of(page_size());
        let bytes = memory_bytes.and_then(|bytes| bytes.checked_add(key_bytes));
        let Some(admitted) = bytes.and_then(|bytes| self.admit(bytes, priority)) else {
            refuse();
            return Ok(None);
        };
        let admission = &admitted.admission;
        // An empty value has a page, too.
        let allocated = lock(&self.arenas).allocate(len.max(1));
        let mut buffer = allocated.inspect_err(|_| refuse())?;
        // Memory that becomes resident here is not in flight while the program makes the value.
        let populated = buffer.populate(|bytes| admission.mark_resident(bytes));
        if populated.is_err() {
            admission.mark_resident(usize::MAX);
            refuse();
            return Ok(None);
        }
        drop(admitted.inside);
        drop(admitted.keys);
        let segment = Segment::pinned(buffer, priority, admitted.reserved);
        Ok(Some((admitted.admission, segment)))
    }

    /// Makes a segment for what an eviction keeps, where there is memory for it.
    pub(super) fn make_spare(&self, priority: Priority) -> Option<Arc<Segment>> {
        let len = shared_bytes();
        let admission = headroom::take(len, Watermark::Min)?;
        let reserved = Reserved::try_new(&self.used, len, usize::MAX)?;
        let mut buffer: VolatileBuffer = lock(&self.arenas).allocate(len).ok()?;
        let populated = buffer.populate(|_| {});
        admission.mark_resident(usize::MAX);
        populated.ok()?;
        Some(Segment::pinned(buffer, priority, reserved))
    }

    /// Removes all values, and releases the address space as well.
    pub(super) fn clear(&self) {
        let arenas = std::mem::take(&mut *lock(&self.arenas));
        arenas.close();
        for shard in &self.shards {
            shard.clear();
        }
        // Unlocked before, because that takes time.
        drop(arenas);
    }
}

/// Settles the rest of an admission when the value is made, or its maker panics.
struct FillGuard<'a>(Option<&'a Admission>);

impl Drop for FillGuard<'_> {
    fn drop(&mut self) {
        if let Some(admission) = self.0 {
            admission.mark_resident(usize::MAX);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic cannot leave these inconsistent: they hold figures and a list.
    fork::lock_outer(mutex)
}
