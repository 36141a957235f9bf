//! Huge pages for large blocks, where the kernel gives them to those who ask.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::options::HeapOptions;
use crate::sys;
use crate::table::{self, HUGE, UNIT_BYTES};

/// Blocks from this size on begin on a boundary of a huge page.
pub(crate) const MIN_BYTES: usize = 4 << 20;

/// Blocks from this size on are advised. The advice stays with the addresses, where smaller
/// blocks may come to lie, each of which then takes whole huge pages.
const MIN_ADVISED_BYTES: usize = 16 << 20;

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
    if !IS_WANTED.load(Relaxed) || bytes < MIN_ADVISED_BYTES {
        return;
    }
    let (start, end) = filled((at, bytes), sys::huge_page_bytes());
    let mut is_new = false;
    for unit in (start..end).step_by(UNIT_BYTES) {
        is_new |= table::set(unit, HUGE);
    }
    if is_new {
        // SAFETY: a block of the heap. If the kernel refuses, the block has base pages.
        let _ = unsafe { sys::advise_huge_pages((start, end - start)) };
    }
}

/// Returns where the huge pages that the part fills begin and end.
fn filled((at, bytes): sys::Part, huge_page_bytes: usize) -> (usize, usize) {
    let start = at.next_multiple_of(huge_page_bytes);
    let end = (at + bytes) / huge_page_bytes * huge_page_bytes;
    (start, end.max(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filled_is_whole_huge_pages_of_any_size() {
        const MIB: usize = 1 << 20;
        let part = |at: usize, bytes: usize| (at * MIB, bytes * MIB);
        let of = |(start, end): (usize, usize)| (start / MIB, end / MIB);
        // Pages of 4, 16 and 64 KiB.
        for (huge, start, end) in [(2, 510, 1538), (32, 512, 1536), (512, 512, 1536)] {
            assert_eq!(of(filled(part(510, 1029), huge * MIB)), (start, end));
        }
        let (start, end) = filled(part(510, 16), 512 * MIB);
        assert_eq!(end - start, 0);
    }
}
