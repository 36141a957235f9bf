//! Whether a mark has to wake the keeper.

use super::sync::{AtomicU8, Ordering};

/// Whether the keeper looks for marks. Sequentially consistent, as the words are:
/// the keeper falls asleep, then looks at the words once more; who marks changes
/// the word, then looks here. One of the two sees the other.
#[derive(Debug)]
pub(super) struct Wakefulness(AtomicU8);

/// There is no keeper.
const GONE: u8 = 0;
/// All that is volatile is offered, or nothing is.
const ASLEEP: u8 = 1;
/// Looks for what is due.
const AWAKE: u8 = 2;

impl Wakefulness {
    /// Of no keeper. `state` is zero.
    pub(super) const fn gone(state: AtomicU8) -> Self {
        Self(state)
    }

    /// Whether what has just been marked would not be seen.
    #[inline]
    pub(super) fn must_be_woken(&self) -> bool {
        self.0.load(Ordering::SeqCst) != AWAKE
    }

    /// Has the keeper look again, by who holds the engine, and then has to notify
    /// it. Returns whether there was none: then one has to be started.
    #[must_use]
    pub(super) fn wake(&self) -> bool {
        self.0.swap(AWAKE, Ordering::SeqCst) == GONE
    }

    /// Says that there is no keeper: it could not be started, or this is a child.
    pub(super) fn forget(&self) {
        self.0.store(GONE, Ordering::SeqCst);
    }

    /// Whether the keeper, which holds the engine, may wait until it is woken:
    /// nothing is due.
    pub(super) fn falls_asleep(&self, has_due: impl Fn() -> bool) -> bool {
        !has_due() && self.becomes(ASLEEP, has_due)
    }

    /// Whether the keeper, which holds the engine, may end: nothing is due.
    pub(super) fn leaves(&self, has_due: impl Fn() -> bool) -> bool {
        self.becomes(GONE, has_due)
    }

    fn becomes(&self, state: u8, has_due: impl Fn() -> bool) -> bool {
        self.0.store(state, Ordering::SeqCst);
        // A word may have been marked before it could see that.
        if has_due() {
            self.0.store(AWAKE, Ordering::SeqCst);
            return false;
        }
        true
    }
}
