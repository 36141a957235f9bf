//! Huge pages for large blocks, where the kernel gives them to those who ask.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::options::HeapOptions;
use crate::sys;
use crate::table::{self, HUGE, UNIT_BYTES};

/// Blocks from this size on begin on a boundary of a huge page.
pub(crate) const MIN_BYTES: usize = 4 << 20;

static IS_WANTED: AtomicBool = AtomicBool::new(false);

pub(crate) fn start(options: &HeapOptions) {
    // With `always` the kernel needs no advice.
    let is_wanted = options.huge_pages && !sys::huge_pages_are_always();
    IS_WANTED.store(is_wanted, Relaxed);
}

/// Advises huge pages for those that the block fills. The advice stays when the block is
/// freed.
#[cold]
pub(crate) fn advise(at: usize, bytes: usize) {
    if !IS_WANTED.load(Relaxed) || bytes < MIN_BYTES {
        return;
    }
    let (start, end) = (
        at.next_multiple_of(UNIT_BYTES),
        (at + bytes) / UNIT_BYTES * UNIT_BYTES,
    );
    let mut is_new = false;
    for unit in (start..end).step_by(UNIT_BYTES) {
        is_new |= table::set(unit, HUGE);
    }
    if is_new {
        // SAFETY: a block of the heap. If the kernel refuses, the block has base pages.
        let _ = unsafe { sys::advise_huge_pages((start, end - start)) };
    }
}
