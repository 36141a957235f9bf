//! One value: its memory and its pins.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::pinned::Pinned;
use crate::ground::sys::fork;
use crate::verbs::volatile::{Outcome, Priority, VolatileBuffer, VolatileOptions};

/// A value, in the cache or detached from it. Its mutex is held while the kernel is
/// asked about its pages; no other mutex of the cache is taken under it.
#[derive(Debug)]
pub(super) struct Slot {
    /// The length of the value; an empty value still has a buffer of one byte.
    pub(super) len: usize,
    pub(super) priority: Priority,
    /// The size of the buffer in bytes of whole pages.
    pub(super) memory_bytes: usize,
    /// The last lookup, by the clock of its shard.
    pub(super) used_at: AtomicU64,
    /// Set, and never cleared, when the cache gives the value up.
    detached: AtomicBool,
    process: Process,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The number of [`Pinned`] guards. Each has a reference to the buffer, and drops
    /// it before it is subtracted here.
    pins: usize,
    /// The buffer, volatile while there are no pins; `None` once it is freed.
    buffer: Option<Arc<VolatileBuffer>>,
}

/// The result of pinning a value.
pub(super) enum PinResult {
    Pinned(Pinned),
    /// The value was found purged, and this call has detached it.
    Purged,
    /// The kernel has failed to make the value nonvolatile; a later call may succeed.
    Failed,
    /// The value was detached before.
    Detached,
}

/// The state of the contents of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contents {
    Intact,
    Purged,
    /// The kernel does not tell at this moment.
    Unknown,
}

impl Slot {
    /// Creates a slot from a filled buffer and marks that volatile.
    pub(super) fn volatile(mut buffer: VolatileBuffer, len: usize, priority: Priority) -> Self {
        buffer.mark_volatile_with(VolatileOptions::new().priority(priority));
        Self::new(Arc::new(buffer), 0, len, priority)
    }

    /// Creates a slot from a filled buffer with one pin, and so not volatile.
    pub(super) fn pinned(
        buffer: VolatileBuffer,
        len: usize,
        priority: Priority,
    ) -> (Arc<Self>, Pinned) {
        let buffer = Arc::new(buffer);
        let slot = Arc::new(Self::new(buffer.clone(), 1, len, priority));
        (slot.clone(), Pinned::of(slot, buffer))
    }

    fn new(buffer: Arc<VolatileBuffer>, pins: usize, len: usize, priority: Priority) -> Self {
        Self {
            len,
            priority,
            memory_bytes: buffer.range().len(),
            used_at: AtomicU64::new(0),
            detached: AtomicBool::new(false),
            process: Process::this(),
            state: Mutex::new(State {
                pins,
                buffer: Some(buffer),
            }),
        }
    }

    pub(super) fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Relaxed)
    }

    /// Whether the slot belongs to this process. In a child after fork it does not: a
    /// thread that does not exist there may hold the mutex.
    pub(super) fn is_ours(&self) -> bool {
        self.process.is_this()
    }

    /// Makes the value nonvolatile for as long as the returned guard lives.
    pub(super) fn pin(self: &Arc<Self>) -> PinResult {
        let mut state = self.lock();
        if self.is_detached() {
            return PinResult::Detached;
        }
        let Some(buffer) = &mut state.buffer else {
            return PinResult::Detached;
        };
        // Without pins this is the only reference to the buffer.
        match Arc::get_mut(buffer).map(VolatileBuffer::mark_nonvolatile) {
            None | Some(Ok(Outcome::Intact)) => {}
            Some(Ok(Outcome::Purged(_))) => {
                self.detach_locked(state);
                return PinResult::Purged;
            }
            Some(Err(_)) => return PinResult::Failed,
        }
        let buffer = buffer.clone();
        state.pins += 1;
        PinResult::Pinned(Pinned::of(self.clone(), buffer))
    }

    /// Subtracts a pin, whose guard has dropped its reference to the buffer.
    pub(super) fn unpin(&self) {
        let mut state = self.lock();
        state.pins -= 1;
        if state.pins > 0 {
            return;
        }
        if self.is_detached() {
            let buffer = state.buffer.take();
            drop(state);
            drop(buffer);
        } else if let Some(unpinned) = state.buffer.as_mut().and_then(Arc::get_mut) {
            unpinned.mark_volatile_with(VolatileOptions::new().priority(self.priority));
        }
    }

    /// Detaches the value from the cache, and frees its memory now or with the last pin.
    /// Returns whether the value was attached before.
    pub(super) fn detach(&self) -> bool {
        let state = self.lock();
        let was_attached = !self.is_detached();
        self.detach_locked(state);
        was_attached
    }

    /// Detaches the value if it has no pins and no thread is using its mutex, and frees its
    /// memory before it returns. Returns the state that its contents had.
    pub(super) fn evict_if_idle(&self) -> Option<Contents> {
        let mut state = self.lock_if_idle()?;
        let contents = state.contents();
        self.detached.store(true, Ordering::Relaxed);
        let buffer = state.buffer.take();
        // The mutex is released first, because freeing takes time.
        drop(state);
        // Without pins this is the only reference to the buffer.
        if let Some(buffer) = buffer.and_then(Arc::into_inner) {
            buffer.free_sync();
        }
        Some(contents)
    }

    /// Detaches the value if it is idle and purged. Returns whether it did.
    pub(super) fn detach_if_purged(&self) -> bool {
        let idle = self.lock_if_idle();
        let Some(state) = idle.filter(|state| state.contents() == Contents::Purged) else {
            return false;
        };
        self.detach_locked(state);
        true
    }

    pub(super) fn is_idle(&self) -> bool {
        self.lock_if_idle().is_some()
    }

    /// Whether [`pin`](Slot::pin) would succeed at this moment.
    pub(super) fn is_intact(&self) -> bool {
        let state = self.lock();
        !self.is_detached() && state.contents() == Contents::Intact
    }

    fn lock_if_idle(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.state.try_lock().ok()?;
        (state.pins == 0 && !self.is_detached()).then_some(state)
    }

    fn detach_locked(&self, mut state: MutexGuard<'_, State>) {
        self.detached.store(true, Ordering::Relaxed);
        let buffer = match state.pins {
            0 => state.buffer.take(),
            _ => None,
        };
        // The mutex is released first, because freeing takes time.
        drop(state);
        drop(buffer);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        fork::lock_outer(&self.state)
    }
}

impl State {
    fn contents(&self) -> Contents {
        match self.buffer.as_ref().map(|buffer| buffer.is_intact()) {
            Some(Ok(true)) => Contents::Intact,
            Some(Ok(false)) | None => Contents::Purged,
            Some(Err(_)) => Contents::Unknown,
        }
    }
}

/// The identity of a process: a forked child compares as different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process(Option<usize>);

impl Process {
    pub(super) fn this() -> Self {
        Self(fork::generation().ok())
    }

    pub(super) fn is_this(self) -> bool {
        self == Self::this()
    }
}
