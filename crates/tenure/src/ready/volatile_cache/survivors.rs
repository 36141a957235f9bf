//! The values of an evicted segment: those that were found lately are copied into others.

use super::entries::SegmentId;
use super::evict::{OwnPin, record_segment};
use super::segments::{GRAIN, Queue, shared_bytes};
use super::state::{Cause, Garbage, State};
use crate::observation::stats::CACHE_EVICTED;
use crate::verbs::volatile::Priority;

/// Returns the frequency of a value that goes on to the end of the main queue.
pub(super) fn after_round(queue: Queue, frequency: u8) -> u8 {
    match queue {
        Queue::Probation => 0,
        Queue::Main => frequency - 1,
    }
}

impl<K> State<K> {
    /// Returns the numbers of the values that are in the segment.
    pub(super) fn numbers_in(&self, id: SegmentId) -> Vec<usize> {
        let members = self.segments.get(id).map(|record| &record.members[..]);
        self.entries.of_segment(id, members.unwrap_or_default())
    }

    /// Returns how many bytes the values of a segment take that were found lately.
    pub(super) fn found_bytes(&self, id: SegmentId) -> usize {
        let numbers = self.numbers_in(id);
        let entries = numbers
            .iter()
            .filter_map(|&number| self.entries.get(number));
        let found = entries.filter(|entry| entry.frequency() > 0);
        found.map(|entry| place_bytes(entry.len)).sum()
    }

    /// Returns how many bytes are left in the open segment of the main queue.
    pub(super) fn main_room(&self, priority: Priority) -> usize {
        let open = self.segments.open(priority, Queue::Main);
        let record = open.and_then(|id| self.segments.get(id));
        record.map_or(0, |record| shared_bytes() - record.filled)
    }

    /// Copies the values of a pinned segment that were found lately into segments of the
    /// main queue, which are returned in `targets` with a pin each. Values that do not
    /// fit stay.
    pub(super) fn copy_found(
        &mut self,
        id: SegmentId,
        priority: Priority,
        spare: &mut Option<OwnPin>,
        targets: &mut Vec<OwnPin>,
        garbage: &mut Garbage<K>,
    ) {
        let Some(source) = self.segments.get(id) else {
            return;
        };
        let (queue, start) = (source.queue, source.segment.as_ptr());
        let mut target = None;
        for number in self.numbers_in(id) {
            let Some(entry) = self.entries.get(number) else {
                continue;
            };
            if entry.frequency() == 0 {
                continue;
            }
            let bytes = place_bytes(entry.len);
            let has_room = |state: &Self, target: SegmentId| {
                let record = state.segments.get(target);
                record.is_some_and(|record| record.filled + bytes <= shared_bytes())
            };
            if target.is_none_or(|target| !has_room(self, target)) {
                target = self.pin_target(priority, spare, targets, |state, id| has_room(state, id));
            }
            let Some(to) = target else {
                continue;
            };
            let Some(entry) = self.entries.get_mut(number) else {
                continue;
            };
            let Some(record) = self.segments.get_mut(to) else {
                continue;
            };
            let from = start.wrapping_add(usize::from(entry.offset) * GRAIN);
            let place = record.segment.as_ptr().wrapping_add(record.filled);
            // SAFETY: both segments are pinned, so nonvolatile. The value lies in the source,
            // which is another segment, and `has_room` has found as many bytes free in the
            // target, which only holders of the shard's lock hand out.
            unsafe { std::ptr::copy_nonoverlapping(from, place, usize::from(entry.len)) };
            entry.offset = (record.filled / GRAIN) as u16;
            entry.segment = to;
            *entry.frequency.get_mut() = after_round(queue, entry.frequency());
            record.filled += bytes;
            record.live += 1;
            record.members.push(entry.hash);
            self.leave(id, garbage);
        }
    }

    /// Pins the open segment of the main queue, or the spare one.
    fn pin_target(
        &mut self,
        priority: Priority,
        spare: &mut Option<OwnPin>,
        targets: &mut Vec<OwnPin>,
        has_room: impl Fn(&Self, SegmentId) -> bool,
    ) -> Option<SegmentId> {
        let open = self.segments.open(priority, Queue::Main);
        if let Some(open) = open.filter(|&open| has_room(self, open)) {
            let segment = record_segment(self, open).clone();
            if segment.try_pin() {
                targets.push(OwnPin(segment));
                return Some(open);
            }
        }
        let spare = spare.take()?;
        let attached = super::segment::Attached::new(spare.0.clone());
        targets.push(spare);
        Some((self.segments).add(attached, Queue::Main, priority, true))
    }

    /// Evicts what is left in a segment.
    pub(super) fn evict_rest(&mut self, id: SegmentId, garbage: &mut Garbage<K>) {
        let Some(record) = self.segments.get(id) else {
            return;
        };
        let (queue, bytes) = (record.queue, record.segment.memory_bytes());
        self.stats.evicted_bytes += bytes as u64;
        CACHE_EVICTED.add(0, bytes as u64);
        let values = self.entries.len();
        for number in self.numbers_in(id) {
            let Some(entry) = self.entries.get(number) else {
                continue;
            };
            if queue == Queue::Probation {
                self.ghosts.add(entry.hash, values);
            }
            self.give_up(number, Cause::Evicted, garbage);
        }
    }
}

fn place_bytes(len: u16) -> usize {
    usize::from(len).next_multiple_of(GRAIN).max(GRAIN)
}
