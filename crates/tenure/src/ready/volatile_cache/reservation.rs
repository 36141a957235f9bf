//! Places of values that are being made.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use super::entries::{Entry, OF_SEGMENT, SegmentId, entry_hash};
use super::flight::Maker;
use super::lookup::MAX_TRIES;
use super::segment::{Attached, PinResult, Segment};
use super::segments::{GRAIN, shared_bytes};
use super::shard::Shard;
use super::state::{Cause, Garbage};
use crate::verbs::volatile::Priority;

/// The place of a value that is being made. It has a pin of the segment.
pub(super) struct Reservation {
    pub(super) id: SegmentId,
    pub(super) segment: Arc<Segment>,
    pub(super) offset: usize,
    pub(super) len: usize,
}

impl Reservation {
    pub(super) fn start(&self) -> NonNull<u8> {
        // SAFETY: the place lies in the segment.
        unsafe { self.segment.start().add(self.offset) }
    }
}

impl<K: Eq> Shard<K> {
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
        let segment = Arc::as_ptr(&reservation.segment);
        let expiry = state.expiry();
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
            frequency: AtomicU8::new(0),
            expiry,
        };
        record.members.push(hash);
        state.entries.add(entry);
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
}
