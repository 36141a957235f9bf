//! One shard of the cache, with a mutex of its own.

use std::borrow::Borrow;
use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use super::entries::{Entries, Entry, MAX_FREQUENCY, OF_SEGMENT, SegmentId, entry_hash};
use super::flight::{Flights, Maker};
use super::ghosts::Ghosts;
use super::pinned::Pinned;
use super::segment::{Attached, Contents, PinResult, Process, Segment};
use super::segments::{GRAIN, Queue, Record, Segments, shared_bytes};
use super::stats::CacheStats;
use crate::ground::sys::fork;
use crate::ground::sys::process::monotonic_coarse_nanos;
use crate::observation::stats::{CACHE_EVICTED, CACHE_HITS, CACHE_MISSES, CACHE_PURGED};
use crate::verbs::volatile::Priority;

/// How often a look-up begins anew, because others have changed the value meanwhile.
const MAX_TRIES: usize = 16;

/// Aligned so that no two shards share a cache line.
#[repr(align(128))]
pub(super) struct Shard<K> {
    state: Mutex<State<K>>,
    pub(super) flights: Flights,
}

pub(super) struct State<K> {
    pub(super) entries: Entries<K>,
    pub(super) segments: Segments,
    pub(super) ghosts: Ghosts,
    /// The counters of the shard, but for its size.
    pub(super) stats: CacheStats,
    random: u64,
    /// In nanoseconds.
    time_to_live: Option<u64>,
}

/// Values that a shard has given up: dropped without its mutex.
pub(super) struct Garbage<K> {
    pub(super) records: Vec<Record>,
    pub(super) keys: Vec<K>,
}

impl<K> Garbage<K> {
    pub(super) fn new() -> Self {
        Self {
            records: Vec::new(),
            keys: Vec::new(),
        }
    }
}

/// Why a value leaves the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Removed,
    Purged,
    Evicted,
}

/// The place of a value that is being made. It has a pin of the segment.
pub(super) struct Reservation {
    pub(super) id: SegmentId,
    pub(super) segment: Arc<Segment>,
    pub(super) offset: usize,
    pub(super) len: usize,
}

impl Reservation {
    pub(super) fn start(&self) -> *mut u8 {
        // The place lies in the segment.
        self.segment.as_ptr().wrapping_add(self.offset)
    }
}

impl<K> State<K> {
    /// Returns the address and the length of a value, and its segment.
    #[inline]
    fn place(&self, number: u32) -> Option<(*const u8, usize, SegmentId, &Record)> {
        let entry = self.entries.get(number)?;
        let record = self.segments.get(entry.segment)?;
        let len = match entry.len {
            OF_SEGMENT => record.filled,
            len => usize::from(len),
        };
        let start = record
            .start()
            .wrapping_add(usize::from(entry.offset) * GRAIN);
        Some((start, len, entry.segment, record))
    }

    /// Removes a value.
    pub(super) fn give_up(&mut self, number: u32, cause: Cause, garbage: &mut Garbage<K>) {
        let Some(entry) = self.entries.remove(number) else {
            return;
        };
        match cause {
            Cause::Removed => self.stats.removed += 1,
            Cause::Purged => {
                self.stats.purged += 1;
                CACHE_PURGED.add(1, 0);
            }
            Cause::Evicted => {
                self.stats.evicted += 1;
                CACHE_EVICTED.add(1, 0);
            }
        }
        garbage.keys.push(entry.key);
        self.leave(entry.segment, garbage);
    }

    /// Subtracts a value from its segment, which is given up with its last one.
    pub(super) fn leave(&mut self, id: SegmentId, garbage: &mut Garbage<K>) {
        if let Some(record) = self.segments.get_mut(id) {
            record.live -= 1;
            if record.live == 0 {
                garbage.records.extend(self.segments.remove(id));
            }
        }
    }

    /// Gives up all values of a segment, if it is still the same one.
    pub(super) fn give_up_all(
        &mut self,
        id: SegmentId,
        segment: *const Segment,
        cause: Cause,
        garbage: &mut Garbage<K>,
    ) {
        let Some(record) = self.segments.of(id, segment) else {
            return;
        };
        let bytes = record.segment.memory_bytes() as u64;
        match cause {
            Cause::Removed => {}
            Cause::Purged => {
                self.stats.purged_bytes += bytes;
                CACHE_PURGED.add(0, bytes);
            }
            Cause::Evicted => {
                self.stats.evicted_bytes += bytes;
                CACHE_EVICTED.add(0, bytes);
            }
        }
        let record = self.segments.of(id, segment).expect("just found");
        for number in std::mem::take(&mut record.members) {
            let entry = self.entries.get(number);
            if entry.is_some_and(|entry| entry.segment == id) {
                self.give_up(number, cause, garbage);
            }
        }
    }

    /// Returns the time, if values expire.
    fn now(&self) -> Option<u64> {
        self.time_to_live.map(|_| monotonic_coarse_nanos())
    }

    fn expiry(&self) -> Option<u64> {
        let lifetime = self.time_to_live?;
        Some(monotonic_coarse_nanos().saturating_add(lifetime))
    }

    /// Returns a random number below `end`, which is not 0 (xorshift, which is good enough
    /// for sampling).
    pub(super) fn random_below(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % end as u64) as usize
    }
}

impl<K: Eq> Shard<K> {
    pub(super) fn new(seed: u64, time_to_live: Option<u64>) -> Self {
        Self {
            state: Mutex::new(State {
                entries: Entries::new(),
                segments: Segments::new(),
                ghosts: Ghosts::default(),
                stats: CacheStats::default(),
                random: seed | 1,
                time_to_live,
            }),
            flights: Flights::new(),
        }
    }

    /// Finds a value that has not expired.
    #[inline]
    fn find<Q: Eq + ?Sized>(
        state: &mut State<K>,
        hash: u32,
        key: &Q,
        garbage: &mut Garbage<K>,
    ) -> Option<u32>
    where
        K: Borrow<Q>,
    {
        let number = state.entries.find(hash, key)?;
        if let Some(now) = state.now()
            && state.entries.is_expired(number, now)
        {
            state.give_up(number, Cause::Removed, garbage);
            return None;
        }
        Some(number)
    }

    /// Pins the value of the key, and counts a hit, or a miss if that is to be counted.
    #[inline]
    pub(super) fn get<Q: Eq + ?Sized>(
        &self,
        hash: u64,
        key: &Q,
        process: Process,
        counts_miss: bool,
    ) -> Option<Pinned>
    where
        K: Borrow<Q>,
    {
        let hash = entry_hash(hash);
        let mut state = self.lock();
        if let Some(number) = state.entries.find(hash, key) {
            let is_live = (state.now()).is_none_or(|now| !state.entries.is_expired(number, now));
            if is_live && let Some((start, len, _, record)) = state.place(number) {
                let segment = record.handle;
                prefetch(start);
                // SAFETY: the record, and with it the segment, stays while the mutex is held.
                if unsafe { segment.try_pin() } {
                    state.count_hit(number);
                    drop(state);
                    CACHE_HITS.count();
                    // SAFETY: the segment is pinned, and this is the place of a value in it.
                    return Some(unsafe { Pinned::of(segment, process, start, len) });
                }
            }
            drop(state);
            if let Some(found) = self.get_slowly(hash, key, process) {
                return Some(found);
            }
            state = self.lock();
        }
        if counts_miss {
            state.stats.misses += 1;
            CACHE_MISSES.count();
        }
        None
    }

    /// Pins a value that the kernel has been offered, or removes one that has expired.
    #[cold]
    fn get_slowly<Q: Eq + ?Sized>(&self, hash: u32, key: &Q, process: Process) -> Option<Pinned>
    where
        K: Borrow<Q>,
    {
        let mut garbage = Garbage::new();
        for _ in 0..MAX_TRIES {
            let mut state = self.lock();
            let number = Self::find(&mut state, hash, key, &mut garbage)?;
            let (_, _, id, record) = state.place(number)?;
            let segment = (*record.segment).clone();
            drop(state);
            // Without the shard's mutex, because pinning calls the kernel.
            let result = segment.pin();
            let mut state = self.lock();
            match result {
                PinResult::Pinned => {
                    let number = Self::find(&mut state, hash, key, &mut garbage);
                    let place = number.and_then(|number| state.place(number));
                    if let Some((start, len, _, now)) = place
                        && Arc::ptr_eq(&now.segment, &segment)
                    {
                        state.count_hit(number?);
                        drop(state);
                        CACHE_HITS.count();
                        // SAFETY: as in `get`; the pin keeps the segment alive.
                        return Some(unsafe {
                            Pinned::of(Segment::handle(&segment), process, start, len)
                        });
                    }
                    drop(state);
                    // SAFETY: this thread has just pinned it.
                    unsafe { Segment::unpin(&segment) };
                }
                PinResult::Purged | PinResult::Stale => {
                    state.give_up_all(id, Arc::as_ptr(&segment), Cause::Purged, &mut garbage);
                    drop(state);
                    garbage.records.clear();
                    if result == PinResult::Purged {
                        // SAFETY: as above.
                        unsafe { Segment::unpin(&segment) };
                    }
                    return None;
                }
                PinResult::Failed => return None,
            }
        }
        None
    }

    pub(super) fn contains<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let mut garbage = Garbage::new();
        let mut state = self.lock();
        let number = Self::find(&mut state, entry_hash(hash), key, &mut garbage);
        let place = number.and_then(|number| state.place(number));
        let segment = place.map(|(_, _, _, record)| (*record.segment).clone());
        drop(state);
        segment.is_some_and(|segment| segment.contents() == Contents::Intact)
    }

    /// Reserves a place for a small value in the open segment of its queue; `None` if it is
    /// full, and a new segment has to be added.
    pub(super) fn reserve(&self, hash: u64, len: usize, priority: Priority) -> Option<Reservation> {
        let bytes = len.next_multiple_of(GRAIN).max(GRAIN);
        for _ in 0..MAX_TRIES {
            let mut garbage = Garbage::new();
            let mut state = self.lock();
            let queue = state.queue_of(hash);
            let id = state.segments.open(priority, queue)?;
            let record = state.segments.get_mut(id)?;
            if record.filled + bytes > shared_bytes() {
                state.segments.close(id);
                return None;
            }
            let segment = (*record.segment).clone();
            if segment.try_pin() {
                let offset = record.filled;
                record.filled += bytes;
                record.live += 1;
                return Some(Reservation {
                    id,
                    segment,
                    offset,
                    len,
                });
            }
            drop(state);
            let result = segment.pin();
            let mut state = self.lock();
            match result {
                PinResult::Pinned => {
                    drop(state);
                    // The next try finds it pinned, or just unpinned.
                    let reservation = self.reserve_pinned(id, &segment, bytes, len);
                    // SAFETY: this thread has just pinned it; a reservation has its own pin.
                    unsafe { Segment::unpin(&segment) };
                    if reservation.is_some() {
                        return reservation;
                    }
                }
                PinResult::Purged | PinResult::Stale => {
                    let cause = Cause::Purged;
                    state.give_up_all(id, Arc::as_ptr(&segment), cause, &mut garbage);
                    // Nothing was in it: a writer had just left.
                    state.segments.close(id);
                    drop(state);
                    drop(garbage);
                    if result == PinResult::Purged {
                        // SAFETY: as above.
                        unsafe { Segment::unpin(&segment) };
                    }
                }
                PinResult::Failed => return None,
            }
        }
        None
    }

    /// Reserves a place in a segment that the caller has pinned.
    fn reserve_pinned(
        &self,
        id: SegmentId,
        segment: &Arc<Segment>,
        bytes: usize,
        len: usize,
    ) -> Option<Reservation> {
        let mut state = self.lock();
        let record = state.segments.of(id, Arc::as_ptr(segment))?;
        if record.filled + bytes > shared_bytes() || !segment.try_pin() {
            return None;
        }
        let offset = record.filled;
        record.filled += bytes;
        record.live += 1;
        Some(Reservation {
            id,
            segment: segment.clone(),
            offset,
            len,
        })
    }

    /// Adds a segment with a value in it that is being made. Takes over the caller's pin.
    pub(super) fn add_segment(
        &self,
        hash: u64,
        segment: Arc<Segment>,
        len: usize,
        priority: Priority,
        is_shared: bool,
    ) -> Reservation {
        let attached = Attached::new(segment.clone());
        let mut state = self.lock();
        let queue = state.queue_of(hash);
        let id = state.segments.add(attached, queue, priority, is_shared);
        let record = state.segments.get_mut(id).expect("just added");
        record.live = 1;
        record.filled = match is_shared {
            true => len.next_multiple_of(GRAIN).max(GRAIN),
            false => len,
        };
        Reservation {
            id,
            segment,
            offset: 0,
            len,
        }
    }

    /// Inserts a value that is made, replacing the key's previous one. The caller still has
    /// the pin. Returns what was replaced: dropping a key may panic. `None` if the maker's value
    /// is out of date.
    pub(super) fn commit(
        &self,
        key: K,
        hash: u64,
        reservation: &Reservation,
        maker: Option<&Maker<'_>>,
    ) -> Option<Garbage<K>> {
        let (hash, mut garbage) = (entry_hash(hash), Garbage::new());
        let mut state = self.lock();
        if maker.is_some_and(Maker::is_outdated) {
            drop(state);
            return None;
        }
        let found = state.entries.find(hash, &key);
        self.flights.outdate(Some(hash), maker);
        if let Some(number) = found {
            state.give_up(number, Cause::Removed, &mut garbage);
        }
        state.stats.insertions += 1;
        state.ghosts.remove(hash);
        let expiry = state.expiry();
        let segment = Arc::as_ptr(&reservation.segment);
        let Some(record) = state.segments.of(reservation.id, segment) else {
            // The cache was cleared meanwhile.
            state.stats.removed += 1;
            garbage.keys.push(key);
            return Some(garbage);
        };
        let is_shared = record.is_shared;
        let entry = Entry {
            key,
            hash,
            segment: reservation.id,
            offset: (reservation.offset / GRAIN) as u16,
            len: match is_shared {
                true => reservation.len as u16,
                false => OF_SEGMENT,
            },
            frequency: 0,
        };
        let number = state.entries.add(entry, expiry);
        if let Some(record) = state.segments.of(reservation.id, segment) {
            record.members.push(number);
        }
        Some(garbage)
    }

    /// Gives a reserved place back, without a value. The caller still has the pin.
    pub(super) fn abort(&self, reservation: &Reservation) {
        let mut garbage = Garbage::new();
        let mut state = self.lock();
        let segment = Arc::as_ptr(&reservation.segment);
        if state.segments.of(reservation.id, segment).is_some() {
            state.leave(reservation.id, &mut garbage);
        }
        drop(state);
    }

    pub(super) fn remove<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let mut garbage = Garbage::new();
        let mut state = self.lock();
        let number = Self::find(&mut state, entry_hash(hash), key, &mut garbage);
        self.flights.outdate(Some(entry_hash(hash)), None);
        if let Some(number) = number {
            state.give_up(number, Cause::Removed, &mut garbage);
        }
        drop(state);
        number.is_some()
    }

    /// Removes the values whose keys `keep` refuses. Returns how many. None is removed in a
    /// child that `keep` has forked, or if it panics.
    pub(super) fn retain(&self, process: Process, mut keep: impl FnMut(&K) -> bool) -> usize {
        let mut garbage = Garbage::new();
        let mut state = self.lock();
        let now = state.now();
        let mut refused = Vec::new();
        for number in state.entries.numbers() {
            let Some(entry) = state.entries.get(number) else {
                continue;
            };
            let is_expired = now.is_some_and(|now| state.entries.is_expired(number, now));
            if is_expired || !in_closure(|| keep(&entry.key)) {
                refused.push(number);
            }
            if !process.is_this() {
                return 0;
            }
        }
        self.flights.outdate(None, None);
        for number in refused {
            state.give_up(number, Cause::Removed, &mut garbage);
        }
        drop(state);
        garbage.keys.len()
    }

    /// Calls `call` with each key, but not in a child that it has forked.
    pub(super) fn for_each_key(&self, process: Process, mut call: impl FnMut(&K)) {
        let state = self.lock();
        let now = state.now();
        for number in state.entries.numbers() {
            let is_expired = now.is_some_and(|now| state.entries.is_expired(number, now));
            if let Some(entry) = state.entries.get(number).filter(|_| !is_expired) {
                in_closure(|| call(&entry.key));
            }
            if !process.is_this() {
                return;
            }
        }
    }

    /// Gives up a random segment if it is purged, and repeats that after each find, so that
    /// entries of purged values do not pile up; and a few expired values.
    pub(super) fn sweep(&self) {
        for _ in 0..8 {
            let mut garbage = Garbage::new();
            let mut state = self.lock();
            state.remove_expired(&mut garbage);
            let capacity = state.segments.capacity().max(1);
            let number = state.random_below(capacity);
            let Some((id, record)) = state.segments.from(number) else {
                return;
            };
            let segment = (*record.segment).clone();
            drop(state);
            if !segment.is_idle() || segment.contents() != Contents::Purged {
                return;
            }
            let mut state = self.lock();
            // It may be in use again only if it was replaced: a purged one stays purged.
            state.give_up_all(id, Arc::as_ptr(&segment), Cause::Purged, &mut garbage);
            drop(state);
        }
    }

    /// Removes all values.
    pub(super) fn clear(&self) {
        let mut garbage = Garbage::new();
        let mut state = self.lock();
        self.flights.outdate(None, None);
        for number in state.entries.numbers() {
            state.give_up(number, Cause::Removed, &mut garbage);
        }
        // A value that is being made finds its segment gone.
        garbage.records.extend(state.segments.take_all());
        state.entries = Entries::new();
        drop(state);
    }

    pub(super) fn count_miss(&self) {
        self.lock().stats.misses += 1;
        CACHE_MISSES.count();
    }

    /// Returns how many bytes the segments of this and lower priorities have that no pin keeps.
    pub(super) fn idle_bytes(&self, max_priority: Priority) -> usize {
        self.lock().segments.idle_bytes(max_priority)
    }

    /// Returns the number of values.
    pub(super) fn len(&self) -> usize {
        self.lock().entries.len()
    }

    pub(super) fn add_to(&self, sum: &mut CacheStats) {
        let state = self.lock();
        sum.add(&state.stats);
        sum.values += state.entries.len() as u64;
        sum.bytes += state.segments.bytes() as u64;
    }

    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, State<K>> {
        let is_held = match self.state.try_lock() {
            Ok(state) => return state,
            Err(error) => matches!(error, TryLockError::WouldBlock),
        };
        self.wait_to_lock(is_held)
    }

    #[cold]
    fn wait_to_lock(&self, is_held: bool) -> MutexGuard<'_, State<K>> {
        // This thread would wait for itself, or for one that waits for it.
        assert!(
            !is_held || !IN_CLOSURE.get(),
            "a closure of VolatileCache::retain or for_each_key has used the cache"
        );
        // Only Eq of a key can panic under the mutex, or a caller's closure, while nothing
        // is half changed.
        self.state.clear_poison();
        fork::lock_outer(&self.state)
    }
}

thread_local! {
    /// This thread runs a closure of the caller's while it has locked a shard.
    static IN_CLOSURE: Cell<bool> = const { Cell::new(false) };
}

fn in_closure<T>(call: impl FnOnce() -> T) -> T {
    struct Leave {
        was_inside: bool,
    }
    impl Drop for Leave {
        fn drop(&mut self) {
            IN_CLOSURE.set(self.was_inside);
        }
    }
    let _leave = Leave {
        was_inside: IN_CLOSURE.replace(true),
    };
    call()
}

impl<K> State<K> {
    #[inline]
    fn count_hit(&mut self, number: u32) {
        self.stats.hits += 1;
        // What is found all the time is not written: threads on other CPUs read the line, too.
        if let Some(entry) = self.entries.get_mut(number)
            && entry.frequency < MAX_FREQUENCY
        {
            entry.frequency += 1;
        }
    }

    /// Returns the queue of a new value: one that was evicted lately skips probation.
    fn queue_of(&self, hash: u64) -> Queue {
        match self.ghosts.has(entry_hash(hash)) {
            true => Queue::Main,
            false => Queue::Probation,
        }
    }

    /// Removes expired values out of a few random ones.
    fn remove_expired(&mut self, garbage: &mut Garbage<K>) {
        let (Some(now), end) = (self.now(), self.entries.numbers().end as usize) else {
            return;
        };
        for _ in 0..8_usize.min(end) {
            let number = self.random_below(end) as u32;
            let is_used = self.entries.get(number).is_some();
            if is_used && self.entries.is_expired(number, now) {
                self.give_up(number, Cause::Removed, garbage);
            }
        }
    }
}

/// Begins to load the line at the address into the CPU's caches.
#[inline]
fn prefetch(start: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction faults at no address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(start.cast());
    }
}
