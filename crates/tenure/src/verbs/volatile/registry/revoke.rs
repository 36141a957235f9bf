//! Revoking the offer of a range or an object.

use super::lock::ENGINE;
use super::state::{MAX_RECORDS, Registry};
use crate::ground::error::Result;
use crate::ground::range::PageRange;
use crate::ground::sys::fork::ForkGuard;
use crate::verbs::volatile::engine::Revoked;
use crate::verbs::volatile::outcome::Outcome;

/// Revokes the offer of an object's range, in chunks between which other threads get the
/// ENGINE lock, and returns which pages are purged. Calls `publish`, which makes the object
/// nonvolatile, under the lock under which nothing of it is offered any more.
///
/// # Errors
///
/// [`Error::MappingLimit`](crate::Error::MappingLimit), with nothing done, where too few
/// mappings are left. After any other error the object is volatile still.
pub(crate) fn revoke_object(
    range: PageRange,
    publish: impl FnOnce(&mut Registry, &Outcome),
) -> Result<Outcome> {
    let mut registry = revoke_all(range)?;
    let outcome = registry.engine.take_report(range);
    publish(&mut registry, &outcome);
    Ok(outcome)
}

/// Does for a plain range what [`revoke_object`] does for an object. When nothing is offered
/// any more, calls `finish` for one part after the other, which makes that nonvolatile:
/// between two parts other threads get the lock. A child that is forked there equals one
/// that was forked after the call as to the first parts, and before it as to the others.
///
/// # Errors
///
/// As for [`revoke_object`]. Where another thread has offered the last parts anew, they may
/// fail when the first ones are nonvolatile already; what was purged of these stays recorded.
pub(crate) fn revoke_range(
    range: PageRange,
    mut finish: impl FnMut(&mut Registry, PageRange),
) -> Result<Outcome> {
    let mut registry = revoke_all(range)?;
    let mut outcome = Outcome::Intact;
    let mut rest = range;
    loop {
        let part = registry.first_part(rest);
        match registry.engine.revoke_chunk(part, part.start()) {
            Ok(Revoked::All) => {
                outcome.append(registry.engine.take_report(part));
                finish(&mut registry, part);
                rest = PageRange::between(part.end(), range.end());
            }
            // Another thread has offered pages of the part meanwhile.
            Ok(Revoked::To(_)) => {}
            Err(error) => {
                drop(registry);
                put_back(&outcome);
                return Err(error);
            }
        }
        if rest.is_empty() {
            return Ok(outcome);
        }
        registry = ENGINE.relock_in_turn(registry);
    }
}

/// Revokes the offer of all of the range. Returns the lock under which nothing of it is
/// offered any more. On an error all of it is volatile, and its purged pages are recorded.
fn revoke_all(range: PageRange) -> Result<ForkGuard<Registry>> {
    let mut registry = ENGINE.lock();
    registry.engine.check_split(range)?;
    registry.engine.set_incomplete(range, false);
    let mut rest = range;
    loop {
        // An offer under way would undo what is done below, chunk by chunk.
        let part = registry.first_part(rest);
        registry.marks.publish(part, false);
        rest = PageRange::between(part.end(), range.end());
        if rest.is_empty() {
            break;
        }
        registry = ENGINE.relock_in_turn(registry);
    }
    let mut from = range.start();
    while let Revoked::To(end) = registry.engine.revoke_chunk(range, from)? {
        from = end;
        registry = ENGINE.relock_in_turn(registry);
    }
    Ok(registry)
}

/// Records the purged pages again, so that the next unmark reports them.
fn put_back(outcome: &Outcome) {
    if let Outcome::Purged(runs) = outcome {
        for some in runs.chunks(MAX_RECORDS) {
            ENGINE.lock_in_turn().engine.put_report_back(some);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::mapping::{HugePages, Mapping};
    use crate::ground::sys::advise::{DestructiveAdvice, advise_destructive};
    use crate::ground::sys::{map, page_size};
    use crate::observation::stats;
    use crate::verbs::volatile::engine::can_offer;
    use crate::verbs::volatile::priority::{Priority, Timestamp};
    use crate::verbs::volatile::registry::{Candidate, purge};

    /// Memory that is volatile and offered, with more runs of purged pages than one part has:
    /// every second page.
    fn damaged() -> (Mapping, Vec<PageRange>) {
        let page_count = 2 * (MAX_RECORDS + 10);
        let memory = Mapping::anonymous(page_count * page_size());
        let mut memory = memory.huge_pages(HugePages::Never).map().unwrap();
        memory.as_mut_slice().unwrap().fill(7);
        let mut registry = ENGINE.lock_to_insert().unwrap();
        offer(&mut registry, memory.range());
        drop(registry);
        let purged: Vec<PageRange> = memory.range().chunks(page_size()).step_by(2).collect();
        for &page in &purged {
            purge(&Candidate::Range(page), stats::PURGED_ON_REQUEST_BYTES).unwrap();
        }
        (memory, purged)
    }

    fn offer(registry: &mut Registry, range: PageRange) {
        registry.mark_part(range, Priority::Normal, Timestamp::now());
        registry.marks.publish(range, true);
        // SAFETY: the test reads only what it has unmarked before.
        unsafe { registry.engine.offer(range) }.unwrap();
    }

    fn last_page(range: PageRange) -> PageRange {
        PageRange::between(range.end() - page_size(), range.end())
    }

    #[test]
    fn many_purged_runs_are_reported_once_in_parts() {
        if !can_offer() {
            return;
        }
        let (memory, purged) = damaged();
        let mut parts = Vec::new();
        let outcome = revoke_range(memory.range(), |registry, part| {
            assert!(!registry.engine.has_purged(part), "the report is taken");
            registry.set_nonvolatile(part);
            parts.push(part);
        });
        assert_eq!(outcome, Ok(Outcome::Purged(purged)));
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[0].end(), parts[1].start());
        assert_eq!(parts[1].end(), memory.range().end());
        let registry = ENGINE.lock();
        assert_eq!(registry.marks.first_volatile(memory.range()), None);
        assert!(!registry.engine.has_purged(memory.range()));
    }

    #[test]
    fn page_offered_between_two_parts_is_revoked_before_its_part_finishes() {
        if !can_offer() {
            return;
        }
        let (memory, _) = damaged();
        let last = last_page(memory.range());
        let mut part_count = 0;
        let outcome = revoke_range(memory.range(), |registry, part| {
            registry.set_nonvolatile(part);
            if part_count == 0 {
                offer(registry, last);
            }
            part_count += 1;
        });
        assert!(matches!(outcome, Ok(Outcome::Purged(_))));
        // SAFETY: nothing borrows from it.
        unsafe { advise_destructive(last, DestructiveAdvice::DontNeed) }.unwrap();
        assert_eq!(ENGINE.lock().engine.misses_pages(last), Ok(false));
        assert_eq!(memory.as_slice().last(), Some(&0));
    }

    #[test]
    fn purged_runs_of_finished_parts_are_reported_after_an_error() {
        if !can_offer() {
            return;
        }
        let (memory, purged) = damaged();
        let last = last_page(memory.range());
        let mut finished = None;
        let failed = revoke_range(memory.range(), |registry, part| {
            registry.set_nonvolatile(part);
            finished = Some(part);
            offer(registry, last);
            map::protect_none(last).unwrap();
        });
        assert!(failed.is_err(), "{failed:?}");
        // SAFETY: it was readable and writable before.
        unsafe { map::protect_read_write(last) }.unwrap();
        // SAFETY: the memory is this test's.
        let unmark = |range: PageRange| unsafe { range.mark_nonvolatile() };
        // A part that is nonvolatile already is reported as well.
        assert_eq!(unmark(purged[0]), Ok(Outcome::Purged(vec![purged[0]])));
        let others = Outcome::Purged(purged[1..].to_vec());
        assert_eq!(unmark(memory.range()), Ok(others));
        assert_eq!(unmark(memory.range()), Ok(Outcome::Intact));
        assert!(finished.is_some_and(|part| part.contains(purged[0])));
    }
}
