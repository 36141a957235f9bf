//! Readers of a lock that write to no memory which other readers write.

use super::sync::{AtomicU8, AtomicUsize, Ordering};

/// The lock that a thread reads under, in a word that no other thread writes. A reader takes
/// one locked instruction, on a cache line of its own; two for a word that all readers change,
/// which moves from CPU to CPU.
///
/// Sequentially consistent: a reader stores its lock, then looks whether a writer has closed it;
/// a writer closes it, then looks for readers. One of the two sees the other.
#[derive(Debug)]
pub(crate) struct ReaderSlot(AtomicUsize);

/// No lock.
const NONE: usize = 0;

impl ReaderSlot {
    /// Makes the slot of a thread that reads under no lock. `word` is zero.
    pub(crate) const fn new(word: AtomicUsize) -> Self {
        Self(word)
    }

    /// Begins to read under the lock with that address. Fails if it is closed, and if the thread
    /// reads under another one.
    #[inline]
    pub(crate) fn try_enter(&self, lock: usize, door: &Door) -> bool {
        if self.0.load(Ordering::Relaxed) != NONE {
            return false;
        }
        self.0.store(lock, Ordering::SeqCst);
        if door.is_open() {
            return true;
        }
        self.leave();
        false
    }

    /// Ends what [`try_enter`](Self::try_enter) has begun.
    #[inline]
    pub(crate) fn leave(&self) {
        self.0.store(NONE, Ordering::Release);
    }

    /// Whether the thread reads under that lock: asked by a writer that has closed it.
    pub(crate) fn is_inside(&self, lock: usize) -> bool {
        self.0.load(Ordering::SeqCst) == lock
    }
}

/// Whether a writer has closed a lock.
#[derive(Debug)]
pub(crate) struct Door(AtomicU8);

const OPEN: u8 = 0;
const CLOSED: u8 = 1;

impl Door {
    /// Makes an open one. `state` is zero.
    pub(crate) const fn open(state: AtomicU8) -> Self {
        Self(state)
    }

    #[inline]
    fn is_open(&self) -> bool {
        self.0.load(Ordering::SeqCst) == OPEN
    }

    /// Lets no further reader in. The caller waits for those that are inside then, and is the
    /// only writer.
    pub(crate) fn close(&self) {
        self.0.store(CLOSED, Ordering::SeqCst);
    }

    /// Lets readers in again.
    pub(crate) fn reopen(&self) {
        self.0.store(OPEN, Ordering::Release);
    }
}
