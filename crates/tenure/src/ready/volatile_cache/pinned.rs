//! `Pinned`: a guard that keeps a value nonvolatile.

use std::fmt;
use std::mem;
use std::ops::Deref;
use std::ptr::NonNull;
use std::slice;

use super::segment::{Handle, Process, Segment};

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

/// A pin of a segment, with the place of the value in it.
struct Pin {
    start: *const u8,
    len: usize,
    segment: Handle,
    process: Process,
}

// SAFETY: the bytes do not change while the segment has a pin, and pins are counted
// atomically.
unsafe impl Send for Pin {}
// SAFETY: as above.
unsafe impl Sync for Pin {}

impl Pinned {
    /// Takes over a pin of the segment.
    ///
    /// # Safety
    ///
    /// The caller has a pin, and `start` and `len` are the place of a filled value in the
    /// segment, which no code writes any more.
    #[inline]
    pub(super) unsafe fn of(
        segment: Handle,
        process: Process,
        start: *const u8,
        len: usize,
    ) -> Self {
        Self(Held::Cached(Pin {
            start,
            len,
            segment,
            process,
        }))
    }

    pub(super) fn uncached(bytes: Vec<u8>) -> Self {
        Self(Held::Uncached(bytes))
    }

    /// Takes the guard apart for the C interface, unless the cache refused the value.
    #[doc(hidden)]
    pub fn into_raw(self) -> Option<(*const u8, usize, NonNull<()>)> {
        match &self.0 {
            Held::Cached(pin) => {
                let parts = (pin.start, pin.len, pin.segment.segment.cast());
                mem::forget(self);
                Some(parts)
            }
            Held::Uncached(_) => None,
        }
    }

    /// Drops a guard that was taken apart.
    ///
    /// # Safety
    ///
    /// `pin` is the last part of what [`into_raw`](Self::into_raw) returned, once.
    #[doc(hidden)]
    pub unsafe fn unpin_raw(pin: NonNull<()>) {
        let segment = pin.cast::<Segment>();
        // SAFETY: a segment is alive while it has a pin, and the pointer came from its handle.
        let (handle, process) =
            unsafe { (Segment::handle_at(segment), segment.as_ref().process()) };
        drop(Pin {
            start: pin.as_ptr().cast(),
            len: 0,
            segment: handle,
            process,
        });
    }
}

impl Deref for Pinned {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            // SAFETY: `of` was given the place of a value in a segment that this has a pin
            // of, so it is there, and nothing writes it.
            Held::Cached(pin) => unsafe { slice::from_raw_parts(pin.start, pin.len) },
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
    #[inline]
    fn drop(&mut self) {
        if self.process.is_this() {
            // SAFETY: this has a pin.
            unsafe { self.segment.unpin() };
        }
        // Otherwise leaked: a forked child leaves its copy of the cache as it is.
    }
}
