//! Options of marking.

use super::priority::Priority;

/// How to mark memory volatile, for
/// [`VolatileBuffer::mark_volatile_with`](crate::VolatileBuffer::mark_volatile_with)
/// and [`PageRange::mark_volatile_with`](crate::PageRange::mark_volatile_with).
///
/// ```
/// use tenure::VolatileBuffer;
/// use tenure::volatile::{Priority, VolatileOptions};
///
/// let mut thumbnails = VolatileBuffer::new(1 << 20)?;
/// thumbnails.mark_volatile_with(VolatileOptions::new().priority(Priority::Low));
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct VolatileOptions {
    pub(super) priority: Priority,
    pub(super) offer_now: bool,
}

impl VolatileOptions {
    /// Returns the options that plain marking uses: [`Priority::Normal`], offered
    /// after the [offer delay](super::set_offer_delay).
    pub const fn new() -> Self {
        Self {
            priority: Priority::Normal,
            offer_now: false,
        }
    }

    /// Sets how soon the range is purged under memory pressure.
    pub const fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Offers the range to the kernel before the call returns, whatever the
    /// [offer delay](super::set_offer_delay) is.
    pub const fn offer_now(mut self) -> Self {
        self.offer_now = true;
        self
    }
}
