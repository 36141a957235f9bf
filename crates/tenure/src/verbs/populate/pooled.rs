//! Populating from the page pool.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::background::pool::{self, BLOCK_BYTES};
use crate::ground::error::Result;
use crate::ground::range::PageRange;
use crate::ground::sys::{pagemap, pmd_bytes};

/// Which blocks suit the memory of a call. The first that the kernel populates there tells
/// whether it has huge pages, by advice or by default.
#[derive(Debug, Default)]
pub(super) struct Pooled(AtomicU8);

const BASE: u8 = 1;
const HUGE: u8 = 2;

impl Pooled {
    /// Fills a chunk, which begins and ends on boundaries of blocks, from the pool, and calls
    /// `prefault` for the parts that the pool has not filled.
    pub(super) fn fill(
        &self,
        chunk: PageRange,
        prefault: impl Fn(PageRange) -> Result<()>,
    ) -> Result<()> {
        let (is_huge, rest) = match self.0.load(Ordering::Relaxed) {
            BASE => (false, chunk),
            HUGE => (true, chunk),
            _ => {
                let end = chunk.start() + BLOCK_BYTES.min(chunk.len());
                let first = PageRange::between(chunk.start(), end);
                let is_huge = pmd_bytes() == BLOCK_BYTES && {
                    prefault(first)?;
                    let middle = first.start() + first.len() / 2;
                    pagemap::is_inside_huge_page(middle) == Some(true)
                };
                let kind = if is_huge { HUGE } else { BASE };
                self.0.store(kind, Ordering::Relaxed);
                match pmd_bytes() == BLOCK_BYTES {
                    true => (is_huge, PageRange::between(end, chunk.end())),
                    false => (is_huge, chunk),
                }
            }
        };
        if rest.is_empty() {
            return Ok(());
        }
        pool::fill(rest, Some(is_huge), prefault)
    }
}
