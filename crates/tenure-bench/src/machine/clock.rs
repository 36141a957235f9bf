//! The clock that everything is timed with, behind a trait so that tests need
//! no real time.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Something that tells the time since a fixed moment. Shared with threads.
pub trait Clock: Sync {
    /// Returns the time since the fixed moment; it never goes backwards.
    fn now(&self) -> Duration;
}

/// The system's monotonic clock, which all processes share.
#[derive(Clone, Copy)]
pub struct MonotonicClock {
    start: Duration,
}

impl MonotonicClock {
    /// Tells the time since the system started.
    pub const SHARED: Self = Self {
        start: Duration::ZERO,
    };

    pub fn start() -> Self {
        let start = Self::SHARED.now();
        Self { start }
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Duration {
        let now = clock_gettime(ClockId::Monotonic);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32) - self.start
    }
}

#[cfg(test)]
#[path = "../../tests/unit/machine/mock.rs"]
pub mod mock;
