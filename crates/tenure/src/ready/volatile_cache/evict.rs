//! Eviction within a shard: S3-FIFO over segments.

use std::sync::Arc;

use super::entries::SegmentId;
use super::segment::{Contents, PinResult, Segment};
use super::segments::Queue;
use super::shard::Shard;
use super::state::{Cause, Garbage, State};
use super::survivors::after_round;
use crate::observation::headroom::LEDGER;
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
    /// idle. The caller drops the keys.
    pub(super) fn evict_one(
        &self,
        priority: Priority,
        make_spare: impl Fn() -> Option<Arc<Segment>>,
        keys: &mut Vec<K>,
    ) -> Option<usize> {
        let mut progress = Progress {
            steps: 0,
            busy: 0,
            copies: 0,
            spare: None,
            has_asked: false,
        };
        loop {
            match self.evict_step(priority, &mut progress, keys) {
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

    fn evict_step(&self, priority: Priority, progress: &mut Progress, keys: &mut Vec<K>) -> Step {
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
            if let Some(entry) = entry.filter(|entry| entry.frequency() > 0 && !is_forced) {
                *entry.frequency.get_mut() = after_round(queue, entry.frequency());
                state.segments.move_to_end(id, Queue::Main);
                return Step::Next;
            }
            state.evict_rest(id, &mut garbage);
            drop(state);
            return Step::Freed(self.free(garbage, keys));
        }
        state.segments.close(id);
        let found_bytes = match is_forced {
            true => 0,
            false => state.found_bytes(id),
        };
        if found_bytes == 0 {
            state.evict_rest(id, &mut garbage);
            drop(state);
            return Step::Freed(self.free(garbage, keys));
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
                    keys.append(&mut garbage.keys);
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
        let freed_bytes = self.free(garbage, keys);
        if had_spare && progress.spare.is_none() {
            progress.copies += 1;
            progress.has_asked = false;
            return Step::Next;
        }
        Step::Freed(freed_bytes)
    }

    /// Frees what was evicted before it returns, but for the keys. Returns the number of bytes.
    fn free(&self, garbage: Garbage<K>, keys: &mut Vec<K>) -> usize {
        keys.extend(garbage.keys);
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

pub(super) fn record_segment<K>(state: &State<K>, id: SegmentId) -> &Arc<Segment> {
    let record = state.segments.get(id);
    &record
        .expect("the shard has been locked since it was found")
        .segment
}
