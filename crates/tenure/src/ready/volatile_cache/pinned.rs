//! `Pinned`: a guard that keeps a value nonvolatile.

use std::fmt;
use std::mem;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::slice;

use super::segment::Segment;

/// The bytes of a value of a [`VolatileCache`](super::VolatileCache), which are
/// nonvolatile as long as this guard lives.
///
/// It borrows nothing: it may be sent to other threads, and may outlive the cache. If
/// the value is replaced or removed in the meantime, the guard keeps the old bytes.
/// Pinned values cannot be reclaimed, so a program that holds many keeps the cache from
/// following memory pressure.
pub struct Pinned {
    start: NonNull<u8>,
    len: usize,
    /// The pinned segment. A value that the cache refused has none: its bytes are a boxed slice.
    segment: Option<NonNull<Segment>>,
}

// SAFETY: the bytes do not change while the segment has a pin, and pins are counted
// atomically; a boxed slice may be sent.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

/// The place of a value in a segment: what a look-up returns. The path with a system call
/// returns it in memory, and a guard that was made there would be so on each path, and copied.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) start: NonNull<u8>,
    pub(super) len: usize,
    pub(super) segment: NonNull<Segment>,
}

impl Pinned {
    /// Takes over a pin of the segment.
    ///
    /// # Safety
    ///
    /// The caller has a pin, and this is the place of a filled value in the segment, which no
    /// code writes any more.
    #[inline]
    pub(super) unsafe fn of(found: Found) -> Self {
        Self {
            start: found.start,
            len: found.len,
            segment: Some(found.segment),
        }
    }

    pub(super) fn uncached(bytes: Vec<u8>) -> Self {
        let bytes = Box::leak(bytes.into_boxed_slice());
        Self {
            len: bytes.len(),
            start: NonNull::from(bytes).cast(),
            segment: None,
        }
    }

    /// Takes the guard apart for the C interface, unless the cache refused the value.
    #[doc(hidden)]
    pub fn into_raw(self) -> Option<(*const u8, usize, NonNull<()>)> {
        let segment = self.segment?;
        let this = mem::ManuallyDrop::new(self);
        Some((this.start.as_ptr(), this.len, segment.cast()))
    }

    /// Drops a guard that was taken apart.
    ///
    /// # Safety
    ///
    /// `pin` is the last part of what [`into_raw`](Self::into_raw) returned, once.
    #[doc(hidden)]
    pub unsafe fn unpin_raw(pin: NonNull<()>) {
        drop(Self {
            start: pin.cast(),
            len: 0,
            segment: Some(pin.cast()),
        });
    }
}

impl Deref for Pinned {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `of` was given the place of a value in a segment that this has a pin of, so
        // it is there, and nothing writes it; or it is a boxed slice of this guard's.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
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

impl Drop for Pinned {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this is not used any more.
        unsafe { release(self.start, self.len, self.segment) };
    }
}

/// Drops a guard. Its parts are passed by value, and this is never inlined, so that dropping a
/// guard is small enough to be inlined everywhere, where a panic drops it as well: the guard of a
/// hit stays in registers.
///
/// # Safety
///
/// The parts are those of a guard that is not used any more.
#[inline(never)]
unsafe fn release(start: NonNull<u8>, len: usize, segment: Option<NonNull<Segment>>) {
    match segment {
        // SAFETY: the guard has a pin, so the segment is alive.
        Some(segment) => unsafe { Segment::unpin_at(segment) },
        // SAFETY: `uncached` has made it.
        None => unsafe { free_uncached(start, len) },
    }
}

/// Frees the bytes of a value that the cache has refused.
///
/// # Safety
///
/// [`Pinned::uncached`] has leaked them.
#[cold]
#[inline(never)]
unsafe fn free_uncached(start: NonNull<u8>, len: usize) {
    let bytes = ptr::slice_from_raw_parts_mut(start.as_ptr(), len);
    // SAFETY: the caller's.
    drop(unsafe { Box::from_raw(bytes) });
}
