//! Which addresses belong to the heap.

use super::sync::{AtomicUsize, Ordering};

/// A range of addresses: empty until it is set, once. Any thread may free a block of
/// another allocator meanwhile, which must not pass for the heap's.
#[derive(Debug)]
pub(crate) struct Addresses {
    base: AtomicUsize,
    /// Stored last and loaded first: a thread that sees the length sees the base, and all
    /// that was written before.
    bytes: AtomicUsize,
}

impl Addresses {
    /// Makes an empty range. Both atomics are zero.
    pub(crate) const fn none(base: AtomicUsize, bytes: AtomicUsize) -> Self {
        Self { base, bytes }
    }

    pub(crate) fn set(&self, base: usize, bytes: usize) {
        self.base.store(base, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Release);
    }

    #[inline]
    pub(crate) fn contains(&self, address: usize) -> bool {
        let bytes = self.bytes.load(Ordering::Acquire);
        self.offset_of(address) < bytes
    }

    /// Returns how far an address of the range is from its start.
    #[inline]
    pub(crate) fn offset_of(&self, address: usize) -> usize {
        address.wrapping_sub(self.base.load(Ordering::Relaxed))
    }
}
