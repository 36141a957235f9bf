//! Whether other processes take the memory that is left, faster than the pressure is read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::thread;
use crate::ground::sys::Errno;
use crate::observation::headroom::{self, LEDGER, Watermark};
use crate::verbs::volatile::priority::Timestamp;

/// How many bytes other processes take in a microsecond at most, about.
const OTHERS_BYTES_PER_MICRO: usize = 4 << 10;

/// How long a reading serves, at least and at most. (It takes 0.1 to 0.2 ms.)
const MIN_AGE: Duration = Duration::from_millis(1);
const MAX_AGE: Duration = Duration::from_millis(100);

/// How long everything is offered at once after others were seen to take memory.
const SHORT_FOR: Duration = Duration::from_millis(500);

/// Until when everything is offered at once, on the clock of [`Timestamp`].
static SHORT_UNTIL_NANOS: AtomicU64 = AtomicU64::new(0);

/// Returns a 16th of the limit that decides, or 0 if none is known: the reserves differ by 3/32
/// of it.
pub(crate) fn sixteenth_of_limit() -> usize {
    let reserves = [Watermark::Low, Watermark::High].map(|watermark| LEDGER.surplus(watermark));
    usize::try_from((reserves[0] - reserves[1]) * 2 / 3).unwrap_or(0)
}

/// Returns how long a reading of the limits serves a cache that takes memory: others need so long
/// for a 16th of the limit. In 100 ms they fill a small cgroup.
pub(crate) fn max_reading_age() -> Duration {
    Duration::from_micros((sixteenth_of_limit() / OTHERS_BYTES_PER_MICRO) as u64)
        .clamp(MIN_AGE, MAX_AGE)
}

/// Takes a reading of the limits if the last is older than serves here. If others take the
/// memory that is left, all that is volatile is offered for a while: what is in use within the
/// offer delay would leave the kernel nothing to reclaim, and past a limit it kills. A cache calls
/// this as it takes memory.
///
/// # Errors
///
/// The kernel's error, if the limits cannot be read and never were.
pub fn offer_if_short() -> Result<(), Errno> {
    if LEDGER.is_due_after(max_reading_age()) {
        headroom::refresh()?;
        if LEDGER.is_reserve_short() {
            let until = Timestamp::now().as_nanos() + SHORT_FOR.as_nanos() as u64;
            SHORT_UNTIL_NANOS.store(until, Ordering::Relaxed);
            thread::run_soon();
        }
    }
    Ok(())
}

/// Returns whether everything is offered at once at this time.
pub(super) fn is_short_at(now: Timestamp) -> bool {
    now.as_nanos() < SHORT_UNTIL_NANOS.load(Ordering::Relaxed)
}
