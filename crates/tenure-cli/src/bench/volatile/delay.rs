//! When tenure hands over what is marked.

use std::time::Duration;

/// Has tenure offer the kernel what is marked inside the call that marks it, for
/// as long as this lives.
pub struct AtOnce(());

impl AtOnce {
    /// Sets the delay of the process to zero.
    pub fn begin() -> Self {
        tenure::set_hand_over_delay(Duration::ZERO);
        Self(())
    }
}

impl Drop for AtOnce {
    fn drop(&mut self) {
        // The default, which nothing else here changes.
        tenure::set_hand_over_delay(Duration::from_millis(100));
    }
}
