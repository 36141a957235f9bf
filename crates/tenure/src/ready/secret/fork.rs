//! Secret memory is shared until it is marked as not to be inherited: forks of
//! other threads wait meanwhile.

use std::sync::{MutexGuard, OnceLock};

use crate::ground::error::{Error, Result};
use crate::ground::sys::fork::{ForkMutex, at_fork};

static NO_FORK: ForkMutex<()> = ForkMutex::new(());

/// Has forks of this process wait until what it returns is dropped.
pub(super) fn hold_off_forks() -> Result<MutexGuard<'static, ()>> {
    register()?;
    Ok(NO_FORK.lock())
}

pub(super) fn register() -> Result<()> {
    static REGISTERED: OnceLock<Result<()>> = OnceLock::new();
    REGISTERED
        .get_or_init(|| {
            at_fork(hold, done, done).map_err(|errno| Error::System {
                call: "pthread_atfork",
                errno,
            })
        })
        .clone()
}

unsafe extern "C" fn hold() {
    NO_FORK.hold();
}

/// In the parent and in the child.
unsafe extern "C" fn done() {
    // SAFETY: `hold` has run in this thread, or in the one that it is a copy
    // of.
    unsafe { NO_FORK.let_go(|()| ()) };
}
