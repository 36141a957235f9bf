//! Tear-down: whoever waits for this process need not wait for its memory.
//!
//! A process with much memory takes long to end: the kernel frees the pages
//! before it tells the parent. After [`enable`] the process has a helper, a
//! process of its own that shares its memory (`clone(CLONE_VM)`) and does
//! nothing but wait. When the process ends, however it ends (`exit`, `abort`,
//! SIGKILL), its parent's `wait` returns in milliseconds, and the helper frees
//! the memory behind it, with several tasks (as many as there are CPUs, at most
//! four). When the process runs another program (`exec`), that one starts as
//! quickly.
//!
//! Off unless asked for, and each process has to ask: a child after `fork` has
//! no helper until it calls [`enable`] itself. A program that forks in order to
//! run in the background enables it afterwards.
//!
//! # What does not change
//!
//! - Descriptors are closed, locks on files released, robust mutexes handed on
//!   (EOWNERDEAD) and children handed over when the process ends, not when its
//!   memory is free: the helper has none of these.
//! - No memory is freed that anybody uses. Before it frees, the helper asks the
//!   kernel whether it is alone. Where it is not (a child between `vfork` and
//!   `exec`), or may not ask (`unshare` is refused by the seccomp profile of
//!   many containers), it just ends, and the kernel frees the memory when its
//!   last user has gone: as late as needed, in one task.
//! - The helper sends no SIGCHLD, and `wait` does not see it, dead or alive.
//! - Dumps of memory are written as ever. (Before Linux 5.16 the kernel ends
//!   the helper then, and frees the memory as without it.)
//!
//! # What it costs
//!
//! - **Memory is still in use when `wait` returns.** Whoever starts the next
//!   large process at once may find too little, of the machine's or of the
//!   cgroup's.
//! - One more process (against RLIMIT_NPROC and `pids.max`), a few pages of
//!   memory, and one descriptor, kept open for the helper to notice `exec`.
//!   Tools that add up RSS by process count the memory twice; `free` and the
//!   cgroup's figures are right. `ps` shows the helper with the program's
//!   command line, named `tenure-teardown`: `pkill -f` finds both.
//! - The OOM killer, `cgroup.kill` and whoever else kills both get what they got
//!   before, memory freed by the kernel, and no sooner. `process_mrelease` is
//!   EINVAL as long as the helper lives.
//! - What only the end of memory gives back comes later: mapped files (their
//!   file system is busy, the program file cannot be written), System V shared
//!   memory, and what drivers have mapped.
//! - Calls that want a process to have its memory for itself may fail
//!   meanwhile: `setns` to a time namespace, and SELinux's `setcon`.
//! - `waitpid` with `__WALL` or `__WCLONE`, which few programs use, does see the
//!   helper.
//!
//! # Where nothing is gained
//!
//! - Where everything ends with the process: it is the first process of a pid
//!   namespace (the main process of most containers), or its supervisor waits
//!   for the whole cgroup (`systemctl stop`).
//! - Where the process is the last user of little memory: a helper is made for
//!   a process that has, or will have, gigabytes.
//!
//! The helper of a process that has ended becomes a child of init, or of the
//! nearest subreaper, which must reap it. It is in a session of its own, so a
//! signal for the terminal's or the process's group does not reach it. A helper
//! that is killed does no harm: the process just has none.
//!
//! # Rights
//!
//! The helper keeps the user and capabilities that the process had at the time,
//! but is confined by a seccomp filter to waiting, freeing and ending. So a
//! daemon may enable tear-down first and give up its rights later.
//!
//! ```standalone_crate
//! use tenure::teardown;
//!
//! teardown::enable()?;
//! assert!(teardown::is_enabled());
//! // ... whatever the program does ...
//! teardown::disable();
//! # Ok::<(), tenure::Error>(())
//! ```

use std::sync::OnceLock;
use std::thread::available_parallelism;

use crate::ground::error::{Error, Result};
use crate::ground::sys::Errno;
use crate::ground::sys::fork::{ForkMutex, at_fork};
use crate::ground::sys::helper::Helper;

/// More tasks than these hardly free faster: they meet at the kernel's locks.
const MAX_TASKS: usize = 4;

static HELPER: ForkMutex<Option<Helper>> = ForkMutex::new(None);

/// Makes a helper that frees this process's memory when the process has ended,
/// with `clone(CLONE_VM)`, and waits until it is ready. See the
/// [module](self) for what it costs.
///
/// Succeeds at once where there is a helper already; one that was killed is
/// replaced. Any thread may call it, and may end afterwards.
///
/// # Errors
///
/// The process is as it was before.
///
/// - [`Error::Unsupported`] before Linux 5.9, on processors other than x86-64
///   and aarch64, where a seccomp profile refuses `pidfd_open`, `close_range`
///   or seccomp filters, and in a process whose children begin a new pid
///   namespace (after `unshare(CLONE_NEWPID)`).
/// - [`Error::System`] when there is no room for one more process (EAGAIN), a
///   few descriptors (EMFILE) or the helper's stacks (ENOMEM).
///
/// ```standalone_crate
/// tenure::teardown::enable()?;
/// # tenure::teardown::disable();
/// # Ok::<(), tenure::Error>(())
/// ```
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

/// Ends the helper, waits until it is gone, and takes back all that it needed:
/// memory, the descriptor, and the process, with `waitpid`. Does nothing where
/// there is none.
///
/// Takes up to a second where the program has closed the helper's descriptor.
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

/// Makes what a helper needs in this process, if that has not been done.
pub(crate) fn prepare() {
    let _ = keep_out_of_children();
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
