//! One value: who holds it, and its memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::pinned::Pinned;
use crate::ground::sys::fork;
use crate::verbs::{Outcome, Priority, VolatileBuffer};

/// A value, in the cache or on its way out. Its mutex is held while the kernel is
/// asked about its pages; no other one of the cache's is taken inside.
#[derive(Debug)]
pub(super) struct Slot {
    /// The length of the value; its buffer is longer if it is empty.
    pub(super) len: usize,
    pub(super) priority: Priority,
    /// What it takes, in bytes of whole pages.
    pub(super) memory_bytes: usize,
    /// When it was last asked for, in the time of its shard.
    pub(super) used_at: AtomicU64,
    /// Set for good when the cache gives the value up.
    gone: AtomicBool,
    process: Process,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// How many guards there are. Each has a reference to the buffer, and drops
    /// it before it is counted out.
    pins: usize,
    /// Volatile while there are no guards; none when the memory is given back.
    buffer: Option<Arc<VolatileBuffer>>,
}

/// What has come of asking for a value.
pub(super) enum Asked {
    Pinned(Pinned),
    /// It was found purged, and given up by this call.
    Purged,
    /// It had been given up before.
    Gone,
}

/// How a value was found when it was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Was {
    Whole,
    Purged,
}

impl Slot {
    /// Makes a slot of a buffer that has been filled. It is volatile from here on.
    pub(super) fn volatile(mut buffer: VolatileBuffer, len: usize, priority: Priority) -> Self {
        buffer.mark_volatile_with(priority);
        Self::new(Arc::new(buffer), 0, len, priority)
    }

    /// The same with a guard, and so not volatile.
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
            gone: AtomicBool::new(false),
            process: Process::this(),
            state: Mutex::new(State {
                pins,
                buffer: Some(buffer),
            }),
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Whether the mutex is this process's; in a child after fork a thread that
    /// is not there may hold it.
    pub(super) fn is_ours(&self) -> bool {
        self.process.is_this()
    }

    /// Makes the value safe from being taken, for as long as the guard lives.
    pub(super) fn pin(self: &Arc<Self>) -> Asked {
        let mut state = self.lock();
        if self.is_gone() {
            return Asked::Gone;
        }
        let Some(buffer) = &mut state.buffer else {
            return Asked::Gone;
        };
        // Nobody else has a reference to it if there are no guards.
        if let Some(unpinned) = Arc::get_mut(buffer)
            && unpinned.mark_nonvolatile() != Ok(Outcome::Intact)
        {
            // What the kernel cannot bring back is as good as purged.
            self.give_up_locked(state);
            return Asked::Purged;
        }
        let buffer = buffer.clone();
        state.pins += 1;
        Asked::Pinned(Pinned::of(self.clone(), buffer))
    }

    /// Counts a guard out, which has dropped its reference to the buffer.
    pub(super) fn unpin(&self) {
        let mut state = self.lock();
        state.pins -= 1;
        if state.pins > 0 {
            return;
        }
        if self.is_gone() {
            let buffer = state.buffer.take();
            drop(state);
            drop(buffer);
        } else if let Some(unpinned) = state.buffer.as_mut().and_then(Arc::get_mut) {
            unpinned.mark_volatile_with(self.priority);
        }
    }

    /// Has the cache have it no more. The memory is given back now, or with the
    /// last guard. Returns whether it was the cache's until now.
    pub(super) fn give_up(&self) -> bool {
        let state = self.lock();
        let was_kept = !self.is_gone();
        self.give_up_locked(state);
        was_kept
    }

    /// The same for a value that nobody holds or asks for at the moment.
    pub(super) fn give_up_if_idle(&self) -> Option<Was> {
        let state = self.idle()?;
        let was = state.find();
        self.give_up_locked(state);
        Some(was)
    }

    /// The same for one that has been purged besides. Returns whether it has.
    pub(super) fn give_up_if_purged(&self) -> bool {
        let Some(state) = self.idle().filter(|state| state.find() == Was::Purged) else {
            return false;
        };
        self.give_up_locked(state);
        true
    }

    pub(super) fn is_idle(&self) -> bool {
        self.idle().is_some()
    }

    /// Whether a guard could be had at this moment.
    pub(super) fn is_whole(&self) -> bool {
        let state = self.lock();
        !self.is_gone() && state.find() == Was::Whole
    }

    fn idle(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.state.try_lock().ok()?;
        (state.pins == 0 && !self.is_gone()).then_some(state)
    }

    fn give_up_locked(&self, mut state: MutexGuard<'_, State>) {
        self.gone.store(true, Ordering::Relaxed);
        let buffer = match state.pins {
            0 => state.buffer.take(),
            _ => None,
        };
        // Freeing takes its time.
        drop(state);
        drop(buffer);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn find(&self) -> Was {
        match self.buffer.as_ref().map(|buffer| buffer.is_whole()) {
            Some(Ok(true)) => Was::Whole,
            _ => Was::Purged,
        }
    }
}

/// A process and not a child that is a copy of it.
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
