//! Blocks forks of other threads while memfd_secret memory, which is shared, is mapped
//! but not yet excluded from children (MADV_DONTFORK).

use std::sync::MutexGuard;
use std::sync::atomic::AtomicBool;

use crate::ground::error::{Error, Result};
use crate::ground::sys::fork::{ForkMutex, at_fork_once};

static FORK_BLOCK: ForkMutex<()> = ForkMutex::new(());

/// Makes forks of this process wait until the returned guard is dropped.
pub(super) fn block_forks() -> Result<MutexGuard<'static, ()>> {
    register_fork_handlers()?;
    Ok(FORK_BLOCK.lock())
}

pub(crate) fn register_fork_handlers() -> Result<()> {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    at_fork_once(&IS_REGISTERED, before_fork, after_fork, after_fork).map_err(|errno| {
        Error::System {
            call: "pthread_atfork",
            errno,
        }
    })
}

unsafe extern "C" fn before_fork() {
    FORK_BLOCK.hold();
}

/// Runs in the parent and in the child.
unsafe extern "C" fn after_fork() {
    // SAFETY: `before_fork` has run in this thread or, for a child, in the parent's
    // thread that this thread is a copy of.
    unsafe { FORK_BLOCK.let_go(|()| ()) };
}
