//! The faster of two methods to populate a file, found by measuring both.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::plan::Method;

/// Chooses between populating a file directly and reading ahead first, for all
/// workers of one call together.
///
/// The kernel's own read-ahead, which MADV_POPULATE triggers, is faster, unless
/// the mapping has MADV_RANDOM advice: then pages are read one at a time. The
/// kernel has no call that returns this advice, so the speed has to show it.
#[derive(Debug, Default)]
pub(super) struct FileMethod {
    populate: Speed,
    read_ahead: Speed,
}

/// Below 200 MB/s the other method is tried.
const SLOW_NANOSECONDS_PER_KIB: u64 = 5000;

/// A method is judged after this many bytes: the first page that is read ahead
/// waits for all pages of its batch.
const MIN_SAMPLE_BYTES: u64 = 4 << 20;

impl FileMethod {
    pub(super) fn choose(&self) -> Method {
        match (
            self.populate.nanoseconds_per_kib(),
            self.read_ahead.nanoseconds_per_kib(),
        ) {
            (Some(SLOW_NANOSECONDS_PER_KIB..), None) => Method::ReadAhead,
            (Some(populate), Some(read_ahead)) if read_ahead < populate => Method::ReadAhead,
            _ => Method::Populate,
        }
    }

    pub(super) fn record(&self, method: Method, bytes: usize, elapsed: Duration) {
        match method {
            Method::Populate => self.populate.add(bytes, elapsed),
            Method::ReadAhead => self.read_ahead.add(bytes, elapsed),
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
    fn add(&self, bytes: usize, elapsed: Duration) {
        let nanoseconds = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn nanoseconds_per_kib(&self) -> Option<u64> {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let nanoseconds = self.nanoseconds.load(Ordering::Relaxed);
        (bytes >= MIN_SAMPLE_BYTES).then(|| nanoseconds / (bytes / 1024))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_method_after_slow_populate_tries_read_ahead_and_keeps_the_faster() {
        let file_method = FileMethod::default();
        let megabytes = |method, count: usize, milliseconds| {
            file_method.record(method, count << 20, Duration::from_millis(milliseconds));
            file_method.choose()
        };
        assert_eq!(file_method.choose(), Method::Populate);
        assert_eq!(
            megabytes(Method::Populate, 1, 20),
            Method::Populate,
            "the sample is too small"
        );
        assert_eq!(megabytes(Method::Populate, 3, 1), Method::ReadAhead);
        assert_eq!(megabytes(Method::ReadAhead, 4, 8), Method::ReadAhead);
        assert_eq!(megabytes(Method::ReadAhead, 4, 80), Method::Populate);
        assert_eq!(megabytes(Method::Populate, 100, 100), Method::Populate);
    }
}
