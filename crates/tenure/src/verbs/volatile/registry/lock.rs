//! The ENGINE lock, and the fork handlers without which nothing may become volatile.

use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicU8};

use super::park_state::ParkState;
use super::state::Registry;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::Errno;
use crate::ground::sys::fork::{ForkMutex, at_fork_once};
use crate::observation::stats;

/// Guards all volatile memory of the process, except for the words of objects.
pub(crate) static ENGINE: EngineLock = EngineLock(ForkMutex::new(Registry::new()));

/// Whether the offer thread runs, sleeps or is absent. A child begins without one.
pub(crate) static OFFER_THREAD: ParkState = ParkState::absent(AtomicU8::new(0));

/// A mutex that a forking thread holds across `fork`.
pub(crate) struct EngineLock(ForkMutex<Registry>);

impl EngineLock {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Registry> {
        self.0.lock()
    }

    /// Locks the registry for a thread that makes memory volatile, which a child has to
    /// protect anew: fails if the fork handlers cannot be registered. All that is in the
    /// registry or the engine came in after this, so that nothing below checks again.
    pub(crate) fn lock_to_insert(&self) -> Result<MutexGuard<'_, Registry>> {
        register_fork_handlers().map_err(|errno| Error::System {
            call: "pthread_atfork",
            errno,
        })?;
        Ok(self.0.lock())
    }
}

/// Ends the volatility of a range whose contents or mappings go away.
pub(crate) fn forget(range: PageRange) {
    ENGINE.lock().forget(range);
}

/// Has every later fork protect the child's copy of volatile memory:
/// `pthread_atfork(3)`. The handler of `stats` must be registered before: it zeroes the
/// gauges that this one sets.
pub(crate) fn register_fork_handlers() -> Result<(), Errno> {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    stats::before_reading(|| ENGINE.lock().flush_counts());
    at_fork_once(&IS_REGISTERED, before_fork, in_parent, in_child)
}

unsafe extern "C" fn before_fork() {
    ENGINE.0.hold();
}

unsafe extern "C" fn in_parent() {
    // SAFETY: `before_fork` has run in this thread.
    unsafe { ENGINE.0.let_go(|_| ()) };
}

/// Makes system calls only: neither allocates nor frees.
unsafe extern "C" fn in_child() {
    OFFER_THREAD.set_absent();
    // SAFETY: `before_fork` has run in the thread that this one is a copy of.
    unsafe { ENGINE.0.let_go(Registry::start_in_child) };
}
