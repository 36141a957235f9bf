//! What pages hold.

use tenure::{PageRange, page_size};

use super::cpus::on_one_cpu;
use super::pages;
use super::presence::flush_batch;

/// Writes a pattern of its own to every page; no byte is zero. No page stays in the batch
/// of a CPU that the thread then leaves, where MADV_FREE would skip it: afterwards the
/// kernel can reclaim every page.
pub fn fill(range: PageRange) {
    on_one_cpu(|| {
        for page in 0..range.pages() {
            let at = pages(range, page, 1);
            let bytes = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), page_size()) };
            bytes.copy_from_slice(pattern(at));
        }
        flush_batch();
    });
}

/// Whether every byte is what [`fill`] wrote.
pub fn is_filled(range: PageRange) -> bool {
    (0..range.pages()).all(|page| {
        let at = pages(range, page, 1);
        let bytes = unsafe { std::slice::from_raw_parts(at.as_ptr(), page_size()) };
        bytes == pattern(at)
    })
}

/// Returns what [`fill`] writes to a page: a part of one long row of bytes, at an offset
/// that differs between pages.
pub fn pattern(page: PageRange) -> &'static [u8] {
    row_at(page.start() / page_size())
}

/// Returns as many bytes as a page has, none of them zero, which differ from those at
/// another offset.
pub(super) fn row_at(offset: usize) -> &'static [u8] {
    const SHIFTS: usize = 4093;
    // Not a LazyLock: a child forked while another thread makes it would wait for ever.
    static ROW: [u8; MAX_PAGE_BYTES + SHIFTS] = {
        let mut row = [0; MAX_PAGE_BYTES + SHIFTS];
        let mut index = 0;
        while index < row.len() {
            row[index] = (index * index / 3 + index / 256) as u8 | 1;
            index += 1;
        }
        row
    };
    &ROW[offset % SHIFTS..][..page_size()]
}

/// The largest page of any machine that Linux runs on.
const MAX_PAGE_BYTES: usize = 64 << 10;

pub(super) static ZEROS: [u8; MAX_PAGE_BYTES] = [0; MAX_PAGE_BYTES];

pub fn is_zero(range: PageRange) -> bool {
    let bytes = unsafe { std::slice::from_raw_parts(range.as_ptr(), range.len()) };
    bytes
        .chunks(page_size())
        .all(|page| page == &ZEROS[..page.len()])
}
