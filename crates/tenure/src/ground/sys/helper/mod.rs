//! A helper: a process of its own that shares this one's memory, made with
//! `clone(CLONE_VM)`, and frees it when nobody else uses it any more.
//!
//! Everything in [`task`], [`confine`] and [`shares`] runs in the helper, on a
//! stack of its own but with some thread's thread pointer: no libc, no
//! allocation, no lock, nothing that can panic.
//!
//! # Why it is made as it is
//!
//! - A direct child without a signal for its end (the low byte of the flags is
//!   zero), for `wait` does not see such children and `disable` can wait for it
//!   with `__WALL`. A grandchild would be adopted by whatever is init: with
//!   SIGCHLD, and in a container perhaps by the program itself.
//! - It learns of the end by a pidfd, not by PR_SET_PDEATHSIG, which comes when
//!   the thread that made the helper ends.
//! - `exec` leaves the process alive with other memory. So the process keeps the
//!   write end of a pipe that is closed on exec; the helper has the other end.
//!   Programs close what they did not open, and then the pipe tells nothing:
//!   from there on the helper looks once a second.
//! - Whatever wakes the helper, it frees only when `unshare(CLONE_VM)` says that
//!   it is the memory's only user. To end is always safe, and what it does in
//!   every doubt.
//! - The further tasks are threads of the helper, so that nobody has to wait for
//!   them, and none waits for another: the last one to end has the kernel free
//!   the rest.
//! - The kernel clears [`Control::state`] when the helper ends, and wakes who
//!   waits on it, as for `pthread_join`: then nobody uses its stack any more.

mod confine;
mod shares;
mod task;

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::PidfdFlags;
use rustix::thread::futex;

use self::confine::Step;
use self::shares::Shares;
use super::advise::{Harmless, advise};
use super::thread::with_signals_blocked;
use super::userfaultfd::identity;
use super::{map, page_size, raw};
use crate::PageRange;
use crate::ground::error::{Error, Result};

const VERB: &str = "enable tear-down";

/// The stack of each task of the helper; the deepest needs a tenth of it.
const STACK_BYTES: usize = 64 << 10;

/// From where on to look for a number for the descriptor that stays open here: out
/// of the way of programs that count on the first free ones, or take an open one to
/// be what they were told of (make's job server). Where there are not so many, at
/// least in the place of no standard one that the program has closed.
const FIRST_FDS: [i32; 2] = [200, 3];

/// The helper makes itself ready. (When it ends, the kernel writes a zero:
/// `CLONE_CHILD_CLEARTID`.)
const STARTING: u32 = 1;
/// The helper waits for the end of this process.
const READY: u32 = 2;

/// What both sides know of each other. All zeros is a value.
#[repr(C)]
struct Control {
    /// [`STARTING`], [`READY`], or zero: gone.
    state: AtomicU32,
    /// Not zero: the helper is no longer wanted.
    quit: AtomicU32,
    /// The step that failed, if any, and what the kernel answered.
    failed_step: AtomicU32,
    failed_errno: AtomicI32,
    /// Descriptors of the helper's: this process, and the end of a pipe whose
    /// other end this process loses when it ends or runs another program.
    pidfd: AtomicI32,
    ear: AtomicI32,
    /// The helper's own `/proc/self/maps`, or negative.
    maps: AtomicI32,
    /// How many tasks free at most, and where the stacks of the second and
    /// further ones end: each is `stack_stride` above the one before.
    tasks: AtomicU32,
    second_stack_end: AtomicUsize,
    stack_stride: AtomicUsize,
    /// This structure and the stacks: never given up by the helper.
    own_start: AtomicUsize,
    own_end: AtomicUsize,
    shares: Shares,
}

/// The helper, as the process that it serves sees it.
#[derive(Debug)]
pub(crate) struct Helper {
    /// A [`Control`], then the stacks, each behind a page without access.
    memory: PageRange,
    pid: i32,
    /// Whom it serves.
    owner: u32,
    /// The pipe's end that this process loses, and its inode, for programs
    /// close what they did not open.
    lifeline: OwnedFd,
    lifeline_identity: (u64, u64),
}

impl Helper {
    /// Makes a helper that frees with at most `tasks` tasks, and waits until it
    /// is ready: has closed its copies of the descriptors, and the rest of what
    /// [`confine`] does.
    pub(crate) fn start(tasks: usize) -> Result<Self> {
        check_pid_namespace()?;
        let system = |call| move |errno| Error::System { call, errno };
        let me = rustix::process::getpid();
        let pidfd = rustix::process::pidfd_open(me, PidfdFlags::empty())
            .map_err(|errno| unsupported("pidfd_open", errno))?;
        let (ear, lifeline) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(system("pipe2"))?;
        let [high, least] = FIRST_FDS;
        let lifeline = rustix::io::fcntl_dupfd_cloexec(&lifeline, high)
            .or_else(|_| rustix::io::fcntl_dupfd_cloexec(&lifeline, least))
            .map_err(system("fcntl(F_DUPFD_CLOEXEC)"))?;
        let lifeline_identity = identity(&lifeline).map_err(system("fstat"))?;

        let memory = Memory::new(tasks).map_err(system("mmap, mprotect or madvise"))?;
        let control = memory.control();
        control.state.store(STARTING, Ordering::Relaxed);
        control.pidfd.store(pidfd.as_raw_fd(), Ordering::Relaxed);
        control.ear.store(ear.as_raw_fd(), Ordering::Relaxed);

        // No signal when it ends, and nothing for `wait` without `__WALL`;
        // debuggers and strace do not follow it.
        let flags = libc::CLONE_VM | libc::CLONE_UNTRACED | libc::CLONE_CHILD_CLEARTID;
        let made = with_signals_blocked(|| {
            // SAFETY: the stack is mapped and new; `task::run` keeps the rules
            // for such tasks; the control stays mapped until the task is gone.
            unsafe {
                raw::clone(
                    flags,
                    memory.stack_end(0),
                    control.state.as_ptr(),
                    task::run,
                    &raw const *control,
                )
            }
        });
        let pid = match made {
            Ok(pid) => pid,
            Err(Errno::NOSYS) => return Err(unsupported("clone(CLONE_VM)", Errno::NOSYS)),
            Err(errno) => return Err(system("clone(CLONE_VM)")(errno)),
        };
        wait_while(&control.state, STARTING);
        let is_ready = control.state.load(Ordering::Acquire) == READY;
        let step = control.failed_step.load(Ordering::Relaxed);
        let errno = Errno::from_raw_os_error(control.failed_errno.load(Ordering::Relaxed).max(1));
        let helper = Self {
            memory: memory.keep(),
            pid,
            owner: std::process::id(),
            lifeline,
            lifeline_identity,
        };
        if is_ready {
            return Ok(helper);
        }
        helper.end();
        Err(match Step::from_number(step) {
            Some(step) => unsupported(step.name(), errno),
            // Killed from outside, before it was ready.
            None => Error::System {
                call: "clone(CLONE_VM): the helper",
                errno: Errno::CHILD,
            },
        })
    }

    /// Whether it lives and serves this process.
    pub(crate) fn is_ready(&self) -> bool {
        // A child made by a bare clone has this value, but not the memory.
        self.owner == std::process::id() && self.control().state.load(Ordering::Acquire) == READY
    }

    /// Has it end, waits for that, and takes back everything that it needed.
    pub(crate) fn end(self) {
        if self.owner != std::process::id() {
            self.forget();
            return;
        }
        let control = self.control();
        control.quit.store(1, Ordering::Release);
        let (memory, pid) = (self.memory, self.pid);
        self.forget();
        wait_while(&control.state, READY);
        reap(pid);
        // SAFETY: the helper is gone, and this was the last one to know the
        // memory; `control` is not used below.
        let _ = unsafe { map::unmap(memory) };
    }

    /// Gives up what a child after fork has of it: the lifeline. (The memory
    /// is not inherited.) Makes system calls only.
    pub(crate) fn forget(self) {
        if identity(&self.lifeline) != Ok(self.lifeline_identity) {
            // Closed by somebody else, who may have the number in use.
            std::mem::forget(self.lifeline);
        }
    }

    fn control(&self) -> &'static Control {
        // SAFETY: a `Control` lies at the start of the memory, which is mapped
        // until `end` has run; all that changes in it is atomic.
        unsafe { &*self.memory.as_ptr().cast::<Control>() }
    }
}

/// The helper's memory while no helper has it yet.
struct Memory(PageRange);

impl Memory {
    fn new(tasks: usize) -> std::result::Result<Self, Errno> {
        let control_bytes = size_of::<Control>().next_multiple_of(page_size());
        let stride = page_size() + STACK_BYTES;
        let range = map::reserve(control_bytes + tasks * stride)?;
        let memory = Self(range);
        let open = |start: usize, len: usize| {
            // SAFETY: reserved above; nobody else knows of it.
            unsafe { map::protect_read_write(PageRange::between(start, start + len)) }
        };
        open(range.start(), control_bytes)?;
        for task in 0..tasks {
            let guard = range.start() + control_bytes + task * stride;
            open(guard + page_size(), STACK_BYTES)?;
        }
        // A child has no helper, and must not write to what this one reads.
        advise(range, Harmless::DontFork)?;
        advise(range, Harmless::DontDump)?;

        let control = memory.control();
        control.tasks.store(tasks as u32, Ordering::Relaxed);
        control.stack_stride.store(stride, Ordering::Relaxed);
        let second = range.start() + control_bytes + 2 * stride;
        control.second_stack_end.store(second, Ordering::Relaxed);
        control.own_start.store(range.start(), Ordering::Relaxed);
        control.own_end.store(range.end(), Ordering::Relaxed);
        Ok(memory)
    }

    fn control(&self) -> &'static Control {
        // SAFETY: mapped by `new` with room for it at the start, and full of
        // zeros, which is a value of every field.
        unsafe { &*self.0.as_ptr().cast::<Control>() }
    }

    fn stack_end(&self, task: usize) -> *mut u8 {
        let control_bytes = size_of::<Control>().next_multiple_of(page_size());
        let end = self.0.start() + control_bytes + (task + 1) * (page_size() + STACK_BYTES);
        std::ptr::with_exposed_provenance_mut(end)
    }

    fn keep(self) -> PageRange {
        let range = self.0;
        std::mem::forget(self);
        range
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: no helper was made that would use it.
        let _ = unsafe { map::unmap(self.0) };
    }
}

/// Refuses where the next child would be the first of a new pid namespace
/// (`unshare(CLONE_NEWPID)`): the namespace would end with the helper.
fn check_pid_namespace() -> Result<()> {
    let link = |name: &str| rustix::fs::readlink(name, Vec::new());
    let Ok(own) = link("/proc/self/ns/pid") else {
        return Ok(());
    };
    // There is no such file before the first child of a new one, nor before
    // Linux 4.12.
    match link("/proc/self/ns/pid_for_children") {
        Ok(childrens) if childrens == own => Ok(()),
        other => Err(Error::Unsupported {
            verb: VERB,
            feature: "a helper in this process's pid namespace",
            answer: other.err().unwrap_or(Errno::INVAL),
            remedy: "children of this process begin a new one (unshare(CLONE_NEWPID)): enable \
                     tear-down before, or in the first child",
        }),
    }
}

fn unsupported(feature: &'static str, answer: Errno) -> Error {
    Error::Unsupported {
        verb: VERB,
        feature,
        answer,
        remedy: "it needs Linux 5.9 with seccomp filters, on x86-64 or aarch64, and a container's \
                 seccomp profile may refuse it",
    }
}

/// Waits until the word is something else. Not a private futex: the kernel
/// wakes the other kind when the helper ends.
fn wait_while(word: &AtomicU32, value: u32) {
    while word.load(Ordering::Acquire) == value {
        let _ = futex::wait(word, futex::Flags::empty(), value, None);
    }
}

/// Waits for the child, which has no signal to send when it ends.
fn reap(pid: i32) {
    let mut status = 0;
    // SAFETY: writes to `status` alone. An error other than EINTR says that
    // somebody else has waited for it.
    while unsafe { libc::waitpid(pid, &mut status, libc::__WALL) } == -1
        && super::last_errno() == Errno::INTR
    {}
}
