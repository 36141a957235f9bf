//! Pages that the kernel has merged with equal ones (KSM). To move them it first gives each a
//! page of its own (`mremap(2)`), while to unmap or discard them takes no memory. To free them
//! lazily loses data: Linux (measured on 6.18) merges another process's page with one that
//! `madvise(MADV_FREE)` has marked, and then discards both.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::mm::Advice;

use super::exclusive::may_share_pages;
use super::page_size;
use super::process::monotonic_coarse_nanos;

/// How much may be merged that a move still unmerges: it takes about a millisecond.
const MAX_BYTES: usize = 4 << 20;

/// How long a reading holds: to open the file takes up to 30 µs.
const MAX_AGE: Duration = Duration::from_millis(100);

/// The kernel tells a child of a fork nothing of the merged pages that it has from its
/// parent, so that this stays set.
static ARE_MANY: AtomicBool = AtomicBool::new(false);

/// When the file was read last, on the monotonic clock; 0 before.
static READ_AT_NANOS: AtomicU64 = AtomicU64::new(0);

/// When the kernel merged nothing, on the monotonic clock; 0 before.
static NONE_AT_NANOS: AtomicU64 = AtomicU64::new(0);

/// Returns whether so many pages of this process are merged, or were, that memory should not
/// be moved: `/proc/thread-self/ksm_merging_pages` (Linux 5.19). False where the kernel does
/// not tell.
pub(crate) fn are_many() -> bool {
    if ARE_MANY.load(Relaxed) {
        return true;
    }
    let now = monotonic_coarse_nanos();
    if !is_older(&READ_AT_NANOS, now) {
        return false;
    }
    READ_AT_NANOS.store(now, Relaxed);
    let pages = read(c"/proc/thread-self/ksm_merging_pages");
    let are_many = pages.is_some_and(|pages| pages.saturating_mul(page_size()) > MAX_BYTES);
    if are_many {
        ARE_MANY.store(true, Relaxed);
    }
    are_many
}

/// Returns whether a page of this process may be merged, and further ones with that: the kernel
/// merges pages, or has, and does not tell that none is of this process. (It tells so only of pages
/// that it has merged in this process itself, not of inherited ones, and only to who may trace it.)
pub(crate) fn may_be_any() -> bool {
    let now = monotonic_coarse_nanos();
    if !is_older(&NONE_AT_NANOS, now) {
        return false;
    }
    let has_none = || read(c"/proc/thread-self/ksm_merging_pages") == Some(0);
    // When it has stopped, the kernel goes on counting pages that are gone.
    let is_off = read(c"/sys/kernel/mm/ksm/run") == Some(0)
        && (read(c"/sys/kernel/mm/ksm/pages_shared") == Some(0) || has_none());
    if is_off || !can_merge() {
        NONE_AT_NANOS.store(now, Relaxed);
        return false;
    }
    may_share_pages() || !has_none()
}

/// Returns whether the kernel can merge pages at all: it knows the advice.
fn can_merge() -> bool {
    // SAFETY: an empty range; the call looks at the advice only.
    unsafe { rustix::mm::madvise(std::ptr::null_mut(), 0, Advice::LinuxUnmergeable) }.is_ok()
}

fn is_older(at_nanos: &AtomicU64, now_nanos: u64) -> bool {
    let age = now_nanos.saturating_sub(at_nanos.load(Relaxed));
    Duration::from_nanos(age) >= MAX_AGE
}

/// Reads a number from a file without memory of the allocator.
fn read(path: &CStr) -> Option<usize> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 24];
    let len = rustix::io::read(&file, &mut text).ok()?;
    std::str::from_utf8(&text[..len]).ok()?.trim().parse().ok()
}
