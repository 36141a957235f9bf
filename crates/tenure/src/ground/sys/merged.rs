//! Pages that the kernel has merged with equal ones (KSM). To move them it first gives each a
//! page of its own (`mremap(2)`), while to unmap or discard them takes no memory. To free them
//! lazily loses data: Linux (measured on 6.18) merges another process's page with one that
//! `madvise(MADV_FREE)` has marked, and then discards both.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use super::page_size;
use super::process::monotonic_coarse_nanos;

/// How much may be merged that a move still unmerges: it takes about a millisecond.
const MAX_BYTES: usize = 4 << 20;

/// How long a reading holds: to open the file takes up to 30 µs.
const MAX_AGE: Duration = Duration::from_millis(100);

/// The most that were merged at a reading. The kernel tells a child of a fork nothing of the
/// merged pages that it has from its parent.
static MAX_MERGED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// When the file was read last, on the monotonic clock; 0 before.
static READ_AT_NANOS: AtomicU64 = AtomicU64::new(0);

/// Returns whether so many pages of this process are merged, or were, that memory should not
/// be moved.
pub(crate) fn are_many() -> bool {
    exceed(MAX_BYTES)
}

/// Returns whether pages of this process are merged, or were.
pub(crate) fn are_any() -> bool {
    exceed(0)
}

/// Returns whether more pages are merged, or were: `/proc/thread-self/ksm_merging_pages` (Linux
/// 5.19). False where the kernel does not tell.
fn exceed(bytes: usize) -> bool {
    if MAX_MERGED_BYTES.load(Relaxed) > bytes {
        return true;
    }
    let now = monotonic_coarse_nanos();
    let age = now.saturating_sub(READ_AT_NANOS.load(Relaxed));
    if Duration::from_nanos(age) < MAX_AGE {
        return false;
    }
    READ_AT_NANOS.store(now, Relaxed);
    let merged_bytes = read_pages().unwrap_or(0).saturating_mul(page_size());
    MAX_MERGED_BYTES
        .fetch_max(merged_bytes, Relaxed)
        .max(merged_bytes)
        > bytes
}

/// Reads the file without memory of the allocator.
fn read_pages() -> Option<usize> {
    let path = c"/proc/thread-self/ksm_merging_pages";
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 24];
    let len = rustix::io::read(&file, &mut text).ok()?;
    std::str::from_utf8(&text[..len]).ok()?.trim().parse().ok()
}
