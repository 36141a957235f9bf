//! How much memory may be taken until offers are deferred no longer.

use std::time::Duration;

use crate::ground::sys::affinity;
use crate::observation::headroom::{LEDGER, Watermark, refresh_if_older};
use crate::observation::pressure;

/// The memory that must be left above the watermark for each CPU: more than one takes between
/// two readings, and while the offers are made. (The kernel fills 1.6 to 3.3 GB a second, so
/// 40 to 80 MB between two readings, and an eighth of the limit is left below the watermark.)
const MIN_BYTES_PER_CPU: usize = 96 << 20;
const READING_INTERVAL: Duration = Duration::from_millis(25);

/// With so much for each CPU, the limits are read less often.
const AMPLE_BYTES_PER_CPU: usize = 256 << 20;
const AMPLE_READING_INTERVAL: Duration = Duration::from_millis(100);

/// How much of the memory may be taken until offers are deferred no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs::volatile) struct Reserve {
    bytes: usize,
    /// For how long it holds.
    interval: Duration,
}

impl Reserve {
    /// Returns the reserve of so many bytes above the watermark; `None` if they are too few.
    fn of(surplus: isize, cpus: usize) -> Option<Self> {
        let surplus = usize::try_from(surplus).ok()?;
        let bytes = surplus.checked_sub(MIN_BYTES_PER_CPU.saturating_mul(cpus))?;
        let interval = match surplus / cpus.max(1) >= AMPLE_BYTES_PER_CPU {
            true => AMPLE_READING_INTERVAL,
            false => READING_INTERVAL,
        };
        Some(Self { bytes, interval })
    }

    /// Returns the reserve by a reading of the limits that is no older than an earlier one
    /// allows; `None` if there is none.
    pub(in crate::verbs::volatile) fn read(earlier: Option<Self>) -> Option<Self> {
        let interval = earlier.map_or(AMPLE_READING_INTERVAL, |earlier| earlier.interval);
        refresh_if_older(interval).ok()?;
        Self::now()
    }

    /// Returns how soon the limits are read again.
    pub(in crate::verbs::volatile) fn interval(self) -> Duration {
        self.interval
    }

    /// Returns the reserve by the last reading; `None` if there is none, or the pressure is
    /// severe: then the kernel is about to kill, or programs wait for memory most of the time.
    fn now() -> Option<Self> {
        if pressure::is_severe_now() {
            return None;
        }
        let reserve = Self::of(
            LEDGER.surplus(Watermark::High),
            affinity::process_cpu_count(),
        );
        reserve.filter(|_| LEDGER.has_reading())
    }

    #[cfg(test)]
    pub(in crate::verbs::volatile) fn unlimited() -> Option<Self> {
        Self::of(isize::MAX, 1)
    }
}

/// Returns how many bytes more may be taken until offers are deferred no longer; 0 if they
/// are not. Takes a reading of the limits if the last one is old.
pub(super) fn deferrable_bytes() -> usize {
    // Where the limits cannot be read any more the last reading holds.
    let _ = refresh_if_older(AMPLE_READING_INTERVAL);
    Reserve::now().map_or(0, |reserve| reserve.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn reserve_is_what_a_part_for_each_cpu_leaves() {
        let reserve = |surplus: usize, cpus| Reserve::of(surplus as isize, cpus);
        let of = |bytes, interval| Some(Reserve { bytes, interval });
        assert_eq!(Reserve::of(-1, 1), None);
        assert_eq!(reserve(192 * MIB - 1, 2), None);
        assert_eq!(reserve(192 * MIB, 2), of(0, READING_INTERVAL));
        assert_eq!(reserve(511 * MIB, 2), of(319 * MIB, READING_INTERVAL));
        assert_eq!(reserve(512 * MIB, 2), of(320 * MIB, AMPLE_READING_INTERVAL));
    }
}
