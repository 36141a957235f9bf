//! Whether a mark has to unpark the offer thread.

use super::sync::{AtomicU8, Ordering};

/// Whether the offer thread looks for marks. Sequentially consistent, as the words are:
/// the offer thread parks, then reads the words once more; a marking thread changes the
/// word, then reads this. One of the two sees the other.
#[derive(Debug)]
pub(crate) struct ParkState(AtomicU8);

/// There is no offer thread.
const ABSENT: u8 = 0;
/// It waits: all that is volatile is offered, or nothing is volatile.
const PARKED: u8 = 1;
/// It looks for due ranges.
const RUNNING: u8 = 2;

impl ParkState {
    /// Says that there is no thread. `state` is zero.
    pub(crate) const fn absent(state: AtomicU8) -> Self {
        Self(state)
    }

    /// Whether the thread would miss what the caller has just marked.
    #[inline]
    pub(crate) fn needs_unpark(&self) -> bool {
        self.0.load(Ordering::SeqCst) != RUNNING
    }

    /// Whether the thread looks for marks. After it has parked, with ENGINE locked: whether
    /// it has been unparked since.
    pub(crate) fn is_running(&self) -> bool {
        self.0.load(Ordering::SeqCst) == RUNNING
    }

    /// Makes the thread look again. The caller holds ENGINE, and notifies the thread
    /// after that. Returns whether there was none: then the caller starts one.
    #[must_use]
    pub(crate) fn unpark(&self) -> bool {
        self.0.swap(RUNNING, Ordering::SeqCst) == ABSENT
    }

    /// Says that there is no thread: it could not be started, or this is a child.
    pub(crate) fn set_absent(&self) {
        self.0.store(ABSENT, Ordering::SeqCst);
    }

    /// Whether the thread may wait until it is unparked: nothing is due. It locks ENGINE
    /// then and asks whether it has been unparked meanwhile.
    pub(crate) fn try_park(&self, has_due: impl Fn() -> bool) -> bool {
        !has_due() && self.enter(PARKED, has_due)
    }

    /// Whether the thread, which holds ENGINE, may exit: nothing is due.
    pub(crate) fn try_exit(&self, has_due: impl Fn() -> bool) -> bool {
        self.enter(ABSENT, has_due)
    }

    fn enter(&self, state: u8, has_due: impl Fn() -> bool) -> bool {
        self.0.store(state, Ordering::SeqCst);
        // A word may have been marked before its owner could see the new state.
        if has_due() {
            self.0.store(RUNNING, Ordering::SeqCst);
            return false;
        }
        true
    }
}
