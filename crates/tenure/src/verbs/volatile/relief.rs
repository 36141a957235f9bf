//! Giving up what is volatile: some of it under memory pressure, by the keeper,
//! and all of it for who asks.

use std::sync::Arc;

use super::engine::{ENGINE, Engine};
use super::keeper::Due;
use super::marks::Mark;
use super::objects::Object;
use super::word::State;
use super::{Priority, Stamp};
use crate::ground::error::Result;
use crate::ground::range::PageRange;
use crate::observation::stats::{self, Counter};

/// What is given up at least before it is looked whether that was enough.
const LEAST_BYTES: usize = 64 << 20;

/// Of all that is volatile, the part that is given up before that.
const PART: usize = 8;

/// Gives up some of what is volatile: the lowest priority first, and of one
/// priority what was marked least recently.
pub(super) fn give_some_up() {
    let (mut all, volatile_bytes) = {
        let engine = ENGINE.lock();
        (engine.by_age(), engine.volatile_bytes())
    };
    all.sort_by_key(|(priority, stamp, _)| (*priority, *stamp));
    let wanted_bytes = LEAST_BYTES.max(volatile_bytes / PART);
    let mut freed_bytes = 0;
    for (_, _, due) in all {
        if freed_bytes >= wanted_bytes {
            return;
        }
        // Taken anew for each, so that others get their turn. What cannot be
        // purged stays.
        let cause = stats::PURGED_UNDER_PRESSURE_BYTES;
        freed_bytes += ENGINE.lock().give_up(&due, cause).unwrap_or(0);
    }
}

/// Has the contents of all that is volatile in this process taken now, ranges and
/// buffers alike, as [`PageRange::purge`] does: for a program that is told to
/// shrink.
///
/// ```standalone_crate
/// let mut thumbnail = tenure::VolatileBuffer::new(1 << 20)?;
/// thumbnail.as_mut_slice()?.fill(7);
/// thumbnail.mark_volatile();
/// tenure::purge_all()?;
/// assert_ne!(thumbnail.mark_nonvolatile()?, tenure::Outcome::Intact);
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Errors
///
/// As for [`PageRange::purge`], when a part cannot be purged; the others are.
pub fn purge_all() -> Result<()> {
    let all: Vec<_> = ENGINE.lock().all_volatile().collect();
    let mut answer = Ok(());
    for (_, _, due) in all {
        let cause = stats::PURGED_ON_REQUEST_BYTES;
        let purged = ENGINE.lock().give_up(&due, cause);
        answer = answer.and(purged.map(drop));
    }
    answer
}

/// Takes the rest of each object of which the kernel has taken a part: it is of
/// no use any more. (Of a plain range, the program may use single pages.)
pub(super) fn finish_what_is_begun() {
    let objects: Vec<Arc<Object>> = ENGINE.lock().objects.volatile().cloned().collect();
    for object in objects {
        // What cannot be finished stays.
        let _ = ENGINE.lock().finish(&object);
    }
}

impl Engine {
    /// All that is volatile and has not been purged.
    fn by_age(&self) -> Vec<(Priority, Stamp, Due)> {
        let is_whole = |range: PageRange| !self.lost.overlaps(&range.as_std());
        let all = self.all_volatile();
        all.filter(|(_, _, due)| is_whole(due.range())).collect()
    }

    fn all_volatile(&self) -> impl Iterator<Item = (Priority, Stamp, Due)> {
        let plain = self
            .marks
            .volatile()
            .filter_map(|(range, mark)| match mark {
                Mark::Volatile {
                    priority, stamp, ..
                } => Some((priority, stamp, Due::Plain(range))),
                Mark::Known => None,
            });
        let objects = self.objects.volatile().map(|object| {
            let reading = object.word.read();
            (
                reading.priority(),
                reading.stamp(),
                Due::Object(object.clone()),
            )
        });
        plain.chain(objects)
    }

    /// Purges what is still volatile of it. Returns how many bytes that took.
    fn give_up(&mut self, due: &Due, cause: Counter) -> Result<usize> {
        match due {
            Due::Plain(range) => {
                let mut freed_bytes = 0;
                for part in self.marks.volatile_parts(*range) {
                    // SAFETY: it is volatile, with the engine held.
                    let answer = unsafe { self.purge(part, cause) };
                    // Also when it could only be done in part.
                    self.marks.settle(part, true);
                    freed_bytes += answer?;
                }
                Ok(freed_bytes)
            }
            Due::Object(object) => {
                if !object.word.take_in_hand() && object.word.read().state() != State::Offered {
                    return Ok(0);
                }
                // SAFETY: it is volatile: in hand, or offered, with the engine held.
                let answer = unsafe { self.purge(object.range, cause) };
                object.word.settle(State::Offered);
                answer
            }
        }
    }

    fn finish(&mut self, object: &Arc<Object>) -> Result<()> {
        let range = object.range;
        // One that could not be offered has pages that were never touched and are
        // absent for that.
        let is_offered = object.word.read().state() == State::Offered
            && self.offered.gaps(&range.as_std()).next().is_none();
        if !is_offered || self.lost.overlaps(&range.as_std()) {
            return Ok(());
        }
        if self.misses_pages(range)? {
            let cause = stats::PURGED_UNDER_PRESSURE_BYTES;
            self.give_up(&Due::Object(object.clone()), cause)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::mapping::Mapping;
    use crate::ground::sys::advise::{Losing, advise_losing};
    use crate::ground::sys::page_size;
    use crate::verbs::volatile::Outcome;
    use crate::verbs::volatile::engine::can_offer;

    #[test]
    fn what_has_lost_a_page_loses_the_rest_and_nothing_else_does() {
        if !can_offer() {
            return;
        }
        let mut engine = ENGINE.lock();
        let [damaged, whole] = [(); 2].map(|()| {
            let mut memory = Mapping::anonymous(4 * page_size()).map().unwrap();
            memory.as_mut_slice().unwrap().fill(7);
            let object = engine.objects.add(memory.range());
            object.word.mark(Priority::Normal, Stamp::now());
            engine.offer_batch(&[Due::Object(object.clone())]);
            (memory, object)
        });
        let start = damaged.1.range.start();
        let second = PageRange::between(start + page_size(), start + 2 * page_size());
        // SAFETY: nothing borrows from it. The kernel takes a page so.
        unsafe { advise_losing(second, Losing::DontNeed) }.unwrap();
        for (_, object) in [&damaged, &whole] {
            engine.finish(object).unwrap();
        }
        assert!(!engine.has_lost(whole.1.range));
        let [damaged, whole] = [damaged, whole].map(|(memory, object)| {
            let outcome = engine.withdraw(object.range).unwrap();
            object.word.settle(State::Nonvolatile);
            engine.objects.remove(&object);
            (memory, outcome)
        });
        drop(engine);
        assert_eq!(damaged.1, Outcome::Purged(vec![damaged.0.range()]));
        // (Unless the kernel has taken some, which it may at any time.)
        assert!(whole.1 != Outcome::Intact || whole.0.as_slice().iter().all(|&byte| byte == 7));
    }

    #[test]
    fn what_could_not_be_offered_is_not_taken_for_begun() {
        let mut memory = Mapping::anonymous(4 * page_size()).map().unwrap();
        memory.as_mut_slice().unwrap()[0] = 7;
        let mut engine = ENGINE.lock();
        let object = engine.objects.add(memory.range());
        object.word.mark(Priority::Normal, Stamp::now());
        // As the hand-over leaves what it cannot offer.
        assert!(object.word.take_in_hand());
        object.word.settle(State::Offered);
        engine.finish(&object).unwrap();
        assert!(
            engine
                .lost
                .gaps(&memory.range().as_std())
                .eq([memory.range().as_std()])
        );
        engine.objects.remove(&object);
        drop(engine);
        assert_eq!(memory.as_slice()[0], 7);
    }
}
