//! Offering in batches, between which other threads get the ENGINE lock.

use std::sync::Arc;
use std::time::Duration;

use super::deferral::Deferral;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::flush_lazyfree_batch;
use crate::observation::stats;
use crate::verbs::lazy_free;
use crate::verbs::volatile::arenas::{self, LiveArenas};
use crate::verbs::volatile::engine::{CHUNK_BYTES, can_offer, first_mappings};
use crate::verbs::volatile::priority::Timestamp;
use crate::verbs::volatile::registry::{Candidate, ENGINE, Object};

/// How many ranges that are no neighbours are offered under one ENGINE lock: a registration
/// takes about 15 µs.
const MAX_BATCH_SPANS: usize = 64;

/// Offers all that has been volatile for longer than `delay`, unless it is deferred. Returns
/// whether the kernel accepted all of it.
pub(super) fn offer_due(delay: Duration, live: &LiveArenas, deferral: &mut Deferral) -> bool {
    if !can_offer() {
        return true;
    }
    let now = Timestamp::now();
    deferral.update(now, live);
    let mut all_offered = true;
    for memory in live.iter() {
        if let Some(delay) = deferral.delay_of(memory, delay) {
            all_offered &= arenas::offer_due(memory, delay);
        }
    }
    deferral.end_scan(now);
    let mut due = ENGINE.lock().due(delay);
    due.sort_unstable_by_key(|due| due.range().start());
    let mut rest = &due[..];
    while !rest.is_empty() {
        let (batch, others) = rest.split_at(first_batch(rest));
        all_offered &= match batch {
            [large] if !is_one_chunk(large.range()) => offer_in_chunks(large),
            batch => {
                for due in batch {
                    lazy_free::forget_freed(due.range());
                }
                ENGINE.lock().offer_batch(batch)
            }
        };
        ENGINE.give_way();
        rest = others;
    }
    all_offered
}

/// Offers an object at once, if it is still marked.
pub(crate) fn offer_object(object: &Arc<Object>) {
    if can_offer() {
        offer_in_chunks(&Candidate::Object(object.clone()));
    }
}

/// Offers what is still due of a candidate, in chunks between which other threads get the
/// ENGINE lock. Returns whether the kernel accepted all of it.
pub(crate) fn offer_in_chunks(candidate: &Candidate) -> bool {
    let failed_bytes = try_offer(candidate);
    stats::OFFER_FAILED_BYTES.add(failed_bytes);
    failed_bytes == 0
}

/// Does what [`offer_in_chunks`] does, and returns how many bytes the kernel has not
/// accepted.
pub(super) fn try_offer(candidate: &Candidate) -> usize {
    lazy_free::forget_freed(candidate.range());
    let (mut rest, mut failed_bytes) = (candidate.range(), 0);
    loop {
        let mut registry = ENGINE.lock();
        let left = registry.offer_chunk(candidate, rest, &mut failed_bytes);
        drop(registry);
        flush_lazyfree_batch();
        match left {
            Some(left) => rest = left,
            None => return failed_bytes,
        }
        ENGINE.give_way();
    }
}

/// Offers again what was left out of plain ranges. Returns how many bytes still are.
pub(super) fn offer_left_out(part: PageRange) -> usize {
    let (mut rest, mut failed_bytes) = (part, 0);
    loop {
        let left = ENGINE.lock().offer_left_out(rest, &mut failed_bytes);
        flush_lazyfree_batch();
        match left {
            Some(left) => rest = left,
            None => return failed_bytes,
        }
        ENGINE.give_way();
    }
}

/// Returns how many of the candidates, in order of address, make up the first batch.
fn first_batch(due: &[Candidate]) -> usize {
    let (mut bytes, mut spans, mut end) = (0, 0, 0);
    let more = due.iter().take_while(|due| {
        bytes += due.range().len();
        spans += usize::from(due.range().start() != end);
        end = due.range().end();
        bytes <= CHUNK_BYTES && spans <= MAX_BATCH_SPANS
    });
    let all = &due[..more.count().max(1)];
    let last = all.last().map_or(0, |last| last.range().end());
    let mapped_end = first_mappings(PageRange::between(all[0].range().start(), last)).end();
    let fit = all.iter().take_while(|due| due.range().end() <= mapped_end);
    fit.count().max(1)
}

/// Returns whether one ENGINE lock may cover the offer of the range.
fn is_one_chunk(range: PageRange) -> bool {
    range.len() <= CHUNK_BYTES && first_mappings(range) == range
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::sys::features::Features;
    use crate::ground::sys::page_size;
    use crate::verbs::volatile::engine::MAX_MAPPINGS;
    use crate::verbs::volatile::registry::many_mappings::pages_mapped_apart;

    #[test]
    fn batch_has_some_mappings_only() {
        if Features::get().procmap_query.is_err() {
            return;
        }
        let memory = pages_mapped_apart();
        let pages = memory.range().chunks(page_size());
        let due: Vec<_> = pages.map(Candidate::Range).collect();
        assert_eq!(first_batch(&due), MAX_MAPPINGS);
        assert_eq!(first_batch(&due[..3]), 3);
        assert_eq!(first_batch(&[Candidate::Range(memory.range())]), 1);
        assert!(!is_one_chunk(memory.range()) && is_one_chunk(due[0].range()));
    }
}
