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
    populate: Speed,
    read_ahead: Speed,
}

/// Slower than 200 MB/s is slow enough to look for a better way.
const SLOW_NANOSECONDS_PER_KIB: u64 = 5000;

/// What a way is judged by, at least: the first page that is read ahead waits
/// for all that come with it.
const ENOUGH_BYTES: u64 = 4 << 20;

impl FasterWay {
    pub(super) fn choose(&self) -> Way {
        match (
            self.populate.nanoseconds_per_kib(),
            self.read_ahead.nanoseconds_per_kib(),
        ) {
            (Some(SLOW_NANOSECONDS_PER_KIB..), None) => Way::ReadAhead,
            (Some(populate), Some(read_ahead)) if read_ahead < populate => Way::ReadAhead,
            _ => Way::Populate,
        }
    }

    pub(super) fn learn(&self, way: Way, bytes: usize, took: Duration) {
        match way {
            Way::Populate => self.populate.add(bytes, took),
            Way::ReadAhead => self.read_ahead.add(bytes, took),
            _ => {}
        }
    }
}

#[derive(Debug, Default)]
struct Speed {
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Speed {
    fn add(&self, bytes: usize, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn nanoseconds_per_kib(&self) -> Option<u64> {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let nanoseconds = self.nanoseconds.load(Ordering::Relaxed);
        (bytes >= ENOUGH_BYTES).then(|| nanoseconds / (bytes / 1024))
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
        let megabytes = |way, count: usize, milliseconds| {
            faster.learn(way, count << 20, Duration::from_millis(milliseconds));
            faster.choose()
        };
        assert_eq!(faster.choose(), Way::Populate);
        assert_eq!(
            megabytes(Way::Populate, 1, 20),
            Way::Populate,
            "too little to judge by"
        );
        assert_eq!(megabytes(Way::Populate, 3, 1), Way::ReadAhead);
        assert_eq!(megabytes(Way::ReadAhead, 4, 8), Way::ReadAhead);
        assert_eq!(megabytes(Way::ReadAhead, 4, 80), Way::Populate);
        assert_eq!(megabytes(Way::Populate, 100, 100), Way::Populate);
    }
}
