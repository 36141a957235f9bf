//! The clock that everything is timed with, behind a trait so that tests need
//! no real time.

use std::time::{Duration, Instant};

/// Something that tells the time since a fixed moment. Shared with threads.
pub trait Clock: Sync {
    /// Returns the time since the fixed moment; it never goes backwards.
    fn now(&self) -> Duration;
}

/// The system's monotonic clock.
#[derive(Clone, Copy)]
pub struct MonotonicClock {
    start: Instant,
}

impl MonotonicClock {
    /// Starts the clock.
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

#[cfg(test)]
pub mod mock {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A clock that stands still until it is told to go on.
    #[derive(Default)]
    pub struct MockClock {
        milliseconds: AtomicU64,
    }

    impl MockClock {
        /// Lets `milliseconds` pass.
        pub fn pass(&self, milliseconds: u64) {
            self.milliseconds.fetch_add(milliseconds, Ordering::Relaxed);
        }
    }

    impl Clock for MockClock {
        fn now(&self) -> Duration {
            Duration::from_millis(self.milliseconds.load(Ordering::Relaxed))
        }
    }
}
