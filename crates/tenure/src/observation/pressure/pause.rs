//! How long to wait until the next look.

use std::time::Duration;

use super::Level;
use super::judge::Verdict;

const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// The longest while there is pressure, or was a moment ago.
const UNDER_PRESSURE: Duration = Duration::from_millis(500);

/// The longest where the kernel reports no stalls by itself.
const UNREPORTED: Duration = Duration::from_secs(2);

/// How fast a program can use memory up, in bytes a second; once seen to take
/// some, it is looked at more often.
const FAST: f64 = (4_u64 << 30) as f64;
const ONCE_A_SECOND: Duration = Duration::from_secs(1);

pub(super) fn pause(verdict: &Verdict, reports_stalls: bool) -> Duration {
    let mut longest = if reports_stalls { LONGEST } else { UNREPORTED };
    let soon = Duration::from_secs_f64(verdict.left_bytes as f64 / FAST);
    longest = longest.min(soon.max(ONCE_A_SECOND));
    if verdict.level > Level::None {
        longest = longest.min(UNDER_PRESSURE);
    }
    // Half of the time in which it would be used up.
    let wanted = verdict.used_up_in.map_or(longest, |time| time / 2);
    wanted.clamp(SHORTEST, longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::pressure::Reason;

    fn verdict(level: Level, left_mib: usize, used_up_in_ms: Option<u64>) -> Verdict {
        Verdict {
            level,
            reason: Reason::Calm,
            left_bytes: left_mib << 20,
            used_up_in: used_up_in_ms.map(Duration::from_millis),
        }
    }

    fn pause_ms(verdict: Verdict) -> u128 {
        pause(&verdict, true).as_millis()
    }

    #[test]
    fn much_room_is_looked_at_rarely_and_little_often() {
        assert_eq!(pause_ms(verdict(Level::None, 1 << 20, None)), 5000);
        assert_eq!(pause_ms(verdict(Level::None, 8 << 10, None)), 2000);
        assert_eq!(pause_ms(verdict(Level::None, 100, None)), 1000);
        assert_eq!(pause_ms(verdict(Level::Some, 1 << 20, None)), 500);
    }

    #[test]
    fn what_shrinks_is_looked_at_before_it_is_gone() {
        assert_eq!(pause_ms(verdict(Level::None, 1 << 20, Some(3000))), 1500);
        assert_eq!(pause_ms(verdict(Level::None, 1 << 20, Some(10))), 100);
        assert_eq!(pause_ms(verdict(Level::None, 100, Some(60_000))), 1000);
    }

    #[test]
    fn without_triggers_it_looks_itself() {
        let calm = verdict(Level::None, 1 << 20, None);
        assert_eq!(pause(&calm, false).as_millis(), 2000);
    }
}
