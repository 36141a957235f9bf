//! The number of workers: as many as increase the throughput.

use std::time::{Duration, Instant};

/// The bytes freed before the throughput of a number of workers is judged.
const EPOCH_BYTES: usize = 256 << 20;

/// One more worker must increase the throughput by at least this factor.
const MIN_GAIN: f64 = 1.1;

/// The number of epochs to wait after one more worker did not help, before the
/// next trial.
const BACKOFF_EPOCHS: u32 = 16;

/// Climbs to the best number of workers, one at a time.
///
/// More workers are not always faster: they contend for the allocator's locks,
/// and they take CPUs from the program.
#[derive(Debug)]
pub(super) struct WorkerScaling {
    wanted: usize,
    /// The number of workers while freeing is urgent, whatever each gains.
    urgent: Option<usize>,
    /// The throughput before the last worker was added, while that one is on
    /// trial.
    before: Option<f64>,
    backoff_epochs: u32,
    started: Option<Instant>,
    bytes: usize,
}

impl WorkerScaling {
    pub(super) const ONE: Self = Self {
        wanted: 1,
        urgent: None,
        before: None,
        backoff_epochs: 0,
        started: None,
        bytes: 0,
    };

    /// Returns the number of workers to have.
    pub(super) fn wanted(&self) -> usize {
        self.urgent.unwrap_or(self.wanted)
    }

    /// Returns whether freeing is urgent.
    pub(super) fn is_urgent(&self) -> bool {
        self.urgent.is_some()
    }

    /// Sets the number of workers if freeing is urgent.
    pub(super) fn set_urgent(&mut self, workers: Option<usize>) {
        if self.urgent != workers {
            // The measurement so far applies to another number of workers.
            self.before = None;
            self.started = None;
        }
        self.urgent = workers;
    }

    /// Ends the measurement, because there is nothing to do: it must have no
    /// gaps.
    pub(super) fn stop_measuring(&mut self) {
        self.started = None;
    }

    /// Starts a measurement.
    pub(super) fn start_measuring(&mut self, now: Instant) {
        self.started = Some(now);
        self.bytes = 0;
    }

    /// Records bytes freed until `now`, with `remaining_bytes` still to free
    /// and at most `max` workers allowed.
    pub(super) fn record(
        &mut self,
        bytes: usize,
        now: Instant,
        remaining_bytes: usize,
        max: usize,
    ) {
        self.wanted = self.wanted.min(max);
        if self.urgent.is_some() {
            return;
        }
        let Some(started) = self.started else {
            self.start_measuring(now);
            return;
        };
        self.bytes += bytes;
        if self.bytes < EPOCH_BYTES {
            return;
        }
        let took = now.duration_since(started).max(Duration::from_micros(1));
        let speed = self.bytes as f64 / took.as_secs_f64();
        self.start_measuring(now);
        match self.before.take() {
            Some(before) if speed < before * MIN_GAIN => {
                self.wanted = self.wanted.saturating_sub(1).max(1);
                self.backoff_epochs = BACKOFF_EPOCHS;
            }
            _ if self.backoff_epochs > 0 => self.backoff_epochs -= 1,
            // Enough is left to measure one more worker.
            _ if self.wanted < max && remaining_bytes >= 2 * EPOCH_BYTES => {
                self.before = Some(speed);
                self.wanted += 1;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frees for some epochs, each of which takes `milliseconds` with so many
    /// workers.
    fn run(
        worker_scaling: &mut WorkerScaling,
        max: usize,
        epochs: u32,
        milliseconds: impl Fn(usize) -> u64,
    ) {
        let mut now = Instant::now();
        worker_scaling.start_measuring(now);
        for _ in 0..epochs {
            now += Duration::from_millis(milliseconds(worker_scaling.wanted()));
            worker_scaling.record(EPOCH_BYTES, now, 100 * EPOCH_BYTES, max);
        }
    }

    #[test]
    fn wanted_grows_while_throughput_does() {
        let mut worker_scaling = WorkerScaling::ONE;
        // A third and fourth worker gain nothing.
        run(&mut worker_scaling, 8, 10, |workers| {
            100 / workers.min(2) as u64
        });
        assert_eq!(worker_scaling.wanted(), 2);
        let mut worker_scaling = WorkerScaling::ONE;
        run(&mut worker_scaling, 4, 10, |workers| 120 / workers as u64);
        assert_eq!(worker_scaling.wanted(), 4, "no more than allowed");
    }

    #[test]
    fn wanted_is_one_where_two_are_slower() {
        let mut worker_scaling = WorkerScaling::ONE;
        run(&mut worker_scaling, 4, 12, |workers| 100 * workers as u64);
        assert_eq!(worker_scaling.wanted(), 1);
    }

    #[test]
    fn wanted_when_urgent_is_as_set() {
        let mut worker_scaling = WorkerScaling::ONE;
        run(&mut worker_scaling, 4, 12, |workers| 100 * workers as u64);
        worker_scaling.set_urgent(Some(4));
        run(&mut worker_scaling, 2, 2, |workers| 100 * workers as u64);
        assert_eq!(worker_scaling.wanted(), 4);
        worker_scaling.set_urgent(None);
        assert_eq!(worker_scaling.wanted(), 1);
    }

    #[test]
    fn wanted_grows_again_after_backoff() {
        let mut worker_scaling = WorkerScaling::ONE;
        run(&mut worker_scaling, 2, 12, |workers| 100 * workers as u64);
        run(&mut worker_scaling, 2, BACKOFF_EPOCHS + 2, |workers| {
            100 / workers as u64
        });
        assert_eq!(worker_scaling.wanted(), 2);
    }

    #[test]
    fn wanted_with_little_work_stays_one() {
        let mut worker_scaling = WorkerScaling::ONE;
        let mut now = Instant::now();
        worker_scaling.start_measuring(now);
        for _ in 0..10 {
            now += Duration::from_millis(50);
            worker_scaling.record(EPOCH_BYTES, now, EPOCH_BYTES, 4);
        }
        assert_eq!(worker_scaling.wanted(), 1);
    }
}
