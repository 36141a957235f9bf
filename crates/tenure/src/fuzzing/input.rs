//! Decoding of fuzzer bytes into steps and numbers.

use crate::ground::range::PageRange;
use crate::ground::sys::page_size;

/// The pages of a model.
pub(crate) const PAGES: usize = 32;

/// One operation on the pages `from..to`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) what: u8,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) more: u8,
}

/// Decodes four bytes to a step; no step is empty.
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

/// Returns these pages of a model, at addresses that nothing uses.
pub(crate) fn range(from: usize, to: usize) -> PageRange {
    let page = |index| (index + 16) * page_size();
    PageRange::between(page(from), page(to))
}

/// A sequence of numbers; zeros when the bytes are used up.
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

    /// Returns a number of up to so many bits: small ones are as likely as
    /// large ones.
    pub(crate) fn number(&mut self, bits: u32) -> u64 {
        let shift = u32::from(self.byte()) % bits;
        let number = (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte()));
        number >> (u64::BITS - bits + shift)
    }
}
