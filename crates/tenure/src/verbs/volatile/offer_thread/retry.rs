//! Retrying objects that could not be offered when they were due, because they were
//! locked at that moment: ever more rarely while that has no effect. (A plain range is
//! offered again only when it is marked again: by then it may have another owner.)

use std::sync::Arc;
use std::time::Duration;

use crate::verbs::lazy_free;
use crate::verbs::volatile::engine::can_offer;
use crate::verbs::volatile::priority::Timestamp;
use crate::verbs::volatile::registry::{ENGINE, Object};

/// The interval between retries, at first and at most.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
const MAX_INTERVAL: Duration = Duration::from_secs(64);

/// When the next retry is due.
pub(super) struct Retry {
    last: Timestamp,
    interval: Duration,
}

impl Retry {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            last: now,
            interval: MIN_INTERVAL,
        }
    }

    /// Shortens the interval, because another offer has failed.
    pub(super) fn reset_interval(&mut self) {
        self.interval = MIN_INTERVAL;
    }

    /// Offers all failed objects again, if the interval is over.
    pub(super) fn run_if_due(&mut self, now: Timestamp) {
        if now.since(self.last) < self.interval || !can_offer() {
            return;
        }
        self.interval = match retry_all() {
            true => MIN_INTERVAL,
            false => (self.interval * 2).min(MAX_INTERVAL),
        };
        self.last = now;
    }
}

/// Returns whether one of the offers has succeeded, or none was necessary.
fn retry_all() -> bool {
    let failed: Vec<Arc<Object>> = ENGINE.lock().take_offer_failures();
    let mut has_progress = failed.is_empty();
    for object in failed {
        lazy_free::forget_freed(object.range);
        // A lock for each, so that other threads get their turn.
        has_progress |= ENGINE.lock().retry_offer(&object);
    }
    has_progress
}
