//! Offering the kernel what is marked.

use std::sync::Arc;

use super::candidates::Candidate;
use super::objects::Object;
use super::state::Registry;
use super::word::State;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::flush_lazyfree_batch;
use crate::observation::stats;

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
            Candidate::Range(range) => self.marks.is_due(*range),
            Candidate::Object(object) => object.word.try_claim(),
        }
    }

    /// On failure the pages stay resident and protected. A range is not offered again
    /// before it is marked again; an object is retried ([`retry_offer`]), and unmarking
    /// it locks ENGINE.
    ///
    /// [`retry_offer`]: Registry::retry_offer
    fn publish_offer(&mut self, due: &Candidate, is_offered: bool) {
        if !is_offered {
            stats::OFFER_FAILED_BYTES.add(due.range().len());
        }
        match due {
            Candidate::Range(range) => self.marks.publish(*range, is_offered),
            Candidate::Object(object) => object.word.publish(State::Offered),
        }
    }

    /// Returns the objects that could not be offered, if an offer has failed since the
    /// last call: there may be very many objects to search.
    pub(crate) fn take_offer_failures(&mut self) -> Vec<Arc<Object>> {
        if !self.engine.take_offer_failed() {
            return Vec::new();
        }
        let volatile = self.objects.volatile();
        let failed = volatile.filter(|object| self.has_offer_failed(object));
        failed.cloned().collect()
    }

    fn has_offer_failed(&self, object: &Object) -> bool {
        object.word.read().state() == State::Offered
            && !self.engine.is_offered(object.range)
            && !self.engine.has_guards(object.range)
    }

    /// Offers an object again. Returns whether it is offered now, or need not be.
    pub(crate) fn retry_offer(&mut self, object: &Object) -> bool {
        if !self.has_offer_failed(object) {
            return true;
        }
        // SAFETY: its word was found Offered above, so it is volatile; only the ENGINE
        // lock holder, this thread, changes that.
        let is_offered = unsafe { self.engine.offer(object.range) }.is_ok();
        flush_lazyfree_batch();
        is_offered
    }
}
