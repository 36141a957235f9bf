//! Tear-down: the parent's `wait` returns before the memory of this process is freed.
//!
//! A process with much memory takes long to exit, because the kernel frees its pages
//! before it notifies the parent. After [`enable`] the process has a helper: a child
//! process that shares its address space (`clone(CLONE_VM)`) and only waits. When the
//! process ends, in whatever way (`exit`, `abort`, SIGKILL), its parent's `wait`
//! returns in milliseconds. The helper is then the last user of the memory and frees
//! it, with as many tasks as there are CPUs, at most four. When the process calls
//! `exec`, the new program starts as quickly.
//!
//! Tear-down is off by default, and each process enables it for itself: a child after
//! `fork` has no helper until it calls [`enable`]. A program that forks to run in the
//! background enables it afterwards.
//!
//! # How the helper works
//!
//! The helper waits on a pidfd of the process and on a pipe that `exec` closes.
//! Whichever wakes it, it frees memory only after `unshare(CLONE_VM)` has shown that no
//! other task uses the address space. Otherwise it ends, which is always safe. Its code
//! uses no libc, allocates nothing and cannot panic.
//!
//! # What does not change
//!
//! - When the process ends, not when its memory is free, the kernel closes its
//!   descriptors, releases its file locks, passes on its robust mutexes (EOWNERDEAD)
//!   and reparents its children: the helper has none of these.
//! - No memory is freed while anything uses it. If the helper is not the last user (a
//!   child between `vfork` and `exec`), or `unshare` is refused (by the seccomp profile
//!   of many containers), the kernel frees the memory when its last user ends, in one
//!   task.
//! - The helper sends no SIGCHLD, and a plain `wait` never returns it.
//! - Core dumps are written as before. (Before Linux 5.16 a dump ends the helper, and
//!   the memory is freed as without it.)
//!
//! # What it costs
//!
//! - **Memory is still in use when `wait` returns.** A supervisor that starts the next
//!   large process at once may find too little memory in the machine or the cgroup.
//! - The helper is one more process (it counts against RLIMIT_NPROC and `pids.max`),
//!   takes a few pages, and needs one descriptor that stays open so that it notices
//!   `exec`. Tools that add up RSS by process count the memory twice; `free` and the
//!   cgroup's figures are right. `ps` shows the helper with the program's command line,
//!   named `tenure-teardown`: `pkill -f` finds both.
//! - The OOM killer, `cgroup.kill` and any other SIGKILL for both processes free the
//!   memory as before, and no sooner. `process_mrelease` is EINVAL while the helper
//!   lives.
//! - Resources that only the end of the address space releases come back later: mapped
//!   files (their file system stays busy, and the program file cannot be written),
//!   System V shared memory, and the mappings of drivers.
//! - Calls that need an address space with one user may fail while the helper lives:
//!   `setns` to a time namespace, and SELinux's `setcon`.
//! - `waitpid` with `__WALL` or `__WCLONE`, which few programs use, does return the
//!   helper.
//!
//! # When not to use it
//!
//! - The first process of a pid namespace (the main process of most containers), and a
//!   process whose supervisor waits for the whole cgroup (`systemctl stop`): everything
//!   ends with the process, so nothing is gained.
//! - A process with little memory: the helper pays off from gigabytes on.
//!
//! After the process has ended, the helper is a child of init or of the nearest
//! subreaper, which must reap it. It is in a session of its own, so signals to the
//! terminal's or the process's group do not reach it. If the helper is killed, the
//! process continues without one.
//!
//! # Privileges
//!
//! The helper keeps the user and the capabilities that the process had when it called
//! [`enable`], but a seccomp filter confines it to waiting, freeing and ending. So a
//! daemon may enable tear-down first and drop its privileges later.
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

use std::thread::available_parallelism;

use crate::ground::error::{Error, Result};
use crate::ground::sys::Errno;
use crate::ground::sys::fork::{self, ForkMutex};
use crate::ground::sys::helper::Helper;

/// More tasks hardly free faster, because they contend for the kernel's locks.
const MAX_TASKS: usize = 4;

static HELPER: ForkMutex<Option<Helper>> = ForkMutex::new(None, |helper| {
    if let Some(of_parent) = helper.take() {
        of_parent.forget();
    }
});

/// Starts a helper that frees this process's memory after the process has ended
/// (`clone(CLONE_VM)`), and waits until it is ready. The [module](self) describes
/// what it costs.
///
/// Succeeds at once if there is a helper already; a helper that was killed is
/// replaced. Any thread may call this function, and may end afterwards.
///
/// # Errors
///
/// With the process unchanged:
///
/// - [`Error::Unsupported`] before Linux 5.9, on processors other than x86-64
///   and aarch64, where a seccomp profile refuses `pidfd_open`, `close_range`
///   or seccomp filters, and in a process whose children begin a new pid
///   namespace (after `unshare(CLONE_NEWPID)`).
/// - [`Error::System`] when a limit refuses one more process (EAGAIN), a few
///   descriptors (EMFILE) or memory for the helper's stacks (ENOMEM).
///
/// ```standalone_crate
/// tenure::teardown::enable()?;
/// # tenure::teardown::disable();
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn enable() -> Result<()> {
    register_fork_handlers().map_err(|errno| Error::System {
        call: "pthread_atfork",
        errno,
    })?;
    let mut helper = HELPER.lock();
    if helper.as_ref().is_some_and(Helper::is_ready) {
        return Ok(());
    }
    if let Some(killed) = helper.take() {
        killed.end();
    }
    let tasks = available_parallelism().map_or(1, |cpus| cpus.get().min(MAX_TASKS));
    *helper = Some(Helper::start(tasks)?);
    Ok(())
}

/// Ends the helper, reaps it with `waitpid`, and frees its memory and its descriptor.
/// Does nothing if there is no helper.
///
/// It takes up to a second if the program has closed the helper's descriptor.
pub fn disable() {
    if let Some(helper) = HELPER.lock().take() {
        helper.end();
    }
}

/// Whether this process has a live helper: [`enable`] has succeeded in this process,
/// not in its parent, and the helper has not been killed since.
pub fn is_enabled() -> bool {
    HELPER.lock().as_ref().is_some_and(Helper::is_ready)
}

/// Has forks start children without a helper: a child does not share the helper's
/// memory, and must close its copy of the descriptor whose closing the helper waits for.
pub(crate) fn register_fork_handlers() -> std::result::Result<(), Errno> {
    static ENTRY: fork::Entry = fork::Entry::new(&HELPER);
    fork::register(&ENTRY)
}
