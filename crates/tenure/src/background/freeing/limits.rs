//! How much may be pending, and how many workers there may be.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ground::sys::{cgroup, process};

const DEFAULT_MAX_ACTIVE: usize = 4;

static MAX_ACTIVE: AtomicUsize = AtomicUsize::new(DEFAULT_MAX_ACTIVE);
/// 0 stands for the default.
static MAX_PENDING_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Limits on what [`munmap`](crate::Mapping::munmap),
/// [`discard`](crate::Mapping::discard) and dropping leave behind, for the whole
/// process.
///
/// ```
/// tenure::ReleaseLimits::default().max_active(1).set();
/// # tenure::ReleaseLimits::default().set();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "limits hold when they are `set`"]
pub struct ReleaseLimits {
    max_active: usize,
    max_pending_bytes: Option<usize>,
}

impl Default for ReleaseLimits {
    /// At most 4 workers, and a quarter of the machine's memory, or of the
    /// lowest limit of a memory cgroup around the process.
    fn default() -> Self {
        Self {
            max_active: DEFAULT_MAX_ACTIVE,
            max_pending_bytes: None,
        }
    }
}

impl ReleaseLimits {
    /// Allows as many worker threads at a time; at least one. There are never
    /// more than CPUs, nor more than free faster together.
    pub fn max_active(mut self, workers: usize) -> Self {
        self.max_active = workers.max(1);
        self
    }

    /// Lets callers free their memory themselves while as many bytes, or more,
    /// wait to be freed. One range may be larger than that.
    pub fn max_pending_bytes(mut self, bytes: usize) -> Self {
        self.max_pending_bytes = Some(bytes.max(1));
        self
    }

    /// Has them hold from now on.
    pub fn set(self) {
        MAX_ACTIVE.store(self.max_active, Ordering::Relaxed);
        let bytes = self.max_pending_bytes.unwrap_or(0);
        MAX_PENDING_BYTES.store(bytes, Ordering::Relaxed);
    }
}

/// How many workers there may be on so many CPUs.
pub(super) fn max_active(cpus: usize) -> usize {
    MAX_ACTIVE.load(Ordering::Relaxed).min(cpus)
}

/// How much may be pending before callers free their memory themselves.
pub(super) fn max_pending_bytes() -> usize {
    match MAX_PENDING_BYTES.load(Ordering::Relaxed) {
        0 => default_pending_bytes(),
        bytes => bytes,
    }
}

fn default_pending_bytes() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let groups = cgroup::limited_groups();
        let limits = groups.iter().map(|group| group.limit_bytes);
        let all_bytes = limits.chain(process::mem_total_bytes()).min();
        all_bytes.map_or(1 << 30, |bytes| bytes / 4)
    })
}
