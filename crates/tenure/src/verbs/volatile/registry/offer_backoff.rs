//! The delay before an object is offered, which grows while offers turn out to be
//! useless.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use crate::verbs::volatile::outcome::Outcome;

/// Doubles each time an object is unmarked, intact, soon after it was offered: the offer
/// and its revocation have cost more than they were worth. Eight threads that refill
/// buffers on two CPUs return to each every 110 ms; offered after 100 ms each time, they
/// took 1.8 times as long as without tenure.
#[derive(Debug)]
pub(crate) struct OfferBackoff(AtomicU8);

/// How often the delay doubles at most.
const MAX_DOUBLINGS: u8 = 3;

impl OfferBackoff {
    pub(super) const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// Returns how long this object is volatile before it is offered.
    pub(super) fn delay(&self, delay: Duration) -> Duration {
        delay.saturating_mul(1 << self.0.load(Ordering::Relaxed))
    }

    /// Adapts to the outcome of unmarking an offered object, `age` after it was marked.
    /// The caller holds ENGINE.
    pub(crate) fn record(&self, age: Duration, delay: Duration, outcome: &Outcome) {
        let now = self.0.load(Ordering::Relaxed);
        // An older object would be offered even after the longest delay.
        let was_useless =
            *outcome == Outcome::Intact && age < delay.saturating_mul(1 << MAX_DOUBLINGS);
        let next = if was_useless {
            MAX_DOUBLINGS.min(now + 1)
        } else {
            0
        };
        self.0.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_millis(100);
    const SOON: Duration = Duration::from_millis(130);
    const LATE: Duration = Duration::from_secs(1);

    #[test]
    fn delay_doubles_with_each_useless_offer_up_to_eight_times() {
        let offer_backoff = OfferBackoff::new();
        assert_eq!(offer_backoff.delay(DELAY), DELAY);
        let grown = [2, 4, 8, 8].map(|times| {
            offer_backoff.record(SOON, DELAY, &Outcome::Intact);
            (offer_backoff.delay(DELAY), times * DELAY)
        });
        assert!(grown.iter().all(|(is, should)| is == should), "{grown:?}");
        // An offer inside the marking call stays there.
        assert_eq!(offer_backoff.delay(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn late_or_purged_unmark_resets_the_delay() {
        let purged = Outcome::Purged(Vec::new());
        for (age, outcome) in [(LATE, Outcome::Intact), (SOON, purged)] {
            let offer_backoff = OfferBackoff::new();
            offer_backoff.record(SOON, DELAY, &Outcome::Intact);
            offer_backoff.record(age, DELAY, &outcome);
            assert_eq!(offer_backoff.delay(DELAY), DELAY);
        }
    }
}
