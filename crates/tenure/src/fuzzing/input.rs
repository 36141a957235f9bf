//! Bytes taken for what a body needs.

use crate::ground::range::PageRange;
use crate::ground::sys::page_size;

/// How many pages a model has.
pub(crate) const PAGES: usize = 32;

/// One thing to do, to the pages `from..to`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) what: u8,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) more: u8,
}

/// Four bytes are a step; no step is of no pages.
pub(crate) fn steps(data: &[u8]) -> impl Iterator<Item = Step> {
    let (steps, _) = data.as_chunks();
    steps.iter().map(|&[what, from, count, more]| {
        let from = usize::from(from) % PAGES;
        let to = from + 1 + usize::from(count) % (PAGES - from);
        Step {
            what,
            from,
            to,
            more,
        }
    })
}

/// These pages of a model, at addresses that nothing has.
pub(crate) fn range(from: usize, to: usize) -> PageRange {
    let page = |index| (index + 16) * page_size();
    PageRange::between(page(from), page(to))
}

/// Numbers, one behind the other; zeros when there are no more bytes.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl Input<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// A number of up to as many bits: small ones are as likely as large ones.
    pub(crate) fn number(&mut self, bits: u32) -> u64 {
        let shift = u32::from(self.byte()) % bits;
        let number = (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte()));
        number >> (u64::BITS - bits + shift)
    }
}
