//! `Pinned`: a guard that keeps a value nonvolatile.

use std::fmt;
use std::mem;
use std::ops::Deref;
use std::sync::Arc;

use super::slot::Slot;
use crate::verbs::volatile::VolatileBuffer;

/// The bytes of a value of a [`VolatileCache`](super::VolatileCache), which are
/// nonvolatile as long as this guard lives.
///
/// It borrows nothing: it may be sent to other threads, and may outlive the cache. If
/// the value is replaced or removed in the meantime, the guard keeps the old bytes.
/// Pinned values cannot be reclaimed, so a program that holds many keeps the cache from
/// following memory pressure.
pub struct Pinned(Held);

enum Held {
    Cached(Pin),
    /// The cache refused the value because memory was unavailable.
    Uncached(Vec<u8>),
}

struct Pin {
    slot: Arc<Slot>,
    /// `None` only while the pin is dropped.
    buffer: Option<Arc<VolatileBuffer>>,
}

impl Pinned {
    /// Wraps a pin that the slot has counted already.
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
                &bytes.expect("a pinned value is not volatile")[..pin.slot.len]
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
            // Leaked: a forked child leaves its copy of the cache as it is.
            mem::forget(self.buffer.take());
            mem::forget(self.slot.clone());
        }
    }
}
