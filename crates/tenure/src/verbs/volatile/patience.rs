//! How long an object is left alone before the kernel is offered it.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use super::Outcome;

/// Grows each time an object is taken back, whole, soon after it was offered: to
/// offer it and to take it back has cost more than its use, for nothing. Eight
/// threads that refill buffers on two CPUs come back to each every 110 ms, and
/// took 1.8 times as long as without tenure when each was offered after 100 ms.
#[derive(Debug)]
pub(super) struct Patience(AtomicU8);

/// How often the delay doubles at most.
const MOST: u8 = 3;

impl Patience {
    pub(super) const fn none() -> Self {
        Self(AtomicU8::new(0))
    }

    /// Returns how long this one is volatile before it is offered.
    pub(super) fn prolong(&self, delay: Duration) -> Duration {
        delay.saturating_mul(1 << self.0.load(Ordering::Relaxed))
    }

    /// Learns from an object that had been offered and is taken back `age` after
    /// it was marked. By who holds the engine.
    pub(super) fn learn(&self, age: Duration, delay: Duration, outcome: &Outcome) {
        let now = self.0.load(Ordering::Relaxed);
        // What rests for longer than the most there is would be offered anyhow.
        let was_for_nothing = *outcome == Outcome::Intact && age < delay.saturating_mul(1 << MOST);
        let next = if was_for_nothing {
            MOST.min(now + 1)
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
    fn it_grows_while_offering_is_for_nothing() {
        let patience = Patience::none();
        assert_eq!(patience.prolong(DELAY), DELAY);
        let grown = [2, 4, 8, 8].map(|times| {
            patience.learn(SOON, DELAY, &Outcome::Intact);
            (patience.prolong(DELAY), times * DELAY)
        });
        assert!(grown.iter().all(|(is, should)| is == should), "{grown:?}");
        // What is offered inside the call stays so.
        assert_eq!(patience.prolong(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn what_rests_or_is_taken_is_offered_in_time_again() {
        let lost = Outcome::Purged(Vec::new());
        for (age, outcome) in [(LATE, Outcome::Intact), (SOON, lost)] {
            let patience = Patience::none();
            patience.learn(SOON, DELAY, &Outcome::Intact);
            patience.learn(age, DELAY, &outcome);
            assert_eq!(patience.prolong(DELAY), DELAY);
        }
    }
}
