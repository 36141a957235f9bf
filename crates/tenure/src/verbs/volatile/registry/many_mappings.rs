//! Tests that one ENGINE lock covers some mappings and runs only, however many a range has.

use super::lock::lock_validated;
use super::state::Registry;
use crate::ground::mapping::{HugePages, Mapping};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Advice, advise};
use crate::ground::sys::features::Features;
use crate::ground::sys::fork::ForkGuard;
use crate::ground::sys::page_runs::MAX_RUNS;
use crate::ground::sys::{page_size, vma};
use crate::observation::stats;
use crate::verbs::volatile::engine::{MAX_MAPPINGS, Revoked, can_offer};
use crate::verbs::volatile::priority::{Priority, Timestamp};

const PAGE_COUNT: usize = 8 * MAX_MAPPINGS;

fn memory() -> Mapping {
    let memory = Mapping::anonymous(PAGE_COUNT * page_size()).huge_pages(HugePages::Never);
    let mut memory = memory.map().unwrap();
    memory.as_mut_slice().unwrap().fill(7);
    memory
}

/// Memory in which each page is a mapping of its own.
pub(crate) fn pages_mapped_apart() -> Mapping {
    let memory = memory();
    for page in memory.range().chunks(page_size()).step_by(2) {
        advise(page, Advice::DontDump).unwrap();
    }
    assert!(vma::cover(memory.range()).unwrap().len() >= PAGE_COUNT);
    memory
}

fn can_count_mappings() -> bool {
    can_offer() && Features::get().procmap_query.is_ok()
}

fn mark(range: PageRange) -> ForkGuard<Registry> {
    let mut registry = lock_validated(range).unwrap();
    registry.mark_part(range, Priority::Normal, Timestamp::now());
    registry.marks.publish(range, true);
    registry
}

fn offer(range: PageRange) -> ForkGuard<Registry> {
    let mut registry = mark(range);
    // SAFETY: the tests read only what they have unmarked before.
    unsafe { registry.engine.offer(range) }.unwrap();
    registry
}

/// Returns how many pages `end` is behind the beginning of the range.
fn pages_up_to(end: usize, range: PageRange) -> usize {
    (end - range.start()) / page_size()
}

#[test]
fn range_of_many_mappings_is_offered_and_purged_some_at_a_time() {
    if !can_count_mappings() {
        return;
    }
    let memory = pages_mapped_apart();
    let range = memory.range();
    let mut registry = mark(range);
    // SAFETY: the test does not read it.
    let rest = unsafe { registry.engine.offer_chunk(range) }.unwrap().rest;
    assert_eq!(pages_up_to(rest.start(), range), MAX_MAPPINGS);
    // SAFETY: as above.
    let (rest, bytes) = unsafe {
        registry
            .engine
            .purge_chunk(range, stats::PURGED_ON_REQUEST_BYTES)
    }
    .unwrap();
    assert_eq!(pages_up_to(rest.start(), range), MAX_MAPPINGS);
    assert_eq!(bytes, MAX_MAPPINGS * page_size());
}

#[test]
fn range_of_many_mappings_is_revoked_some_at_a_time() {
    if !can_count_mappings() {
        return;
    }
    let memory = pages_mapped_apart();
    let range = memory.range();
    let mut registry = offer(range);
    let (mut from, mut steps) = (range.start(), 0);
    while let Revoked::To(end) = registry.engine.revoke_chunk(range, from).unwrap() {
        assert!(pages_up_to(end, range) <= pages_up_to(from, range) + MAX_MAPPINGS);
        (from, steps) = (end, steps + 1);
    }
    // Unregistering in one part would take one step less.
    assert!(steps >= PAGE_COUNT / MAX_MAPPINGS, "{steps}");
    registry.set_nonvolatile(range);
    drop(registry);
    assert!(memory.as_slice().iter().all(|&byte| byte == 7));
}

#[test]
fn range_of_many_mappings_is_forgotten_some_at_a_time() {
    if !can_count_mappings() {
        return;
    }
    let memory = pages_mapped_apart();
    let range = memory.range();
    let mut registry = offer(range);
    let end = registry.engine.forget_chunk(range);
    assert!(pages_up_to(end, range) < PAGE_COUNT);
    assert!(registry.engine.offered_bytes() > 0);
}

#[test]
fn contents_of_many_mappings_are_validated_some_at_a_time() {
    if !can_count_mappings() {
        return;
    }
    let memory = pages_mapped_apart();
    let registry = offer(memory.range());
    let (is_valid, end) = registry
        .engine
        .first_contents_valid(memory.range())
        .unwrap();
    assert!(is_valid);
    assert_eq!(pages_up_to(end, memory.range()), MAX_MAPPINGS);
}

#[test]
fn mapping_with_many_runs_is_revoked_some_at_a_time() {
    if !can_offer() {
        return;
    }
    let memory = memory();
    let range = memory.range();
    let mut registry = offer(range);
    for page in range.chunks(page_size()).step_by(2) {
        // SAFETY: the test does not read it before it has revoked the offer.
        unsafe {
            registry
                .engine
                .purge_chunk(page, stats::PURGED_ON_REQUEST_BYTES)
        }
        .unwrap();
    }
    let Revoked::To(end) = registry.engine.revoke_chunk(range, range.start()).unwrap() else {
        panic!("all of {PAGE_COUNT} runs at once");
    };
    assert_eq!(pages_up_to(end, range), MAX_RUNS);
}
