use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// A clock that stands still until it is told to go on.
#[derive(Default)]
pub struct MockClock {
    milliseconds: AtomicU64,
}

impl MockClock {
    pub fn pass(&self, milliseconds: u64) {
        self.milliseconds.fetch_add(milliseconds, Ordering::Relaxed);
    }
}

impl Clock for MockClock {
    fn now(&self) -> Duration {
        Duration::from_millis(self.milliseconds.load(Ordering::Relaxed))
    }
}
