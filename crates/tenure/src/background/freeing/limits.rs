//! The limits on pending bytes and on the number of workers.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The default maximum number of worker threads.
const DEFAULT_MAX_ACTIVE: usize = 4;

static MAX_ACTIVE: AtomicUsize = AtomicUsize::new(DEFAULT_MAX_ACTIVE);
static MAX_PENDING_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Process-wide limits on the deferred frees of
/// [`munmap`](crate::Mapping::munmap), [`discard`](crate::Mapping::discard) and
/// dropped mappings.
///
/// ```
/// tenure::release::ReleaseLimits::default().max_active(1).set();
/// # tenure::release::ReleaseLimits::default().set();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "limits apply once they are `set`"]
pub struct ReleaseLimits {
    max_active: usize,
    max_pending_bytes: Option<usize>,
}

impl Default for ReleaseLimits {
    /// At most 4 workers, and pending bytes of at most half of the
    /// headroom.
    fn default() -> Self {
        Self {
            max_active: DEFAULT_MAX_ACTIVE,
            max_pending_bytes: None,
        }
    }
}

impl ReleaseLimits {
    /// Limits the number of worker threads; at least one. tenure runs more of
    /// them than increase the throughput only while a caller waits, and more of
    /// them than CPUs only while memory is short.
    pub fn max_active(mut self, workers: usize) -> Self {
        self.max_active = workers.max(1);
        self
    }

    /// Limits the pending bytes further than half of the headroom: while
    /// at least that many are pending, callers free their memory themselves. A
    /// single range may be longer.
    pub fn max_pending_bytes(mut self, bytes: usize) -> Self {
        self.max_pending_bytes = Some(bytes.max(1));
        self
    }

    /// Applies the limits from now on.
    pub fn set(self) {
        MAX_ACTIVE.store(self.max_active, Ordering::Relaxed);
        let bytes = self.max_pending_bytes.unwrap_or(usize::MAX);
        MAX_PENDING_BYTES.store(bytes, Ordering::Relaxed);
    }
}

/// Returns the maximum number of workers on `cpus` CPUs.
pub(super) fn max_active(cpus: usize) -> usize {
    MAX_ACTIVE.load(Ordering::Relaxed).min(cpus)
}

/// Returns the pending bytes from which on callers free their memory
/// themselves, whatever the headroom is.
pub(super) fn max_pending_bytes() -> usize {
    MAX_PENDING_BYTES.load(Ordering::Relaxed)
}
