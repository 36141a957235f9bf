//! Offering the kernel what is marked.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::candidates::Candidate;
use super::objects::Object;
use super::state::Registry;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::flush_lazyfree_batch;
use crate::observation::stats;
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
            let is_offered = unsafe { self.engine.offer(all) }.is_ok();
            for due in neighbours {
                // One unofferable range does not block its neighbours.
                // SAFETY: as above, for one of the parts.
                let is_offered = is_offered || unsafe { self.engine.offer(due.range()) }.is_ok();
                self.publish_offer(due, is_offered);
                all_offered &= is_offered;
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

    /// On failure the pages stay resident and protected. A range is not offered again
    /// before it is marked again; an object is retried ([`offer_failures`]), and unmarking
    /// it locks ENGINE.
    ///
    /// [`offer_failures`]: Registry::offer_failures
    fn publish_offer(&mut self, due: &Candidate, is_offered: bool) {
        if !is_offered {
            stats::OFFER_FAILED_BYTES.add(due.range().len());
        }
        match due {
            Candidate::Range(range) => self.marks.publish(*range, is_offered),
            Candidate::Object(object) => {
                self.engine.set_incomplete(object.range, !is_offered);
                object.word.publish(State::Offered);
            }
        }
    }

    /// Offers the first pages of `rest`, a part of a candidate that is due, a chunk of
    /// them at most. Continues with what is left, or ends with how many bytes of it have
    /// failed to be offered. After each chunk the marks, or the word and the list of
    /// incomplete offers, say what is offered: an unmark need not wait for the end, and a
    /// child forked between two chunks continues.
    pub(crate) fn offer_chunk(
        &mut self,
        candidate: &Candidate,
        rest: PageRange,
    ) -> ControlFlow<usize, PageRange> {
        match candidate {
            Candidate::Range(_) => {
                let Some(due) = self.marks.first_due(rest) else {
                    return ControlFlow::Break(0);
                };
                // SAFETY: the part is marked, under the ENGINE lock.
                let offered = unsafe { self.engine.offer_chunk(due) };
                let end = offered.as_ref().map_or(due.end(), |left| left.start());
                let done = PageRange::between(due.start(), end);
                self.marks.publish(done, offered.is_ok());
                match offered {
                    Ok(_) => ControlFlow::Continue(PageRange::between(end, rest.end())),
                    Err(_) => ControlFlow::Break(done.len()),
                }
            }
            Candidate::Object(object) => {
                if object.word.try_claim() {
                    self.engine.set_incomplete(object.range, true);
                    object.word.publish(State::Offered);
                }
                let is_volatile = object.word.read().state() == State::Offered;
                if !is_volatile || !self.engine.is_incomplete(object.range) {
                    return ControlFlow::Break(0);
                }
                // SAFETY: its word is Offered, so it is volatile; only the ENGINE lock
                // holder, this thread, changes that.
                match unsafe { self.engine.offer_chunk(rest) } {
                    Ok(left) if left.is_empty() => {
                        self.engine.set_incomplete(object.range, false);
                        ControlFlow::Break(0)
                    }
                    Ok(left) => ControlFlow::Continue(left),
                    Err(_) => ControlFlow::Break(rest.len()),
                }
            }
        }
    }

    /// Returns the objects that could not be offered, if there are any: there may be very
    /// many objects to search.
    pub(crate) fn offer_failures(&self) -> Vec<Arc<Object>> {
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
