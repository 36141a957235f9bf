//! The offer delay.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The default of [`set_offer_delay`].
pub const DEFAULT_DELAY: Duration = Duration::from_millis(100);

static DELAY_NANOS: AtomicU64 = AtomicU64::new(DEFAULT_DELAY.as_nanos() as u64);

/// Sets how long memory is volatile before the kernel is offered it, for the
/// whole process: 100 ms unless set. Memory that is marked and unmarked again within
/// the delay costs no system call. Zero offers inside the marking call.
///
/// A [`VolatileBuffer`] that is unmarked intact soon after it was offered waits longer
/// the next time: up to 8 times as long. Under memory pressure ([`Level::Some`] and
/// above), and where a [`VolatileCache`](crate::VolatileCache) that evicts values finds that other
/// processes take the memory that is left, everything is offered at once.
///
/// [`VolatileBuffer`]: crate::VolatileBuffer
/// [`Level::Some`]: crate::pressure::Level::Some
///
/// ```
/// use std::time::Duration;
///
/// tenure::volatile::set_offer_delay(Duration::from_millis(20));
/// # tenure::volatile::set_offer_delay(Duration::from_millis(100));
/// ```
pub fn set_offer_delay(delay: Duration) {
    let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
    DELAY_NANOS.store(nanos, Ordering::Relaxed);
}

#[inline]
pub(crate) fn offer_delay() -> Duration {
    Duration::from_nanos(DELAY_NANOS.load(Ordering::Relaxed))
}

/// Returns whether volatile memory is offered inside the call that marks it.
#[inline]
pub(crate) fn is_offered_at_once() -> bool {
    DELAY_NANOS.load(Ordering::Relaxed) == 0
}
