//! Offering in batches, between which other threads get the ENGINE lock.

use std::sync::Arc;
use std::time::Duration;

use crate::verbs::lazy_free;
use crate::verbs::volatile::engine::can_offer;
use crate::verbs::volatile::registry::{Candidate, ENGINE, Object};

/// How much is offered under one ENGINE lock: other threads that mark or unmark plain
/// ranges wait for so long. About a millisecond.
const BATCH_BYTES: usize = 16 << 20;

/// Offers all that has been volatile for longer than `delay`. Returns whether the kernel
/// accepted all of it.
pub(super) fn offer_due(delay: Duration) -> bool {
    if !can_offer() {
        return true;
    }
    let mut all_offered = true;
    let mut due = ENGINE.lock().due(delay);
    due.sort_unstable_by_key(|due| due.range().start());
    let mut rest = &due[..];
    while !rest.is_empty() {
        let (batch, others) = rest.split_at(first_batch(rest));
        for due in batch {
            lazy_free::forget_freed(due.range());
        }
        // A lock for each batch, so that other threads get their turn.
        all_offered &= ENGINE.lock().offer_batch(batch);
        rest = others;
    }
    all_offered
}

/// Offers an object at once, if it is still marked.
pub(crate) fn offer_object(object: &Arc<Object>) {
    if !can_offer() {
        return;
    }
    lazy_free::forget_freed(object.range);
    let batch = [Candidate::Object(object.clone())];
    ENGINE.lock().offer_batch(&batch);
}

/// Returns how many of the candidates, in order of address, make up the first batch.
fn first_batch(due: &[Candidate]) -> usize {
    let mut bytes = 0;
    let more = due.iter().take_while(|due| {
        bytes += due.range().len();
        bytes <= BATCH_BYTES
    });
    more.count().max(1)
}
