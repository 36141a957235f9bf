//! How much to bring in at a time, and which of two ways is faster.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::plan::Way;
use crate::ground::sys::page_size;

/// How long a chunk should take. Another thread's `mmap` waits for the chunks
/// that are under way, and for its turn behind them.
const WANTED: Duration = Duration::from_millis(2);

/// Where sizes begin, and their bounds.
const FIRST_BYTES: usize = 1 << 20;
const LEAST_BYTES: usize = 256 << 10;
const MOST_BYTES: usize = 64 << 20;

/// The size of one thread's chunks.
#[derive(Debug)]
pub(super) struct Pace {
    chunk_bytes: usize,
    fixed: bool,
}

impl Pace {
    pub(super) fn new(fixed_bytes: Option<usize>) -> Self {
        let chunk_bytes = fixed_bytes.unwrap_or(FIRST_BYTES);
        Self {
            chunk_bytes: chunk_bytes.next_multiple_of(page_size()),
            fixed: fixed_bytes.is_some(),
        }
    }

    pub(super) fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// Learns how long a chunk took.
    pub(super) fn learn(&mut self, bytes: usize, took: Duration) {
        // The last chunk of a part is short and says little.
        if self.fixed || bytes < self.chunk_bytes {
            return;
        }
        if took > WANTED * 2 {
            self.chunk_bytes /= 2;
        } else if took < WANTED / 2 {
            self.chunk_bytes *= 2;
        }
        self.chunk_bytes = self
            .chunk_bytes
            .clamp(LEAST_BYTES.max(page_size()), MOST_BYTES);
    }
}

/// Chooses between populating a file at once and reading ahead first, for all
/// threads together.
///
/// The kernel's own read-ahead, which populating sets off, is the faster one,
/// unless the mapping was told MADV_RANDOM: then pages come in one by one. That
/// cannot be asked for, but it shows.
#[derive(Debug, Default)]
pub(super) struct FasterWay {
    /// Picoseconds a byte took, by [`Way::Populate`]; 0 = not known.
    populate: AtomicU64,
    /// The same for [`Way::ReadAhead`].
    read_ahead: AtomicU64,
}

/// Slower than 200 MB/s is slow enough to look for a better way.
const SLOW_PICOSECONDS: u64 = 5000;

impl FasterWay {
    pub(super) fn choose(&self) -> Way {
        let populate = self.populate.load(Ordering::Relaxed);
        let read_ahead = self.read_ahead.load(Ordering::Relaxed);
        if populate < SLOW_PICOSECONDS || (read_ahead != 0 && populate <= read_ahead) {
            Way::Populate
        } else {
            Way::ReadAhead
        }
    }

    pub(super) fn learn(&self, way: Way, bytes: usize, took: Duration) {
        let speed = match way {
            Way::Populate => &self.populate,
            Way::ReadAhead => &self.read_ahead,
            _ => return,
        };
        let picoseconds = took.as_nanos().saturating_mul(1000) / bytes.max(1) as u128;
        speed.store(
            u64::try_from(picoseconds).unwrap_or(u64::MAX).max(1),
            Ordering::Relaxed,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_grow_and_shrink_towards_the_wanted_time() {
        let mut pace = Pace::new(None);
        let first = pace.chunk_bytes();
        pace.learn(first, WANTED / 4);
        assert_eq!(pace.chunk_bytes(), 2 * first);
        pace.learn(2 * first, WANTED);
        assert_eq!(pace.chunk_bytes(), 2 * first);
        pace.learn(page_size(), WANTED * 100);
        assert_eq!(pace.chunk_bytes(), 2 * first, "a short chunk says nothing");
        for _ in 0..20 {
            pace.learn(pace.chunk_bytes(), WANTED * 3);
        }
        assert_eq!(pace.chunk_bytes(), LEAST_BYTES);
        for _ in 0..20 {
            pace.learn(pace.chunk_bytes(), Duration::ZERO);
        }
        assert_eq!(pace.chunk_bytes(), MOST_BYTES);
    }

    #[test]
    fn a_size_that_was_asked_for_stays() {
        let mut pace = Pace::new(Some(page_size() + 1));
        pace.learn(2 * page_size(), Duration::from_secs(1));
        assert_eq!(pace.chunk_bytes(), 2 * page_size());
    }

    #[test]
    fn reading_ahead_is_tried_when_populating_is_slow_and_kept_when_it_is_faster() {
        let faster = FasterWay::default();
        assert_eq!(faster.choose(), Way::Populate);
        faster.learn(Way::Populate, 1 << 20, Duration::from_millis(1));
        assert_eq!(faster.choose(), Way::Populate);
        faster.learn(Way::Populate, 1 << 20, Duration::from_millis(20));
        assert_eq!(faster.choose(), Way::ReadAhead);
        faster.learn(Way::ReadAhead, 1 << 20, Duration::from_millis(2));
        assert_eq!(faster.choose(), Way::ReadAhead);
        faster.learn(Way::ReadAhead, 1 << 20, Duration::from_millis(30));
        assert_eq!(faster.choose(), Way::Populate);
    }
}
