//! Finding the buffers that wait to be offered: a scan of the words, without a lock.

use std::sync::Arc;
use std::time::Duration;

use super::CHUNK_BYTES;
use super::memory::ArenaMemory;
use super::offer::offer_slots;
use super::place::Place;
use crate::verbs::lazy_free;
use crate::verbs::volatile::engine::can_offer;
use crate::verbs::volatile::priority::Timestamp;
use crate::verbs::volatile::word::{State, Word};

/// How many buffers are offered under one ENGINE lock at most.
const BATCH_SLOTS: usize = 256;

/// Offers what has been volatile for longer than `delay`. Returns whether the kernel has
/// accepted all of it.
pub(crate) fn offer_due(memory: &Arc<ArenaMemory>, delay: Duration) -> bool {
    let now = Timestamp::now();
    offer_where(
        memory,
        |word| word.stamp(now).is_due(now, delay),
        Word::try_claim,
    )
}

/// Offers again what the kernel has refused, because it was locked at that moment.
/// Returns whether it has accepted all of that; `None` if it has refused nothing.
pub(crate) fn retry_refused(memory: &Arc<ArenaMemory>) -> Option<bool> {
    let is_refused = |word: &Word| word.read().state() == State::Refused;
    let mut words = memory.table.words().iter();
    words.any(is_refused).then(|| {
        offer_where(memory, is_refused, |word| {
            is_refused(word) && word.try_claim_volatile().is_some()
        })
    })
}

fn offer_where(
    memory: &ArenaMemory,
    is_wanted: impl Fn(&Word) -> bool,
    claim: impl Fn(&Word) -> bool + Copy,
) -> bool {
    let mut all_offered = true;
    let (mut batch, mut batch_bytes) = (Vec::with_capacity(BATCH_SLOTS), 0);
    for (slot, word) in memory.table.words().iter().enumerate() {
        if !is_wanted(word) {
            continue;
        }
        batch_bytes += memory.table.place(slot).len();
        batch.push(slot);
        if batch.len() == BATCH_SLOTS || batch_bytes >= CHUNK_BYTES {
            all_offered &= offer_batch(memory, &batch, claim);
            batch.clear();
            batch_bytes = 0;
        }
    }
    all_offered & offer_batch(memory, &batch, claim)
}

fn offer_batch(memory: &ArenaMemory, slots: &[usize], claim: impl Fn(&Word) -> bool) -> bool {
    for &slot in slots {
        let place = memory.table.place(slot);
        // Its buffer may just have been dropped.
        if !place.is_empty() {
            lazy_free::forget_freed(place);
        }
    }
    slots.is_empty() || offer_slots(memory, slots, claim)
}

impl Place {
    /// Offers the place at once, if it is still marked.
    pub(crate) fn offer(&self) {
        if can_offer() {
            offer_batch(self.memory(), &[self.slot], Word::try_claim);
        }
    }
}

/// Returns whether a buffer waits to be offered.
pub(crate) fn has_marked(memory: &ArenaMemory) -> bool {
    let mut words = memory.table.words().iter();
    words.any(|word| word.read().state() == State::Marked)
}
