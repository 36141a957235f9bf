//! Retrying what could not be offered when it was due: ever more rarely while that has no
//! effect, and soon after tenure has unlocked memory. Objects that were locked at that moment, and
//! pages that another process had, too. (A plain range that was locked is offered again only when
//! it is marked again: by then it may have another owner.)

use std::time::Duration;

use super::batches::{offer_left_out, try_offer};
use crate::ground::sys::lock::unlock_count;
use crate::verbs::volatile::arenas::{self, LiveArenas};
use crate::verbs::volatile::engine::can_offer;
use crate::verbs::volatile::priority::Timestamp;
use crate::verbs::volatile::registry::{Candidate, ENGINE};

/// The interval between retries, at first and at most.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
const MAX_INTERVAL: Duration = Duration::from_secs(64);

/// When the next retry is due.
pub(super) struct Retry {
    last: Timestamp,
    interval: Duration,
    /// How often memory had been unlocked then.
    unlocks: usize,
}

impl Retry {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            last: now,
            interval: MIN_INTERVAL,
            unlocks: unlock_count(),
        }
    }

    /// Shortens the interval, because another offer has failed.
    pub(super) fn reset_interval(&mut self) {
        self.interval = MIN_INTERVAL;
    }

    /// Offers all that has failed again, if the interval is over.
    pub(super) fn run_if_due(&mut self, now: Timestamp, live: &LiveArenas) {
        if !self.becomes_due(now, unlock_count()) || !can_offer() {
            return;
        }
        self.interval = match retry_all(live) {
            true => MIN_INTERVAL,
            false => (self.interval * 2).min(MAX_INTERVAL),
        };
        self.last = now;
    }
}

impl Retry {
    /// Returns whether the interval is over, the shortest where memory was unlocked since the
    /// last retry.
    fn becomes_due(&mut self, now: Timestamp, unlocks: usize) -> bool {
        if self.unlocks != unlocks {
            self.unlocks = unlocks;
            self.reset_interval();
        }
        now.since(self.last) >= self.interval
    }
}

/// Returns whether one of the offers has succeeded, or none was necessary.
fn retry_all(live: &LiveArenas) -> bool {
    let left_out = ENGINE.lock().left_out();
    let failed = ENGINE.lock().failed_objects();
    let refused: Vec<bool> = live.iter().filter_map(arenas::retry_refused).collect();
    let has_failed = !(failed.is_empty() && left_out.is_empty() && refused.is_empty());
    let mut has_progress = !has_failed || refused.contains(&true);
    for object in failed {
        has_progress |= try_offer(&Candidate::Object(object)) == 0;
    }
    for part in left_out {
        has_progress |= offer_left_out(part) == 0;
    }
    has_progress
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlock_makes_a_late_retry_due() {
        let at = |time: Duration| Timestamp::from_nanos(time.as_nanos() as u64);
        let mut retry = Retry::new(at(Duration::ZERO));
        retry.interval = MAX_INTERVAL;
        let unlocks = retry.unlocks;
        assert!(!retry.becomes_due(at(MIN_INTERVAL), unlocks));
        assert!(!retry.becomes_due(at(MIN_INTERVAL / 2), unlocks + 1));
        assert!(retry.becomes_due(at(MIN_INTERVAL), unlocks + 1));
    }
}
