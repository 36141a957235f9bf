//! Purging volatile ranges and objects.

use std::sync::Arc;

use super::candidates::Candidate;
use super::lock::ENGINE;
use super::objects::Object;
use super::state::Registry;
use crate::ground::error::Result;
use crate::ground::range::PageRange;
use crate::observation::stats::{self, Counter};
use crate::verbs::volatile::engine::SEARCH_BYTES;
use crate::verbs::volatile::word::State;

/// Purges what is still volatile of the candidate, in chunks between which other threads
/// get the ENGINE lock, and adds the bytes to `cause`. Returns the bytes.
pub(crate) fn purge(candidate: &Candidate, cause: Counter) -> Result<usize> {
    let (mut rest, mut purged_bytes) = (candidate.range(), 0);
    loop {
        let purged = ENGINE.lock().purge_chunk(candidate, rest, cause)?;
        let Some((left, bytes)) = purged else {
            return Ok(purged_bytes);
        };
        rest = left;
        purged_bytes += bytes;
        ENGINE.give_way();
    }
}

/// Purges the rest of an object of which the kernel has purged a page.
pub(crate) fn purge_if_partial(object: &Arc<Object>) -> Result<()> {
    let registry = ENGINE.lock();
    let is_offered = object.word.read().state() == State::Offered;
    let may_be_partial = is_offered && !registry.engine.has_purged(object.range);
    drop(registry);
    if may_be_partial && misses_pages(object.range)? {
        let cause = stats::PURGED_UNDER_PRESSURE_BYTES;
        purge(&Candidate::Object(object.clone()), cause)?;
    }
    Ok(())
}

/// Returns whether everything that was read of the range before this call is what the
/// program wrote there: asks in chunks between which other threads get the ENGINE lock.
/// Nobody unmarks the range meanwhile, so that an end of the protection is found whenever
/// its chunk is asked: it lasts, or the pages are recorded as purged.
pub(crate) fn contents_valid(range: PageRange) -> Result<bool> {
    let mut rest = range;
    while !rest.is_empty() {
        let (is_valid, end) = ENGINE.lock_in_turn().engine.first_contents_valid(rest)?;
        if !is_valid {
            return Ok(false);
        }
        rest = PageRange::between(end, range.end());
    }
    Ok(true)
}

/// Returns whether the kernel has reclaimed a page that it has been offered of the range:
/// searches it in chunks between which other threads get the ENGINE lock.
pub(crate) fn misses_pages(range: PageRange) -> Result<bool> {
    for chunk in range.chunks(SEARCH_BYTES) {
        if ENGINE.lock_in_turn().engine.misses_pages(chunk)? {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Registry {
    /// Purges the first contents of `rest`, a part of the candidate, a chunk of them at
    /// most. Returns the part that is left and the purged bytes; `None` if nothing of it
    /// is volatile.
    fn purge_chunk(
        &mut self,
        candidate: &Candidate,
        rest: PageRange,
        cause: Counter,
    ) -> Result<Option<(PageRange, usize)>> {
        match candidate {
            Candidate::Range(_) => {
                let Some(part) = self.marks.first_volatile(rest) else {
                    return Ok(None);
                };
                // SAFETY: the part is marked volatile, under the ENGINE lock.
                let purged = unsafe { self.engine.purge_chunk(part, cause) };
                let end = purged.as_ref().map_or(part.end(), |(left, _)| left.start());
                // After an error, too: a part of it may be offered.
                let done = PageRange::between(part.start(), end);
                self.marks.publish(done, true);
                let left = PageRange::between(end, rest.end());
                purged.map(|(_, bytes)| Some((left, bytes)))
            }
            Candidate::Object(object) => self.purge_object_chunk(object, rest, cause),
        }
    }

    fn purge_object_chunk(
        &mut self,
        object: &Object,
        rest: PageRange,
        cause: Counter,
    ) -> Result<Option<(PageRange, usize)>> {
        if object.word.try_claim() {
            self.engine.set_incomplete(object.range, true);
            object.word.publish(State::Offered);
        }
        if rest.is_empty() || object.word.read().state() != State::Offered {
            return Ok(None);
        }
        // SAFETY: its word is Offered, so it is volatile; only the ENGINE lock holder,
        // this thread, changes that.
        let (left, bytes) = unsafe { self.engine.purge_chunk(rest, cause) }?;
        if left.is_empty() {
            self.engine.set_incomplete(object.range, false);
        }
        Ok(Some((left, bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::mapping::{HugePages, Mapping};
    use crate::ground::sys::advise::{DestructiveAdvice, advise_destructive};
    use crate::ground::sys::page_size;
    use crate::verbs::volatile::engine::can_offer;
    use crate::verbs::volatile::outcome::Outcome;
    use crate::verbs::volatile::priority::{Priority, Timestamp};
    use crate::verbs::volatile::registry::{lock_validated, revoke_object};

    #[test]
    fn partially_purged_object_is_purged_whole_and_intact_one_is_not() {
        if !can_offer() {
            return;
        }
        let [damaged, intact] = [(); 2].map(|()| {
            let mut memory = Mapping::anonymous(4 * page_size()).map().unwrap();
            memory.as_mut_slice().unwrap().fill(7);
            let mut registry = ENGINE.lock();
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
            purge_if_partial(object).unwrap();
        }
        assert!(!ENGINE.lock().engine.has_purged(intact.1.range));
        let [damaged, intact] = [damaged, intact].map(|(memory, object)| {
            let outcome = revoke_object(object.range, |registry, _| {
                object.word.publish(State::Nonvolatile);
                registry.objects.remove(&object);
            });
            (memory, outcome.unwrap())
        });
        assert_eq!(damaged.1, Outcome::Purged(vec![damaged.0.range()]));
        // (The kernel may have reclaimed pages of it at any time.)
        assert!(intact.1 != Outcome::Intact || intact.0.as_slice().iter().all(|&byte| byte == 7));
    }

    #[test]
    fn contents_are_invalid_if_the_last_of_many_spans_is_purged() {
        if !can_offer() {
            return;
        }
        // Spans this far apart stay apart.
        let (count, apart) = (300, 4 << 20);
        let memory = Mapping::anonymous(count * apart).huge_pages(HugePages::Never);
        let mut memory = memory.map().unwrap();
        for span in memory.as_mut_slice().unwrap().chunks_mut(apart) {
            span[0] = 7;
        }
        let range = memory.range();
        let mut registry = lock_validated(range).unwrap();
        registry.mark_part(range, Priority::Normal, Timestamp::now());
        // SAFETY: nothing borrows from it until it is unmapped.
        unsafe { registry.engine.offer(range) }.unwrap();
        registry.marks.publish(range, true);
        assert!(registry.engine.first_contents_valid(range).unwrap().1 < range.end());
        drop(registry);
        assert_eq!(contents_valid(range), Ok(true));
        let last = PageRange::between(range.end() - apart, range.end());
        purge(&Candidate::Range(last), stats::PURGED_ON_REQUEST_BYTES).unwrap();
        assert_eq!(contents_valid(range), Ok(false));
    }

    #[test]
    fn object_whose_offer_failed_is_not_purged_as_partial() {
        let mut memory = Mapping::anonymous(4 * page_size()).map().unwrap();
        memory.as_mut_slice().unwrap()[0] = 7;
        let object = ENGINE.lock().objects.add(memory.range());
        // The state in which a failed offer leaves the word.
        object.word.publish(State::Offered);
        purge_if_partial(&object).unwrap();
        assert!(!ENGINE.lock().engine.has_purged(memory.range()));
        object.word.publish(State::Nonvolatile);
        ENGINE.lock().objects.remove(&object);
        assert_eq!(memory.as_slice()[0], 7);
    }
}
