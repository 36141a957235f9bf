//! A value that was copied out of the cache.

use std::fmt;
use std::ops::Deref;

/// A copy of a value of a [`SharedCache`](super::SharedCache), in memory of this process.
#[derive(Clone)]
pub struct SharedValue {
    bytes: Vec<u8>,
    /// Behind the key.
    value_at: usize,
}

impl SharedValue {
    /// Takes the bytes from `value_at` on, which is in bounds.
    pub(super) fn new(bytes: Vec<u8>, value_at: usize) -> Self {
        Self { bytes, value_at }
    }
}

impl Deref for SharedValue {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.value_at..]
    }
}

impl fmt::Debug for SharedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedValue")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
