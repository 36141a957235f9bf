//! Eviction within a shard: S3-FIFO over segments.

use std::sync::Arc;

use super::entries::SegmentId;
use super::segment::{Contents, PinResult, Segment};
use super::segments::{GRAIN, Queue, shared_bytes};
use super::shard::Shard;
use super::state::{Cause, Garbage, State};
use crate::observation::headroom::LEDGER;
use crate::observation::stats::CACHE_EVICTED;
use crate::verbs::volatile::Priority;

/// A pin that this thread has. Dropping it subtracts the pin, then the reference.
pub(super) struct OwnPin(pub(super) Arc<Segment>);

impl Drop for OwnPin {
    fn drop(&mut self) {
        // SAFETY: the thread that makes this value has a pin, which it leaves to it.
        unsafe { Segment::unpin(&self.0) };
    }
}

/// An eviction keeps the values of at most so many segments. Readers may find values as
/// fast as it looks at them.
const MAX_COPIES: usize = 8;

/// The result of a look at the head of a queue.
enum Step {
    /// The next one may be evicted.
    Next,
    /// No segment of the priority is idle.
    NoneIdle,
    /// The values that were found lately need a new segment.
    NeedsSpare,
    Freed(usize),
}

/// The state of an eviction between its steps.
struct Progress {
    steps: usize,
    busy: usize,
    /// The segments that were made for values found lately: each takes as much as it frees.
    copies: usize,
    spare: Option<OwnPin>,
    /// A spare segment was asked for, whether there was memory for it or not.
    has_asked: bool,
}

impl<K: Eq> Shard<K> {
    /// Evicts the values of one segment of this priority that were not found lately, and
    /// frees the segment; others are copied together. `make_spare` makes a segment for these,
    /// pinned, where memory allows. Returns the number of bytes freed, `None` if no segment is
    /// idle.
    pub(super) fn evict_one(
        &self,
        priority: Priority,
        make_spare: impl Fn() -> Option<Arc<Segment>>,
    ) -> Option<usize> {
        let mut progress = Progress {
            steps: 0,
            busy: 0,
            copies: 0,
            spare: None,
            has_asked: false,
        };
        loop {
            match self.evict_step(priority, &mut progress) {
                Step::Next => {}
                Step::NoneIdle => return None,
                Step::NeedsSpare => {
                    progress.spare = make_spare().map(OwnPin);
                    progress.has_asked = true;
                }
                Step::Freed(bytes) => return Some(bytes),
            }
        }
    }

    fn evict_step(&self, priority: Priority, progress: &mut Progress) -> Step {
        let mut garbage = Garbage::new();
        let mut state = self.lock();
        // Behind a busy segment the other queue has its turn.
        let is_swapped = progress.busy % 2 == 1;
        let Some(id) = state.segments.victim(priority, is_swapped) else {
            return Step::NoneIdle;
        };
        let capacity = state.segments.capacity();
        progress.steps += 1;
        // Each round lowers the frequencies; other threads may raise them as fast.
        let is_forced = progress.steps > 4 * capacity + 16 || progress.copies >= MAX_COPIES;
        let Some(record) = state.segments.get(id) else {
            return Step::NoneIdle;
        };
        let queue = record.queue;
        if !record.segment.is_idle() {
            state.segments.move_to_end(id, queue);
            progress.busy += 1;
            return match progress.busy > 2 * capacity {
                true => Step::NoneIdle,
                false => Step::Next,
            };
        }
        if !record.is_shared {
            let number = state.numbers_in(id).first().copied();
            let entry = number.and_then(|number| state.entries.get_mut(number));
            if let Some(entry) = entry.filter(|entry| entry.frequency > 0 && !is_forced) {
                entry.frequency = after_round(queue, entry.frequency);
                state.segments.move_to_end(id, Queue::Main);
                return Step::Next;
            }
            state.evict_rest(id, &mut garbage);
            drop(state);
            return Step::Freed(self.free(garbage));
        }
        state.segments.close(id);
        let found_bytes = match is_forced {
            true => 0,
            false => state.found_bytes(id),
        };
        if found_bytes == 0 {
            state.evict_rest(id, &mut garbage);
            drop(state);
            return Step::Freed(self.free(garbage));
        }
        let has_room = found_bytes <= state.main_room(priority);
        if !has_room && progress.spare.is_none() && !progress.has_asked {
            return Step::NeedsSpare;
        }
        let segment = (*record_segment(&state, id)).clone();
        let mut source = None;
        if segment.try_pin() {
            source = Some(OwnPin(segment));
        } else {
            drop(state);
            let result = segment.pin();
            state = self.lock();
            match result {
                PinResult::Pinned => source = Some(OwnPin(segment.clone())),
                PinResult::Purged | PinResult::Stale => {
                    let cause = Cause::Purged;
                    state.give_up_all(id, Arc::as_ptr(&segment), cause, &mut garbage);
                    drop(state);
                    drop(garbage);
                    if result == PinResult::Purged {
                        drop(OwnPin(segment));
                    }
                    return Step::Next;
                }
                PinResult::Failed => {}
            }
            if state.segments.of(id, Arc::as_ptr(&segment)).is_none() {
                drop(state);
                return Step::Next;
            }
        }
        let mut targets = Vec::new();
        let had_spare = progress.spare.is_some();
        if source.is_some() {
            state.copy_found(
                id,
                priority,
                &mut progress.spare,
                &mut targets,
                &mut garbage,
            );
        }
        state.evict_rest(id, &mut garbage);
        drop(state);
        drop((targets, source));
        let freed_bytes = self.free(garbage);
        if had_spare && progress.spare.is_none() {
            progress.copies += 1;
            progress.has_asked = false;
            return Step::Next;
        }
        Step::Freed(freed_bytes)
    }

    /// Frees what was evicted before it returns. Returns the number of bytes.
    fn free(&self, garbage: Garbage<K>) -> usize {
        let mut freed_bytes = 0;
        for record in garbage.records {
            let bytes = record.segment.memory_bytes();
            freed_bytes += LEDGER.release(bytes, || {
                // The last reading, or the next, has the memory that was purged before.
                let is_intact = record.segment.contents() == Contents::Intact;
                let is_freed = record.segment.free_sync() && is_intact;
                let bytes = if is_freed { bytes } else { 0 };
                (bytes, bytes)
            });
        }
        freed_bytes
    }
}

fn record_segment<K>(state: &State<K>, id: SegmentId) -> &Arc<Segment> {
    let record = state.segments.get(id);
    &record
        .expect("the shard has been locked since it was found")
        .segment
}

/// Returns the frequency of a value that goes on to the end of the main queue.
fn after_round(queue: Queue, frequency: u8) -> u8 {
    match queue {
        Queue::Probation => 0,
        Queue::Main => frequency - 1,
    }
}

impl<K> State<K> {
    /// Returns the numbers of the values that are in the segment.
    fn numbers_in(&self, id: SegmentId) -> Vec<usize> {
        let members = self.segments.get(id).map(|record| &record.members[..]);
        self.entries.of_segment(id, members.unwrap_or_default())
    }

    /// Returns how many bytes the values of a segment take that were found lately.
    fn found_bytes(&self, id: SegmentId) -> usize {
        let numbers = self.numbers_in(id);
        let entries = numbers
            .iter()
            .filter_map(|&number| self.entries.get(number));
        let found = entries.filter(|entry| entry.frequency > 0);
        found.map(|entry| place_bytes(entry.len)).sum()
    }

    /// Returns how many bytes are left in the open segment of the main queue.
    fn main_room(&self, priority: Priority) -> usize {
        let open = self.segments.open(priority, Queue::Main);
        let record = open.and_then(|id| self.segments.get(id));
        record.map_or(0, |record| shared_bytes() - record.filled)
    }

    /// Copies the values of a pinned segment that were found lately into segments of the
    /// main queue, which are returned in `targets` with a pin each. Values that do not
    /// fit stay.
    fn copy_found(
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
            if entry.frequency == 0 {
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
            // target, which only holders of the shard's mutex hand out.
            unsafe { std::ptr::copy_nonoverlapping(from, place, usize::from(entry.len)) };
            entry.offset = (record.filled / GRAIN) as u16;
            entry.segment = to;
            entry.frequency = after_round(queue, entry.frequency);
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
    fn evict_rest(&mut self, id: SegmentId, garbage: &mut Garbage<K>) {
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
