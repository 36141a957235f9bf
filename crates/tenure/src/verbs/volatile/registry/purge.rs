//! Purging volatile ranges and objects.

use super::candidates::Candidate;
use super::objects::Object;
use super::state::Registry;
use super::word::State;
use crate::ground::error::Result;
use crate::ground::range::PageRange;
use crate::observation::stats::{self, Counter};

impl Registry {
    /// Purges what is still volatile of the candidate, and adds the bytes to `cause`.
    /// Returns the bytes.
    pub(crate) fn purge_candidate(
        &mut self,
        candidate: &Candidate,
        cause: Counter,
    ) -> Result<usize> {
        match candidate {
            Candidate::Range(range) => self.purge_range(*range, cause),
            Candidate::Object(object) => self.purge_object(object, cause),
        }
    }

    /// Purges the volatile parts of the range, and adds the bytes to `cause`. Returns the
    /// bytes.
    pub(crate) fn purge_range(&mut self, range: PageRange, cause: Counter) -> Result<usize> {
        let mut purged_bytes = 0;
        for part in self.marks.volatile_parts(range) {
            // SAFETY: the part is marked volatile, under the ENGINE lock.
            let purged = unsafe { self.engine.purge(part, cause) };
            // After an error, too: a part of it may be offered.
            self.marks.publish(part, true);
            purged_bytes += purged?;
        }
        Ok(purged_bytes)
    }

    /// Purges the object if it is volatile, and adds the bytes to `cause`. Returns the
    /// bytes.
    pub(crate) fn purge_object(&mut self, object: &Object, cause: Counter) -> Result<usize> {
        if !object.word.try_claim() && object.word.read().state() != State::Offered {
            return Ok(0);
        }
        // SAFETY: the object is volatile: claimed, or found Offered, which only the
        // ENGINE lock holder, this thread, changes.
        let purged = unsafe { self.engine.purge(object.range, cause) };
        object.word.publish(State::Offered);
        purged
    }

    /// Purges the rest of an object of which the kernel has purged a page.
    pub(crate) fn purge_if_partial(&mut self, object: &Object) -> Result<()> {
        let range = object.range;
        // An object that could not be offered has absent pages because the program never
        // touched them.
        let is_offered =
            object.word.read().state() == State::Offered && self.engine.is_offered(range);
        if !is_offered || self.engine.has_purged(range) {
            return Ok(());
        }
        if self.engine.misses_pages(range)? {
            self.purge_object(object, stats::PURGED_UNDER_PRESSURE_BYTES)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::mapping::Mapping;
    use crate::ground::sys::advise::{DestructiveAdvice, advise_destructive};
    use crate::ground::sys::page_size;
    use crate::verbs::volatile::engine::can_offer;
    use crate::verbs::volatile::outcome::Outcome;
    use crate::verbs::volatile::priority::{Priority, Timestamp};
    use crate::verbs::volatile::registry::ENGINE;

    #[test]
    fn partially_purged_object_is_purged_whole_and_intact_one_is_not() {
        if !can_offer() {
            return;
        }
        let mut registry = ENGINE.lock();
        let [damaged, intact] = [(); 2].map(|()| {
            let mut memory = Mapping::anonymous(4 * page_size()).map().unwrap();
            memory.as_mut_slice().unwrap().fill(7);
            let object = registry.objects.add(memory.range());
            object.word.mark(Priority::Normal, Timestamp::now());
            registry.offer_batch(&[Candidate::Object(object.clone())]);
            (memory, object)
        });
        let start = damaged.1.range.start();
        let second = PageRange::between(start + page_size(), start + 2 * page_size());
        // SAFETY: nothing borrows from it. The kernel reclaims a page with this effect.
        unsafe { advise_destructive(second, DestructiveAdvice::DontNeed) }.unwrap();
        for (_, object) in [&damaged, &intact] {
            registry.purge_if_partial(object).unwrap();
        }
        assert!(!registry.engine.has_purged(intact.1.range));
        let [damaged, intact] = [damaged, intact].map(|(memory, object)| {
            let outcome = registry.engine.revoke_offer(object.range).unwrap();
            object.word.publish(State::Nonvolatile);
            registry.objects.remove(&object);
            (memory, outcome)
        });
        drop(registry);
        assert_eq!(damaged.1, Outcome::Purged(vec![damaged.0.range()]));
        // (The kernel may have reclaimed pages of it at any time.)
        assert!(intact.1 != Outcome::Intact || intact.0.as_slice().iter().all(|&byte| byte == 7));
    }

    #[test]
    fn object_whose_offer_failed_is_not_purged_as_partial() {
        let mut memory = Mapping::anonymous(4 * page_size()).map().unwrap();
        memory.as_mut_slice().unwrap()[0] = 7;
        let mut registry = ENGINE.lock();
        let object = registry.objects.add(memory.range());
        object.word.mark(Priority::Normal, Timestamp::now());
        // The state in which a failed offer leaves the word.
        assert!(object.word.try_claim());
        object.word.publish(State::Offered);
        registry.purge_if_partial(&object).unwrap();
        assert!(!registry.engine.has_purged(memory.range()));
        registry.objects.remove(&object);
        drop(registry);
        assert_eq!(memory.as_slice()[0], 7);
    }
}
