//! How many threads read at a time: as many as raise the rate.

use std::time::Duration;

/// The readers at the begin.
const INITIAL: usize = 2;

/// A shorter time says little about a disk.
const WINDOW: Duration = Duration::from_millis(40);

/// Doubles the number of readers as long as that raises the rate by a tenth.
#[derive(Debug)]
pub(super) struct ReaderScaling {
    readers: usize,
    max_readers: usize,
    is_settled: bool,
    best_rate: f64,
    window_bytes: u64,
    window_began: Duration,
}

impl ReaderScaling {
    pub(super) fn new(max_readers: usize, is_fixed: bool) -> Self {
        Self {
            readers: if is_fixed {
                max_readers
            } else {
                INITIAL.min(max_readers)
            },
            max_readers,
            is_settled: is_fixed,
            best_rate: 0.0,
            window_bytes: 0,
            window_began: Duration::ZERO,
        }
    }

    /// Records how much was read by a time since the begin. Returns how many readers there
    /// should be.
    pub(super) fn record(&mut self, read_bytes: u64, elapsed: Duration) -> usize {
        let time = elapsed.saturating_sub(self.window_began);
        if self.is_settled || time < WINDOW {
            return self.readers;
        }
        let rate = (read_bytes - self.window_bytes) as f64 / time.as_secs_f64();
        (self.window_bytes, self.window_began) = (read_bytes, elapsed);
        match rate > 1.1 * self.best_rate && self.readers < self.max_readers {
            true => self.readers = (2 * self.readers).min(self.max_readers),
            false => self.is_settled = true,
        }
        self.best_rate = self.best_rate.max(rate);
        self.readers
    }

    pub(super) fn readers(&self) -> usize {
        self.readers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many readers there are on a disk that serves `rate(readers)`.
    fn readers_on(rate: impl Fn(usize) -> u64) -> usize {
        let mut scaling = ReaderScaling::new(32, false);
        let mut read_bytes = 0;
        for window in 1..20 {
            read_bytes += rate(scaling.readers());
            scaling.record(read_bytes, window * WINDOW);
        }
        scaling.readers()
    }

    #[test]
    fn readers_grow_only_while_the_rate_grows() {
        assert_eq!(readers_on(|_| 1 << 20), 4);
        assert_eq!(readers_on(|readers| (readers as u64) << 20), 32);
        assert_eq!(readers_on(|readers| (readers.min(8) as u64) << 20), 16);
    }

    #[test]
    fn fixed_number_of_readers_stays() {
        let mut scaling = ReaderScaling::new(3, true);
        assert_eq!(scaling.record(1 << 30, WINDOW), 3);
        assert_eq!(scaling.record(1 << 40, 2 * WINDOW), 3);
    }
}
