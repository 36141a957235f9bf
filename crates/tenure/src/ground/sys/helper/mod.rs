//! The tear-down helper: a process that shares this one's memory, made with
//! `clone(CLONE_VM)`, and frees it once no other task uses it.
//!
//! Ending is always safe: the kernel then frees the memory with its last user.
//!
//! Everything in [`task`], [`confine`] and [`shares`] runs in the helper, on a
//! stack of its own but with some thread's thread pointer: it makes system
//! calls by instruction ([`raw`]), with no libc, no allocation, no lock, and
//! nothing that can panic.
//!
//! # Design
//!
//! - The helper is a direct child without a signal for its end (the low byte of
//!   the clone flags is zero), because `wait` does not see such children, and
//!   `disable` can wait for it with `__WALL`. A grandchild would be adopted by
//!   whatever is init: with SIGCHLD, and in a container perhaps by the program
//!   itself.
//! - It learns of the end by a pidfd, not by PR_SET_PDEATHSIG, which comes when
//!   the thread that made the helper ends.
//! - `exec` leaves the process alive with other memory. So the process keeps
//!   the write end of a pipe that is closed on exec; the helper has the read
//!   end. Programs close descriptors that they did not open, and then the pipe
//!   tells nothing: from then on the helper polls once a second.
//! - Whatever wakes the helper, it frees only when `unshare(CLONE_VM)` says
//!   that it is the memory's only user. Ending is always safe, and what it does
//!   in every doubt.
//! - The further tasks are threads of the helper, so that no task has to wait
//!   for them, and none waits for another: when the last one ends, the kernel
//!   frees the rest.
//! - The kernel clears [`Control::state`] when the helper ends, and wakes its
//!   waiters, as for `pthread_join`: then no task uses its stack any more.

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
use super::advise::{Advice, advise};
use super::thread::with_signals_blocked;
use super::userfaultfd::identity;
use super::{map, page_size, raw};
use crate::PageRange;
use crate::ground::error::{Error, Result};

const VERB: &str = "enable tear-down";

/// The stack size of each task of the helper; the deepest call chain needs a
/// tenth of it.
const STACK_BYTES: usize = 64 << 10;

/// The lowest numbers to try for the descriptor that stays open in this
/// process: high, out of the way of programs that count on the first free
/// numbers, or that take an open one to be the one they were told of (make's
/// job server). Where RLIMIT_NOFILE does not allow that, at least none of the
/// standard descriptors that the program has closed.
const FIRST_FDS: [i32; 2] = [200, 3];

/// The helper is preparing itself. (When it ends, the kernel writes a zero:
/// `CLONE_CHILD_CLEARTID`.)
const STARTING: u32 = 1;
/// The helper waits for the end of this process.
const READY: u32 = 2;

/// State shared by both sides. All zeros is a valid value.
#[repr(C)]
struct Control {
    /// [`STARTING`], [`READY`], or zero: ended.
    state: AtomicU32,
    /// Not zero: the helper has to end.
    quit: AtomicU32,
    /// The step that failed, if any, and the kernel's error number.
    failed_step: AtomicU32,
    failed_errno: AtomicI32,
    /// Descriptors in the helper: a pidfd of this process, and the read end of
    /// a pipe whose write end this process loses when it ends or executes
    /// another program.
    pidfd: AtomicI32,
    pipe_reader: AtomicI32,
    /// The helper's descriptor of `/proc/self/maps`, or negative.
    maps: AtomicI32,
    /// The maximum number of freeing tasks, and where the stacks of the second
    /// and further ones end: each is `stack_stride` above the one before.
    tasks: AtomicU32,
    second_stack_end: AtomicUsize,
    stack_stride: AtomicUsize,
    /// The range of this structure and the stacks, which the helper never
    /// frees.
    own_start: AtomicUsize,
    own_end: AtomicUsize,
    shares: Shares,
}

/// The helper, as seen by the process that it serves.
#[derive(Debug)]
pub(crate) struct Helper {
    /// A [`Control`], then the stacks, each above an inaccessible page.
    memory: PageRange,
    pid: i32,
    /// The process that it serves.
    owner: u32,
    /// The write end of the pipe, and its inode, because programs close
    /// descriptors that they did not open.
    lifeline: OwnedFd,
    lifeline_identity: (u64, u64),
}

impl Helper {
    /// Creates a helper that frees with at most `tasks` tasks, and waits until
    /// it is ready: until it has closed its copies of the descriptors, and
    /// completed the rest of [`confine`].
    pub(crate) fn start(tasks: usize) -> Result<Self> {
        check_pid_namespace()?;
        let system = |call| move |errno| Error::System { call, errno };
        let me = rustix::process::getpid();
        let pidfd = rustix::process::pidfd_open(me, PidfdFlags::empty())
            .map_err(|errno| unsupported("pidfd_open", errno))?;
        let (pipe_reader, lifeline) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(system("pipe2"))?;
        let [high, min] = FIRST_FDS;
        let lifeline = rustix::io::fcntl_dupfd_cloexec(&lifeline, high)
            .or_else(|_| rustix::io::fcntl_dupfd_cloexec(&lifeline, min))
            .map_err(system("fcntl(F_DUPFD_CLOEXEC)"))?;
        let lifeline_identity = identity(&lifeline).map_err(system("fstat"))?;

        let memory = Memory::new(tasks).map_err(system("mmap, mprotect or madvise"))?;
        let control = memory.control();
        control.state.store(STARTING, Ordering::Relaxed);
        control.pidfd.store(pidfd.as_raw_fd(), Ordering::Relaxed);
        control
            .pipe_reader
            .store(pipe_reader.as_raw_fd(), Ordering::Relaxed);

        // No signal when it ends, and invisible to `wait` without `__WALL`;
        // debuggers and strace do not follow it.
        let flags = libc::CLONE_VM | libc::CLONE_UNTRACED | libc::CLONE_CHILD_CLEARTID;
        let made = with_signals_blocked(|| {
            // SAFETY: the stack is new and mapped for this task; `task::run`
            // uses no libc, no thread-local storage and nothing that panics;
            // the control stays mapped until the task has ended.
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
            // Something killed it before it was ready.
            None => Error::System {
                call: "clone(CLONE_VM): the helper",
                errno: Errno::CHILD,
            },
        })
    }

    /// Returns whether the helper is alive and serves this process.
    pub(crate) fn is_ready(&self) -> bool {
        // A child made by a bare clone has a copy of this value, but not the
        // memory.
        self.owner == std::process::id() && self.control().state.load(Ordering::Acquire) == READY
    }

    /// Ends the helper, waits until it has ended, and frees everything that it
    /// needed.
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
        // SAFETY: the helper has ended, so this is the only user of the memory;
        // `control` is not used below.
        let _ = unsafe { map::unmap(memory) };
    }

    /// Closes the lifeline, which is all that a child after fork has of the
    /// helper. (The memory is not inherited.) Makes system calls only.
    pub(crate) fn forget(self) {
        if identity(&self.lifeline) != Ok(self.lifeline_identity) {
            // The program has closed the descriptor, and may have reused its
            // number.
            std::mem::forget(self.lifeline);
        }
    }

    fn control(&self) -> &'static Control {
        // SAFETY: a `Control` lies at the start of the memory, which stays
        // mapped until `end` has run; all its fields that change are atomic.
        unsafe { &*self.memory.as_ptr().cast::<Control>() }
    }
}

/// The helper's memory before the helper exists.
struct Memory(PageRange);

impl Memory {
    fn new(tasks: usize) -> std::result::Result<Self, Errno> {
        let control_bytes = size_of::<Control>().next_multiple_of(page_size());
        let stride = page_size() + STACK_BYTES;
        let range = map::reserve(control_bytes + tasks * stride)?;
        let memory = Self(range);
        let make_accessible = |start: usize, len: usize| {
            // SAFETY: reserved above, and no other code knows the addresses.
            unsafe { map::protect_read_write(PageRange::between(start, start + len)) }
        };
        make_accessible(range.start(), control_bytes)?;
        for task in 0..tasks {
            let guard = range.start() + control_bytes + task * stride;
            make_accessible(guard + page_size(), STACK_BYTES)?;
        }
        // A child has no helper, and must not write to memory that this one
        // reads.
        advise(range, Advice::DontFork)?;
        advise(range, Advice::DontDump)?;

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
        // SAFETY: `new` mapped enough bytes for it at the start, and all zeros
        // is a valid value of every field.
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
        // SAFETY: no helper exists that would use it.
        let _ = unsafe { map::unmap(self.0) };
    }
}

/// Fails where the next child would be the first of a new pid namespace
/// (`unshare(CLONE_NEWPID)`), which would end with the helper.
fn check_pid_namespace() -> Result<()> {
    let link = |name: &str| rustix::fs::readlink(name, Vec::new());
    let Ok(own) = link("/proc/self/ns/pid") else {
        return Ok(());
    };
    // The file is missing before the first child of a new namespace, and before
    // Linux 4.12.
    match link("/proc/self/ns/pid_for_children") {
        Ok(childrens) if childrens == own => Ok(()),
        other => Err(Error::Unsupported {
            verb: VERB,
            feature: "a helper in this process's pid namespace",
            answer: other.err().unwrap_or(Errno::INVAL),
            remedy: "children of this process start a new one (unshare(CLONE_NEWPID)): enable \
                     tear-down before that, or in the first child",
        }),
    }
}

fn unsupported(feature: &'static str, answer: Errno) -> Error {
    Error::Unsupported {
        verb: VERB,
        feature,
        answer,
        remedy: "it needs Linux 5.9 with seccomp filters, on x86-64 or aarch64, and a container's \
                 seccomp profile may deny it",
    }
}

/// Waits until the word changes. The futex is not private, because the kernel
/// wakes the shared kind when the helper ends.
fn wait_while(word: &AtomicU32, value: u32) {
    while word.load(Ordering::Acquire) == value {
        let _ = futex::wait(word, futex::Flags::empty(), value, None);
    }
}

/// Waits for the child, which sends no signal when it ends.
fn reap(pid: i32) {
    let mut status = 0;
    // SAFETY: the call writes to `status` alone. (An error other than EINTR
    // means that the program has already waited for the child.)
    while unsafe { libc::waitpid(pid, &mut status, libc::__WALL) } == -1
        && super::last_errno() == Errno::INTR
    {}
}
