//! Offering the kernel what is marked.

use std::sync::Arc;

use super::candidates::Candidate;
use super::objects::Object;
use super::state::Registry;
use crate::ground::error::Result;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::flush_lazyfree_batch;
use crate::ground::sys::page_runs::chunk_end;
use crate::observation::stats;
use crate::verbs::volatile::engine::{CHUNK_BYTES, left_out_of};
use crate::verbs::volatile::word::State;

impl Registry {
    /// Offers what is still due of a batch, neighbours in one piece. Returns whether the
    /// kernel accepted all of it.
    pub(crate) fn offer_batch(&mut self, batch: &[Candidate]) -> bool {
        let mut all_offered = true;
        let mut claimed: Vec<&Candidate> = batch.iter().filter(|due| self.claims(due)).collect();
        claimed.sort_unstable_by_key(|due| due.range().start());
        for neighbours in claimed.chunk_by(|a, b| a.range().end() == b.range().start()) {
            let (first, last) = (
                neighbours[0].range(),
                neighbours[neighbours.len() - 1].range(),
            );
            let all = PageRange::between(first.start(), last.end());
            // SAFETY: all of it is volatile: `claims` has seen or claimed each part, and
            // ENGINE has been locked ever since.
            let together = unsafe { self.engine.offer(all) };
            for due in neighbours {
                let left_out = match &together {
                    Ok(left_out) => Ok(left_out_of(due.range(), left_out).collect()),
                    // One unofferable range does not block its neighbours.
                    // SAFETY: as above, for one of the parts.
                    Err(_) => unsafe { self.engine.offer(due.range()) },
                };
                all_offered &= self.publish_offer(due, left_out);
            }
        }
        flush_lazyfree_batch();
        all_offered
    }

    /// Whether the candidate is due still. Claims an object.
    fn claims(&self, due: &Candidate) -> bool {
        match due {
            Candidate::Range(range) => self.marks.first_due(*range) == Some(*range),
            Candidate::Object(object) => object.word.try_claim(),
        }
    }

    /// Takes what was left out of an offer; an error if nothing was offered. Pages that were not
    /// offered stay resident and protected. After an error a range is not offered again before it
    /// is marked again; an object is retried ([`failed_objects`]), and unmarking it locks ENGINE.
    /// Pages that were left out are retried. Returns whether all was offered.
    ///
    /// [`failed_objects`]: Registry::failed_objects
    fn publish_offer(&mut self, due: &Candidate, left_out: Result<Vec<PageRange>>) -> bool {
        let range = due.range();
        let failed_bytes = match &left_out {
            Ok(left_out) => left_out.iter().map(|part| part.len()).sum(),
            Err(_) => range.len(),
        };
        stats::OFFER_FAILED_BYTES.add(failed_bytes);
        match due {
            Candidate::Range(_) => self.publish_range(range, left_out.ok()),
            Candidate::Object(object) => {
                self.engine.set_incomplete(range, failed_bytes > 0);
                object.word.publish(State::Offered);
            }
        }
        failed_bytes == 0
    }

    /// Publishes what was left out of the offer of a part of plain ranges; `None` if nothing was
    /// offered.
    fn publish_range(&mut self, part: PageRange, left_out: Option<Vec<PageRange>>) {
        self.marks.publish(part, left_out.is_some());
        self.engine.set_incomplete(part, false);
        for left_out in left_out.into_iter().flatten() {
            self.engine.set_incomplete(left_out, true);
        }
    }

    /// Offers the first pages of `rest`, a part of a candidate that is due, a chunk of
    /// them at most. Adds to `failed_bytes`, which is of the parts before, what has failed to
    /// be offered. Returns what is left, if anything. After each chunk the marks, or the word
    /// and the list of incomplete offers, say what is offered: an unmark need not wait for the
    /// end, and a child forked between two chunks continues.
    pub(crate) fn offer_chunk(
        &mut self,
        candidate: &Candidate,
        mut rest: PageRange,
        failed_bytes: &mut usize,
    ) -> Option<PageRange> {
        let Candidate::Object(object) = candidate else {
            let due = self.marks.first_due(rest)?;
            // SAFETY: the part is marked, under the ENGINE lock.
            let left = unsafe { self.offer_part(due, failed_bytes) };
            return left.map(|left| PageRange::between(left.start(), rest.end()));
        };
        if object.word.try_claim() {
            // Marked again since the chunks before, which are to be offered again.
            (rest, *failed_bytes) = (object.range, 0);
            self.engine.set_incomplete(object.range, true);
            object.word.publish(State::Offered);
        }
        let is_volatile = object.word.read().state() == State::Offered;
        if !is_volatile || !self.engine.is_incomplete(object.range) {
            return None;
        }
        // SAFETY: its word is Offered, so it is volatile; only the ENGINE lock holder, this
        // thread, changes that.
        let Ok(offered) = (unsafe { self.engine.offer_chunk(rest) }) else {
            *failed_bytes += rest.len();
            return None;
        };
        *failed_bytes += offered
            .left_out
            .iter()
            .map(|part| part.len())
            .sum::<usize>();
        if offered.rest.is_empty() {
            self.engine.set_incomplete(object.range, *failed_bytes > 0);
            return None;
        }
        Some(offered.rest)
    }

    /// Offers the first pages of a part of plain ranges, a chunk at most. Returns the rest of the
    /// part; `None` after an error.
    ///
    /// # Safety
    ///
    /// The part is marked.
    unsafe fn offer_part(
        &mut self,
        part: PageRange,
        failed_bytes: &mut usize,
    ) -> Option<PageRange> {
        // SAFETY: the part is volatile (the caller's contract).
        let Ok(offered) = (unsafe { self.engine.offer_chunk(part) }) else {
            *failed_bytes += part.len();
            self.publish_range(part, None);
            return None;
        };
        *failed_bytes += offered
            .left_out
            .iter()
            .map(|part| part.len())
            .sum::<usize>();
        let done = PageRange::between(part.start(), offered.rest.start());
        self.publish_range(done, Some(offered.left_out));
        Some(offered.rest)
    }

    /// Offers again the first pages in `rest` that were left out of plain ranges, a chunk of them at
    /// most. Adds to `failed_bytes` what is left out again. Returns the rest, if anything of it was
    /// left out.
    pub(crate) fn offer_left_out(
        &mut self,
        rest: PageRange,
        failed_bytes: &mut usize,
    ) -> Option<PageRange> {
        let part = self.engine.incomplete_parts(rest).next()?;
        let end = chunk_end(part.start(), CHUNK_BYTES).min(part.end());
        let chunk = PageRange::between(part.start(), end);
        let Some(part) = self.marks.first_volatile_neighbours(chunk) else {
            // It belongs to an object.
            return Some(PageRange::between(end, rest.end()));
        };
        // SAFETY: the part is marked, under the ENGINE lock.
        let left = unsafe { self.offer_part(part, failed_bytes) };
        let done = left.map_or(part.end(), PageRange::start);
        Some(PageRange::between(done, rest.end()))
    }

    /// Returns the parts of plain ranges that were left out of offers.
    pub(crate) fn left_out(&self) -> Vec<PageRange> {
        let incomplete = self.engine.incomplete();
        let of_ranges = incomplete.filter(|part| self.marks.first_volatile(*part).is_some());
        of_ranges.collect()
    }

    /// Returns the objects that could not be offered, if there are any: there may be very
    /// many objects to search.
    pub(crate) fn failed_objects(&self) -> Vec<Arc<Object>> {
        if !self.engine.has_incomplete() {
            return Vec::new();
        }
        let volatile = self.objects.volatile();
        let failed = volatile.filter(|object| self.has_offer_failed(object));
        failed.cloned().collect()
    }

    fn has_offer_failed(&self, object: &Object) -> bool {
        object.word.read().state() == State::Offered
            && self.engine.is_incomplete(object.range)
            && !self.engine.has_guards(object.range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::mapping::{HugePages, Mapping};
    use crate::verbs::volatile::engine::can_offer;
    use crate::verbs::volatile::priority::{Priority, Timestamp};
    use crate::verbs::volatile::registry::{ENGINE, revoke_object};

    #[test]
    fn object_that_is_marked_again_between_two_chunks_is_offered_from_its_start() {
        if !can_offer() {
            return;
        }
        let memory = Mapping::anonymous(3 * CHUNK_BYTES).huge_pages(HugePages::Never);
        let mut memory = memory.map().unwrap();
        memory.as_mut_slice().unwrap().fill(7);
        let range = memory.range();
        let object = ENGINE.lock().objects.add(range);
        let candidate = Candidate::Object(object.clone());
        let mark = || object.word.mark(Priority::Normal, Timestamp::now());
        let mut failed_bytes = 0;
        let mut next_chunk = |rest| {
            let mut registry = ENGINE.lock();
            registry.offer_chunk(&candidate, rest, &mut failed_bytes)
        };
        let unmark = || {
            let publish = |_: &mut Registry, _: &_| object.word.publish(State::Nonvolatile);
            let _purged = revoke_object(range, publish).unwrap();
        };
        mark();
        let after_first = next_chunk(range).unwrap();
        assert!(range.start() < after_first.start());
        unmark();
        mark();
        assert_eq!(next_chunk(after_first), Some(after_first));
        unmark();
        ENGINE.lock().objects.remove(&object);
    }
}
