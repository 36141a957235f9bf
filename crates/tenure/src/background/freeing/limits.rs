//! The limits on pending bytes and on the number of workers.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ground::sys::once_box::OnceBox;
use crate::ground::sys::{cgroup, process};

/// The default maximum number of worker threads.
const DEFAULT_MAX_ACTIVE: usize = 4;

/// The default maximum of pending bytes is the machine's memory, or the lowest
/// limit of a memory cgroup around the process, divided by this.
const DEFAULT_PENDING_DIVISOR: usize = 4;

/// The default maximum of pending bytes where neither can be read.
const FALLBACK_MAX_PENDING_BYTES: usize = 1 << 30;

static MAX_ACTIVE: AtomicUsize = AtomicUsize::new(DEFAULT_MAX_ACTIVE);
/// In bytes; 0 means the default.
static MAX_PENDING_BYTES: AtomicUsize = AtomicUsize::new(0);

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
    /// At most 4 workers, and pending bytes of at most a quarter of the
    /// machine's memory, or of the lowest limit of a memory cgroup around the
    /// process.
    fn default() -> Self {
        Self {
            max_active: DEFAULT_MAX_ACTIVE,
            max_pending_bytes: None,
        }
    }
}

impl ReleaseLimits {
    /// Limits the number of worker threads; at least one. tenure never runs
    /// more of them than CPUs, nor more than increase the throughput.
    pub fn max_active(mut self, workers: usize) -> Self {
        self.max_active = workers.max(1);
        self
    }

    /// Limits the pending bytes: while at least that many are pending, callers
    /// free their memory themselves. A single range may be longer.
    pub fn max_pending_bytes(mut self, bytes: usize) -> Self {
        self.max_pending_bytes = Some(bytes.max(1));
        self
    }

    /// Applies the limits from now on.
    pub fn set(self) {
        MAX_ACTIVE.store(self.max_active, Ordering::Relaxed);
        let bytes = self.max_pending_bytes.unwrap_or(0);
        MAX_PENDING_BYTES.store(bytes, Ordering::Relaxed);
    }
}

/// Returns the maximum number of workers on `cpus` CPUs.
pub(super) fn max_active(cpus: usize) -> usize {
    MAX_ACTIVE.load(Ordering::Relaxed).min(cpus)
}

/// Returns the pending bytes from which on callers free their memory
/// themselves.
pub(super) fn max_pending_bytes() -> usize {
    match MAX_PENDING_BYTES.load(Ordering::Relaxed) {
        0 => default_pending_bytes(),
        bytes => bytes,
    }
}

fn default_pending_bytes() -> usize {
    static BYTES: OnceBox<usize> = OnceBox::new();
    *BYTES.get_or_init(|| {
        let groups = cgroup::limited_groups();
        let limits = groups.iter().map(|group| group.limit_bytes);
        let all_bytes = limits.chain(process::mem_total_bytes()).min();
        all_bytes.map_or(FALLBACK_MAX_PENDING_BYTES, |bytes| {
            bytes / DEFAULT_PENDING_DIVISOR
        })
    })
}
