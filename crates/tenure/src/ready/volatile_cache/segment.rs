//! A segment: memory that is volatile, pinned and given up as a whole.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::ground::sys::fork;
use crate::verbs::volatile::{
    Outcome, Pins, Priority, Unpinned, VolatileBuffer, is_offered_at_once,
};

/// The memory of one large value, or of several small ones. It is volatile while it has no
/// pins; these are counted in the word of the buffer, so that a pin of what the kernel has
/// not been offered is one compare-and-swap.
#[derive(Debug)]
pub(super) struct Segment {
    /// Of the buffer, at hand for the end of a guard.
    pins: Pins,
    process: Process,
    buffer: VolatileBuffer,
    /// Held while the kernel is asked for the pages: of several threads one does it.
    revoking: Mutex<()>,
    reserved: Reserved,
}

/// The result of pinning a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PinResult {
    Pinned,
    /// Purged, and pinned until the caller has given it up.
    Purged,
    /// Purged, not pinned: another thread gives it up.
    Stale,
    /// The kernel has failed to make it nonvolatile; a later call may succeed.
    Failed,
}

/// The state of the contents of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contents {
    Intact,
    Purged,
    /// The kernel does not tell at this moment.
    Unknown,
}

impl Segment {
    /// Takes over a populated buffer. The segment has one pin, which the caller has.
    pub(super) fn pinned(
        mut buffer: VolatileBuffer,
        priority: Priority,
        reserved: Reserved,
    ) -> Arc<Self> {
        buffer.set_pinned(priority);
        Arc::new(Self {
            pins: buffer.pins(),
            process: Process::this(),
            buffer,
            revoking: Mutex::new(()),
            reserved,
        })
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.buffer.as_ptr()
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        NonNull::new(self.buffer.as_ptr()).expect("page 0 is never mapped")
    }

    /// The bytes of whole pages, and of what the caller has counted besides.
    pub(super) fn memory_bytes(&self) -> usize {
        self.reserved.bytes
    }

    /// Returns the pins, for a look-up that does not look at the segment itself.
    pub(super) fn pins(&self) -> Pins {
        self.pins
    }

    /// Returns the address for a guard, which is made an `Arc` of again by the last pin of a
    /// detached segment: for that, one that came from a reference is no good.
    pub(super) fn address(this: &Arc<Self>) -> NonNull<Self> {
        NonNull::new(Arc::as_ptr(this).cast_mut()).expect("never null")
    }

    /// Adds a pin without a system call; `false` if the kernel has been offered the segment.
    #[inline]
    pub(super) fn try_pin(&self) -> bool {
        // SAFETY: the buffer lives as long as this.
        unsafe { self.pins.try_pin() }
    }

    /// Adds a pin, also if the kernel has been offered the segment.
    pub(super) fn pin(&self) -> PinResult {
        let _revoking = fork::lock_outer(&self.revoking);
        match self.buffer.pin() {
            Ok(Some(Outcome::Intact)) => PinResult::Pinned,
            Ok(Some(Outcome::Purged(_))) => PinResult::Purged,
            Ok(None) => PinResult::Stale,
            Err(_) => PinResult::Failed,
        }
    }

    /// Subtracts a pin of the caller's, and frees the segment if it was the last one of a
    /// detached segment.
    ///
    /// # Safety
    ///
    /// The caller has a pin.
    pub(super) unsafe fn unpin(this: &Arc<Self>) {
        // SAFETY: handed on to the caller.
        unsafe { Self::unpin_at(Self::address(this)) };
    }

    /// As [`unpin`](Self::unpin), but nothing in a forked child, whose copy of the cache stays
    /// as it is: another thread of the parent's may have been changing it.
    ///
    /// # Safety
    ///
    /// The caller has a pin, and the address is from [`address`](Self::address).
    #[inline]
    pub(super) unsafe fn unpin_at(this: NonNull<Self>) {
        // SAFETY: a segment with a pin is alive. After the pin is gone, it is not used.
        let (pins, process) = unsafe { (this.as_ref().pins, this.as_ref().process) };
        if !process.is_current() || is_offered_at_once() {
            // SAFETY: handed on to the caller.
            return unsafe { Self::unpin_slowly(this) };
        }
        // SAFETY: handed on to the caller.
        if unsafe { pins.unpin() } == Unpinned::Detached {
            // SAFETY: the last pin of a detached segment is gone.
            unsafe { Self::free_detached(this) };
        }
    }

    /// Does what [`unpin_at`](Self::unpin_at) does, also in a child or during a fork, and offers
    /// the segment before it returns if the program wants that.
    ///
    /// # Safety
    ///
    /// As for [`unpin_at`](Self::unpin_at).
    #[cold]
    #[inline(never)]
    unsafe fn unpin_slowly(this: NonNull<Self>) {
        // SAFETY: as in `unpin_at`.
        let (pins, process) = unsafe { (this.as_ref().pins, this.as_ref().process) };
        if !process.is_this() {
            return;
        }
        // SAFETY: handed on to the caller.
        unsafe {
            match is_offered_at_once() {
                true => Self::unpin_and_offer(this),
                false if pins.unpin() == Unpinned::Detached => Self::free_detached(this),
                false => {}
            }
        }
    }

    /// Drops the reference that [`Attached`] has left to the last pin.
    ///
    /// # Safety
    ///
    /// Unpinning the segment has returned [`Unpinned::Detached`].
    #[cold]
    #[inline(never)]
    unsafe fn free_detached(this: NonNull<Self>) {
        // SAFETY: the caller's.
        drop(unsafe { Arc::from_raw(this.as_ptr()) });
    }

    /// Does what [`unpin_at`](Self::unpin_at) does, and offers the segment before it returns.
    ///
    /// # Safety
    ///
    /// As for [`unpin_at`](Self::unpin_at).
    unsafe fn unpin_and_offer(this: NonNull<Self>) {
        // SAFETY: it has a pin, so it is alive. The new reference keeps it so.
        let segment = unsafe {
            Arc::increment_strong_count(this.as_ptr());
            Arc::from_raw(this.as_ptr())
        };
        // SAFETY: handed on to the caller.
        match unsafe { segment.pins.unpin() } {
            Unpinned::StillPinned => {}
            Unpinned::Volatile => segment.buffer.offer(),
            // SAFETY: the last pin of a detached segment is gone.
            Unpinned::Detached => unsafe { Self::free_detached(this) },
        }
    }

    /// Whether there are no pins at this moment.
    pub(super) fn is_idle(&self) -> bool {
        self.buffer.is_volatile()
    }

    /// Returns the state of the contents of a segment without pins.
    pub(super) fn contents(&self) -> Contents {
        if self.buffer.is_known_purged() {
            return Contents::Purged;
        }
        match self.buffer.is_intact() {
            Ok(true) => Contents::Intact,
            Ok(false) => Contents::Purged,
            Err(_) => Contents::Unknown,
        }
    }
}

/// The cache's reference to a segment. Dropping it frees the segment, now or with its last
/// pin.
#[derive(Debug)]
pub(super) struct Attached(Option<Arc<Segment>>);

impl Attached {
    pub(super) fn new(segment: Arc<Segment>) -> Self {
        Self(Some(segment))
    }

    /// Frees the segment before this returns, unless it is pinned. Returns whether it did.
    pub(super) fn free_sync(mut self) -> bool {
        if self.buffer.detach() {
            // The last pin drops this reference.
            std::mem::forget(self);
            return false;
        }
        match self.0.take().and_then(Arc::into_inner) {
            Some(segment) => {
                segment.buffer.free_sync();
                true
            }
            // A look-up has a reference for this moment.
            None => false,
        }
    }
}

impl Deref for Attached {
    type Target = Arc<Segment>;

    fn deref(&self) -> &Arc<Segment> {
        self.0.as_ref().expect("only dropping takes it")
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Some(segment) = self.0.take()
            && segment.buffer.detach()
        {
            // The last pin drops this reference.
            std::mem::forget(segment);
        }
    }
}

/// Bytes that count against the limit of a cache until this is dropped.
#[derive(Debug)]
pub(super) struct Reserved {
    used: Arc<AtomicUsize>,
    bytes: usize,
}

impl Reserved {
    /// Reserves the bytes unless that exceeds the limit.
    pub(super) fn try_new(used: &Arc<AtomicUsize>, bytes: usize, max_bytes: usize) -> Option<Self> {
        let sum = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= max_bytes);
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        used.fetch_update(success, failure, sum).ok()?;
        let used = used.clone();
        Some(Self { used, bytes })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The identity of a process: a forked child compares as different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process(usize);

impl Process {
    #[inline]
    pub(super) fn this() -> Self {
        // No process has forked so often.
        Self(fork::generation().unwrap_or(usize::MAX))
    }

    #[inline]
    pub(super) fn is_this(self) -> bool {
        self.is_current() || self.is_this_in_fork()
    }

    /// As [`is_this`](Self::is_this), at the cost of a load; `false` during a fork.
    #[inline]
    fn is_current(self) -> bool {
        fork::is_current(self.0)
    }

    #[cold]
    fn is_this_in_fork(self) -> bool {
        self == Self::this()
    }
}
