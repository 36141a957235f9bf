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

/// A clock on which each look takes 10 ms.
#[derive(Default)]
pub struct SteppingClock(MockClock);

impl Clock for SteppingClock {
    fn now(&self) -> Duration {
        self.0.pass(10);
        self.0.now()
    }
}
