//! Objects that could not be offered when they were due, for they were locked just
//! then: they are tried again, ever more rarely while that is in vain. (Plain ranges
//! only when they are marked again: whose they are by then nobody can tell.)

use std::sync::Arc;
use std::time::Duration;

use super::Stamp;
use super::engine::{ENGINE, Engine, can_offer};
use super::objects::Object;
use super::word::State;
use crate::ground::sys::advise::finish_batch;
use crate::verbs::lazy_free;

/// After what time they are tried again, at first and at last.
const FIRST: Duration = Duration::from_secs(1);
const LAST: Duration = Duration::from_secs(64);

/// When it is time.
pub(super) struct Retry {
    last: Stamp,
    wait: Duration,
}

impl Retry {
    pub(super) fn new(now: Stamp) -> Self {
        Self {
            last: now,
            wait: FIRST,
        }
    }

    /// Something else has been refused.
    pub(super) fn soon(&mut self) {
        self.wait = FIRST;
    }

    /// Tries all again, if it is time for that.
    pub(super) fn try_again(&mut self, now: Stamp) {
        if now.since(self.last) < self.wait || !can_offer() {
            return;
        }
        self.wait = match try_again() {
            true => FIRST,
            false => (self.wait * 2).min(LAST),
        };
        self.last = now;
    }
}

/// Returns whether there is less than before, or nothing.
fn try_again() -> bool {
    let refused: Vec<Arc<Object>> = ENGINE.lock().take_refused();
    let mut is_less = refused.is_empty();
    for object in refused {
        lazy_free::forget_freed(object.range);
        // Taken anew for each, so that others get their turn.
        is_less |= ENGINE.lock().offer_again(&object);
    }
    is_less
}

impl Engine {
    fn take_refused(&mut self) -> Vec<Arc<Object>> {
        if !std::mem::take(&mut self.has_refused) {
            return Vec::new();
        }
        let volatile = self.objects.volatile();
        let refused = volatile.filter(|object| self.was_refused(object));
        refused.cloned().collect()
    }

    fn was_refused(&self, object: &Object) -> bool {
        object.word.read().state() == State::Offered
            && self.offered.gaps(&object.range.as_std()).next().is_some()
            && !self.barred.overlaps(&object.range.as_std())
    }

    /// Returns whether it is offered now, or need not be.
    fn offer_again(&mut self, object: &Arc<Object>) -> bool {
        if !self.was_refused(object) {
            return true;
        }
        // SAFETY: its word says Offered, as looked at above: it is volatile, and only
        // who holds the engine ends that.
        let offered = unsafe { self.offer(object.range) }.is_ok();
        finish_batch();
        offered
    }
}
