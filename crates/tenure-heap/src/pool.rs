//! Pages of tenure's pool for large blocks.

use tenure::PageRange;

use crate::sys;

/// Gives the pages of a new block that are missing from the pool, as far as it has any. The
/// rest takes page faults.
#[cold]
pub(crate) fn fill(at: usize, bytes: usize) {
    let pages = bytes / sys::page_bytes() * sys::page_bytes();
    if let Ok(range) = PageRange::new(at, pages) {
        // SAFETY: a block of the heap that nobody uses yet.
        unsafe { tenure::pool::fill_missing(range, None) };
    }
}
