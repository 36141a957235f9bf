//! Aborts when a large block is freed twice, before memory is damaged. jemalloc itself
//! does not detect misuse.
//!
//! Large blocks begin on a boundary of a unit, whose flags tell whether one lives there.

use crate::huge::MIN_BYTES;
use crate::table::{self, FREED, LARGE, UNIT_BYTES};
use crate::{jemalloc, sys};

/// Returns whether the pointer is null, or a unit begins there: only there are flags.
#[inline]
pub(crate) fn may_be_large(ptr: *const u8) -> bool {
    ptr.addr().is_multiple_of(UNIT_BYTES)
}

/// Records that a block was allocated.
#[inline]
pub(crate) fn note_allocated(ptr: *const u8, size: usize) {
    if may_be_large(ptr) && !ptr.is_null() {
        table::clear(ptr.addr(), FREED | LARGE);
        if size >= MIN_BYTES {
            table::set(ptr.addr(), LARGE);
        }
    }
}

/// Records that a block is freed. Aborts if it is a large one that was freed already.
#[inline]
pub(crate) fn note_freed(ptr: *const u8) {
    if may_be_large(ptr) {
        expect_live(ptr, "free");
        if table::clear(ptr.addr(), LARGE) {
            table::set(ptr.addr(), FREED);
        }
    }
}

/// Aborts if the block is a large one that was freed.
#[inline]
pub(crate) fn expect_live(ptr: *const u8, call: &str) {
    if may_be_large(ptr) && table::has(ptr.addr(), FREED) {
        expect_small(ptr, call);
    }
}

/// Aborts unless a smaller block has come to lie where a large one was freed: that one may have
/// been allocated without a note.
#[cold]
fn expect_small(ptr: *const u8, call: &str) {
    let range_bytes = jemalloc::bytes_of_range(ptr);
    if range_bytes == 0 || range_bytes >= MIN_BYTES {
        abort(ptr, call);
    }
    table::clear(ptr.addr(), FREED);
}

#[cold]
pub(crate) fn abort(ptr: *const u8, call: &str) -> ! {
    use std::io::Write as _;

    let mut line = [0; 128];
    let mut rest = &mut line[..];
    // The line is shorter.
    let _ = writeln!(
        rest,
        "tenure: {call} of {ptr:p}: the block has been freed already"
    );
    let rest_bytes = rest.len();
    sys::abort_with(&line[..line.len() - rest_bytes])
}
