//! Offering the kernel what is marked.

use super::candidates::Candidate;
use super::objects::Object;
use super::state::Registry;
use crate::ground::error::Result;
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
            let together = unsafe { self.engine.offer(all) };
            for due in neighbours {
                let offered = match together {
                    Ok(true) => Ok(true),
                    // One unofferable range does not block its neighbours.
                    // SAFETY: as above, for one of the parts.
                    _ => unsafe { self.engine.offer(due.range()) },
                };
                all_offered &= offered == Ok(true);
                self.publish_offer(due, offered);
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

    /// Takes whether all was offered. Pages that were not stay resident and protected. After an
    /// error a range is not offered again before it is marked again; an object is retried
    /// ([`incomplete`]), and unmarking it locks ENGINE. Both are retried where another process
    /// had some of the pages, too.
    ///
    /// [`incomplete`]: Registry::incomplete
    fn publish_offer(&mut self, due: &Candidate, offered: Result<bool>) {
        if offered != Ok(true) {
            stats::OFFER_FAILED_BYTES.add(due.range().len());
        }
        match due {
            Candidate::Range(range) => {
                self.engine.set_incomplete(*range, offered == Ok(false));
                self.marks.publish(*range, offered.is_ok());
            }
            Candidate::Object(object) => {
                self.engine
                    .set_incomplete(object.range, offered != Ok(true));
                object.word.publish(State::Offered);
            }
        }
    }

    /// Offers the first pages of `rest`, a part of a candidate that is due or incomplete, a chunk
    /// of them at most. Adds to `failed_bytes`, which is of the parts before, what has failed to
    /// be offered. Returns what is left, if anything. After each chunk the marks, or the word
    /// and the list of incomplete offers, say what is offered: an unmark need not wait for the
    /// end, and a child forked between two chunks continues.
    pub(crate) fn offer_chunk(
        &mut self,
        candidate: &Candidate,
        rest: PageRange,
        failed_bytes: &mut usize,
    ) -> Option<PageRange> {
        let Candidate::Object(object) = candidate else {
            let first = self.first_incomplete(rest).into_iter();
            let due = first.chain(self.marks.first_due(rest));
            let due = due.min_by_key(|due| due.start())?;
            // SAFETY: the part is marked, under the ENGINE lock.
            let offered = unsafe { self.engine.offer_chunk(due) };
            let end = offered.as_ref().map_or(due.end(), |left| left.rest.start());
            let done = PageRange::between(due.start(), end);
            self.marks.publish(done, offered.is_ok());
            let offered = offered.map(|offered| offered.is_all_offered);
            self.engine.set_incomplete(done, offered == Ok(false));
            if offered != Ok(true) {
                *failed_bytes += done.len();
            }
            return offered.ok().map(|_| PageRange::between(end, rest.end()));
        };
        if object.word.try_claim() {
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
        if !offered.is_all_offered {
            *failed_bytes += offered.rest.start() - rest.start();
        }
        if offered.rest.is_empty() {
            self.engine.set_incomplete(object.range, *failed_bytes > 0);
            return None;
        }
        Some(offered.rest)
    }

    /// Returns the first volatile part of the range in which pages were left out, because another
    /// process had them, too.
    fn first_incomplete(&self, range: PageRange) -> Option<PageRange> {
        let mut incomplete = self.engine.incomplete_parts(range);
        incomplete.find_map(|part| self.marks.first_volatile(part))
    }

    /// Returns what has to be offered again, if anything: there may be very many objects to search.
    pub(crate) fn incomplete(&self) -> Vec<Candidate> {
        if !self.engine.has_incomplete() {
            return Vec::new();
        }
        let ranges = self.engine.incomplete();
        let ranges = ranges.filter(|part| self.marks.first_volatile(*part).is_some());
        let volatile = self.objects.volatile();
        let failed = volatile.filter(|object| self.has_offer_failed(object));
        let objects = failed.cloned().map(Candidate::Object);
        ranges.map(Candidate::Range).chain(objects).collect()
    }

    fn has_offer_failed(&self, object: &Object) -> bool {
        object.word.read().state() == State::Offered
            && self.engine.is_incomplete(object.range)
            && !self.engine.has_guards(object.range)
    }
}
