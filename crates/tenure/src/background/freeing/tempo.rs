//! How many workers to have: as many as free faster together.

use std::time::{Duration, Instant};

/// What is freed before the speed of so many workers is judged.
const EPOCH_BYTES: usize = 256 << 20;

/// One more worker must bring at least this.
const GAIN: f64 = 1.1;

/// After a worker too many was tried, as many epochs pass before the next try.
const REST_EPOCHS: u32 = 16;

/// Climbs to the best number of workers, one at a time.
///
/// More of them are not always faster: they meet in the allocator's locks, and
/// they take CPUs from the program.
#[derive(Debug)]
pub(super) struct Tempo {
    wanted: usize,
    /// How many there may be at most, as it was said last.
    most: usize,
    /// Memory is short: as many as may be, whatever each brings.
    is_urgent: bool,
    /// The speed before the last worker came, while that one is on trial.
    before: Option<f64>,
    rest_epochs: u32,
    begun: Option<Instant>,
    bytes: usize,
}

impl Tempo {
    pub(super) const ONE: Self = Self {
        wanted: 1,
        most: 1,
        is_urgent: false,
        before: None,
        rest_epochs: 0,
        begun: None,
        bytes: 0,
    };

    /// How many workers to have.
    pub(super) fn wanted(&self) -> usize {
        if self.is_urgent {
            self.most
        } else {
            self.wanted
        }
    }

    /// Says whether memory is short.
    pub(super) fn hurry(&mut self, is_urgent: bool) {
        if self.is_urgent != is_urgent {
            // What was measured was measured with another number of workers.
            self.before = None;
            self.begun = None;
        }
        self.is_urgent = is_urgent;
    }

    /// Says that there is nothing to do: what is measured must be without gaps.
    pub(super) fn pause(&mut self) {
        self.begun = None;
    }

    /// Says that `workers` run or that their number has changed.
    pub(super) fn begin(&mut self, now: Instant) {
        self.begun = Some(now);
        self.bytes = 0;
    }

    /// Learns what was freed until `now`, with `left_bytes` still to do and at
    /// most `most` workers allowed.
    pub(super) fn learn(&mut self, bytes: usize, now: Instant, left_bytes: usize, most: usize) {
        self.most = most;
        self.wanted = self.wanted.min(most);
        if self.is_urgent {
            return;
        }
        let Some(begun) = self.begun else {
            self.begin(now);
            return;
        };
        self.bytes += bytes;
        if self.bytes < EPOCH_BYTES {
            return;
        }
        let took = now.duration_since(begun).max(Duration::from_micros(1));
        let speed = self.bytes as f64 / took.as_secs_f64();
        self.begin(now);
        match self.before.take() {
            Some(before) if speed < before * GAIN => {
                self.wanted = self.wanted.saturating_sub(1).max(1);
                self.rest_epochs = REST_EPOCHS;
            }
            _ if self.rest_epochs > 0 => self.rest_epochs -= 1,
            // Enough left to see what one more brings.
            _ if self.wanted < most && left_bytes >= 2 * EPOCH_BYTES => {
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

    /// Frees for some epochs at the speed that `milliseconds` says each takes
    /// with so many workers.
    fn run(tempo: &mut Tempo, most: usize, epochs: u32, milliseconds: impl Fn(usize) -> u64) {
        let mut now = Instant::now();
        tempo.begin(now);
        for _ in 0..epochs {
            now += Duration::from_millis(milliseconds(tempo.wanted()));
            tempo.learn(EPOCH_BYTES, now, 100 * EPOCH_BYTES, most);
        }
    }

    #[test]
    fn grows_as_long_as_it_helps() {
        let mut tempo = Tempo::ONE;
        // A third and fourth worker bring nothing.
        run(&mut tempo, 8, 10, |workers| 100 / workers.min(2) as u64);
        assert_eq!(tempo.wanted(), 2);
        let mut tempo = Tempo::ONE;
        run(&mut tempo, 4, 10, |workers| 120 / workers as u64);
        assert_eq!(tempo.wanted(), 4, "no more than allowed");
    }

    #[test]
    fn one_is_enough_where_two_are_slower() {
        let mut tempo = Tempo::ONE;
        run(&mut tempo, 4, 12, |workers| 100 * workers as u64);
        assert_eq!(tempo.wanted(), 1);
    }

    #[test]
    fn in_a_hurry_there_are_as_many_as_may_be() {
        let mut tempo = Tempo::ONE;
        run(&mut tempo, 4, 12, |workers| 100 * workers as u64);
        tempo.hurry(true);
        assert_eq!(tempo.wanted(), 4);
        run(&mut tempo, 3, 2, |workers| 100 * workers as u64);
        assert_eq!(tempo.wanted(), 3);
        tempo.hurry(false);
        assert_eq!(tempo.wanted(), 1);
    }

    #[test]
    fn tries_again_after_a_while() {
        let mut tempo = Tempo::ONE;
        run(&mut tempo, 2, 12, |workers| 100 * workers as u64);
        run(&mut tempo, 2, REST_EPOCHS + 2, |workers| {
            100 / workers as u64
        });
        assert_eq!(tempo.wanted(), 2);
    }

    #[test]
    fn little_work_needs_no_second_worker() {
        let mut tempo = Tempo::ONE;
        let mut now = Instant::now();
        tempo.begin(now);
        for _ in 0..10 {
            now += Duration::from_millis(50);
            tempo.learn(EPOCH_BYTES, now, EPOCH_BYTES, 4);
        }
        assert_eq!(tempo.wanted(), 1);
    }
}
