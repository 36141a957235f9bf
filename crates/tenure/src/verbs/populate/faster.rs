//! Which of two ways is faster.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::plan::Way;

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
