//! Tear-down: whoever waits for this process need not wait for its memory.

use std::sync::OnceLock;
use std::thread::available_parallelism;

use crate::ground::error::{Error, Result};
use crate::ground::sys::Errno;
use crate::ground::sys::fork::{ForkMutex, at_fork};
use crate::ground::sys::helper::Helper;

/// More tasks than these hardly free faster: they meet at the kernel's locks.
const MAX_TASKS: usize = 4;

static HELPER: ForkMutex<Option<Helper>> = ForkMutex::new(None);

/// Makes a helper process that shares this one's memory, with
/// `clone(CLONE_VM)`, and waits until it is ready.
///
/// Once it is there, this does nothing but look; a helper that was killed is
/// replaced.
pub fn enable() -> Result<()> {
    keep_out_of_children().map_err(|errno| Error::System {
        call: "pthread_atfork",
        errno,
    })?;
    let mut helper = HELPER.lock();
    if helper.as_ref().is_some_and(Helper::is_ready) {
        return Ok(());
    }
    if let Some(gone) = helper.take() {
        gone.end();
    }
    let tasks = available_parallelism().map_or(1, |cpus| cpus.get().min(MAX_TASKS));
    *helper = Some(Helper::start(tasks)?);
    Ok(())
}

/// Ends the helper, waits until it is gone, and takes back what it needed.
/// Does nothing where there is none.
pub fn disable() {
    if let Some(helper) = HELPER.lock().take() {
        helper.end();
    }
}

/// Whether there is a helper for this process: [`enable`] has succeeded in this
/// process, not in its parent, and nobody has killed the helper since.
pub fn is_enabled() -> bool {
    HELPER.lock().as_ref().is_some_and(Helper::is_ready)
}

/// Has children begin without: they do not have the helper's memory, and must
/// not keep the descriptor whose end the helper waits for.
fn keep_out_of_children() -> std::result::Result<(), Errno> {
    unsafe extern "C" fn prepare() {
        HELPER.hold();
    }
    unsafe extern "C" fn parent() {
        // SAFETY: `prepare` has run in this thread.
        unsafe { HELPER.let_go(|_| ()) };
    }
    unsafe extern "C" fn child() {
        // SAFETY: `prepare` has run in the thread that this is a copy of.
        unsafe {
            HELPER.let_go(|helper| {
                if let Some(parents) = helper.take() {
                    parents.forget();
                }
            });
        }
    }
    static REGISTERED: OnceLock<std::result::Result<(), Errno>> = OnceLock::new();
    *REGISTERED.get_or_init(|| at_fork(prepare, parent, child))
}
