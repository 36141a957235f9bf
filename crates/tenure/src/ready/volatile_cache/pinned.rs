//! A value in use.

use std::fmt;
use std::mem;
use std::ops::Deref;
use std::sync::Arc;

use super::slot::Slot;
use crate::verbs::VolatileBuffer;

/// The bytes of a value of a [`VolatileCache`](super::VolatileCache), which are
/// not taken as long as this lives.
///
/// It borrows nothing: it may be sent to other threads, and outlive the cache. A
/// value that is replaced or removed meanwhile stays as it was for those who hold
/// it. While many are held the cache cannot follow memory pressure.
pub struct Pinned(Held);

enum Held {
    Cached(Pin),
    /// There was no memory to keep it in.
    Uncached(Vec<u8>),
}

struct Pin {
    slot: Arc<Slot>,
    /// None only while it is dropped.
    buffer: Option<Arc<VolatileBuffer>>,
}

impl Pinned {
    /// A guard of a slot, which has counted it in.
    pub(super) fn of(slot: Arc<Slot>, buffer: Arc<VolatileBuffer>) -> Self {
        Self(Held::Cached(Pin {
            slot,
            buffer: Some(buffer),
        }))
    }

    pub(super) fn uncached(bytes: Vec<u8>) -> Self {
        Self(Held::Uncached(bytes))
    }
}

impl Deref for Pinned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Held::Cached(pin) => {
                let buffer = pin.buffer.as_ref();
                let bytes = buffer.and_then(|buffer| buffer.as_slice().ok());
                &bytes.expect("what is pinned is not volatile")[..pin.slot.len]
            }
            Held::Uncached(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.slot.is_ours() {
            drop(self.buffer.take());
            self.slot.unpin();
        } else {
            // The child's copy stays as it is.
            mem::forget(self.buffer.take());
            mem::forget(self.slot.clone());
        }
    }
}
