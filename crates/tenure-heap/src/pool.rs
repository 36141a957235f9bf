//! Pages of tenure's pool for large blocks.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use tenure::PageRange;

use crate::sys::{self, HugePages};
use crate::table::{self, HUGE};

/// Gives the pages of a new block that are missing from the pool, as far as it has any that
/// suit. The rest takes page faults.
#[cold]
pub(crate) fn fill(at: usize, bytes: usize) {
    let pages = bytes / sys::page_bytes() * sys::page_bytes();
    if let Ok(range) = PageRange::new(at, pages) {
        // SAFETY: a block of the heap that nobody uses yet.
        unsafe { tenure::pool::fill_missing(range, is_huge(at)) };
    }
}

/// Returns whether the block that begins there is to have huge pages, or base pages, if not
/// both are as good. Base pages of the pool would stand where the kernel puts huge ones, and
/// take more time to use.
fn is_huge(at: usize) -> Option<bool> {
    match mode() {
        HugePages::Never => None,
        HugePages::Advised => Some(table::has(at, HUGE)),
        HugePages::Always => Some(true),
    }
}

/// The kernel's setting, which is read once.
fn mode() -> HugePages {
    const UNKNOWN: u8 = u8::MAX;
    static MODE: AtomicU8 = AtomicU8::new(UNKNOWN);
    let known = [HugePages::Never, HugePages::Advised, HugePages::Always];
    if let Some(&mode) = known.get(usize::from(MODE.load(Relaxed))) {
        return mode;
    }
    let mode = sys::huge_pages();
    MODE.store(mode as u8, Relaxed);
    mode
}
