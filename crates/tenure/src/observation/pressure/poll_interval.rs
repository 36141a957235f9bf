//! The time until the watcher's next reading.

use std::time::Duration;

use super::Level;
use super::judge::Verdict;

/// The minimum, whatever happens.
const MIN: Duration = Duration::from_millis(100);

/// The maximum, with much headroom and a kernel that reports stalls.
const MAX: Duration = Duration::from_secs(5);

/// The maximum while there is pressure, or was a moment ago.
const MAX_UNDER_PRESSURE: Duration = Duration::from_millis(500);

/// The maximum where the kernel does not report stalls.
const MAX_WITHOUT_TRIGGER: Duration = Duration::from_secs(2);

/// The bytes that a program can use up in a second; a program that was seen to
/// take some is observed more often.
const FAST_BYTES_PER_SECOND: f64 = (4_u64 << 30) as f64;

/// The minimum that the remaining headroom alone can lead to.
const MIN_BY_HEADROOM: Duration = Duration::from_secs(1);

/// Returns the time until the next reading.
pub(super) fn poll_interval(verdict: &Verdict, reports_stalls: bool) -> Duration {
    let mut max = if reports_stalls {
        MAX
    } else {
        MAX_WITHOUT_TRIGGER
    };
    let soon = Duration::from_secs_f64(verdict.left_bytes as f64 / FAST_BYTES_PER_SECOND);
    max = max.min(soon.max(MIN_BY_HEADROOM));
    if verdict.level > Level::None {
        max = max.min(MAX_UNDER_PRESSURE);
    }
    // Half of the time in which the memory would be used up.
    let wanted = verdict.used_up_in.map_or(max, |time| time / 2);
    wanted.clamp(MIN, max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::pressure::Reason;

    fn verdict(level: Level, left_mib: usize, used_up_in_ms: Option<u64>) -> Verdict {
        Verdict {
            level,
            reason: Reason::None,
            left_bytes: left_mib << 20,
            used_up_in: used_up_in_ms.map(Duration::from_millis),
        }
    }

    fn interval_ms(verdict: Verdict) -> u128 {
        poll_interval(&verdict, true).as_millis()
    }

    #[test]
    fn interval_shrinks_with_headroom_and_pressure() {
        assert_eq!(interval_ms(verdict(Level::None, 1 << 20, None)), 5000);
        assert_eq!(interval_ms(verdict(Level::None, 8 << 10, None)), 2000);
        assert_eq!(interval_ms(verdict(Level::None, 100, None)), 1000);
        assert_eq!(interval_ms(verdict(Level::Some, 1 << 20, None)), 500);
    }

    #[test]
    fn interval_is_half_of_time_to_exhaustion() {
        assert_eq!(interval_ms(verdict(Level::None, 1 << 20, Some(3000))), 1500);
        assert_eq!(interval_ms(verdict(Level::None, 1 << 20, Some(10))), 100);
        assert_eq!(interval_ms(verdict(Level::None, 100, Some(60_000))), 1000);
    }

    #[test]
    fn interval_without_trigger_is_at_most_two_seconds() {
        let calm = verdict(Level::None, 1 << 20, None);
        assert_eq!(poll_interval(&calm, false).as_millis(), 2000);
    }
}
