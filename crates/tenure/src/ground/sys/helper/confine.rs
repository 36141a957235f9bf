//! The privileges and resources that the helper drops before it waits. Runs in
//! the helper.
//!
//! The helper keeps the rights that this process had when it was made, while
//! the process may go on to drop its own (daemons that start as root do), and
//! its stack lies in memory that the process can write to. An attacker who
//! controls the process must gain nothing by it: a seccomp filter leaves the
//! helper the few calls that it needs, and none that opens, sends, signals or
//! executes anything.

use std::ffi::c_long;
use std::sync::atomic::Ordering;

use super::super::raw::syscall;
use super::Control;

/// A step that must succeed for the helper to exist.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(super) enum Step {
    CloseRange = 1,
    Seccomp = 2,
}

impl Step {
    pub(super) fn from_number(number: u32) -> Option<Self> {
        [Self::CloseRange, Self::Seccomp]
            .into_iter()
            .find(|step| *step as u32 == number)
    }

    /// Returns the name of the system call.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::CloseRange => "close_range",
            Self::Seccomp => "prctl(PR_SET_SECCOMP)",
        }
    }
}

/// Drops the descriptors that the program expects to close, and everything that
/// the helper must not have. On failure, returns the failed step and the
/// kernel's error number.
pub(super) fn confine(control: &Control) -> Result<(), (Step, i32)> {
    let every_signal = u64::MAX;
    let no_core = [0_u64; 2];
    let unprioritised = 0_i32;
    // SAFETY: each call affects this task alone, and reads at most the values
    // above, which outlive it, and C strings.
    unsafe {
        // Blocks also the signals that libc excludes from its callers' masks.
        let mask = (&raw const every_signal).addr();
        call(
            libc::SYS_rt_sigprocmask,
            [libc::SIG_SETMASK as usize, mask, 0, 8],
        );
        // A session of its own is out of reach of ^C, of a hang-up, and of
        // `kill` of the process group.
        call(libc::SYS_setsid, [0; 4]);
        close_all_but(
            control.pidfd.load(Ordering::Relaxed),
            control.pipe_reader.load(Ordering::Relaxed),
        )
        .map_err(|errno| (Step::CloseRange, errno))?;
        // The helper's own file, because the process's would answer ESRCH as
        // soon as that has ended. Without /proc, one task frees.
        let maps = call(
            libc::SYS_openat,
            [
                libc::AT_FDCWD as usize,
                c"/proc/self/maps".as_ptr().addr(),
                (libc::O_RDONLY | libc::O_CLOEXEC) as usize,
                0,
            ],
        );
        control.maps.store(maps as i32, Ordering::Relaxed);
        // The rest is courtesy, so failures are ignored: keep no file system
        // busy; have a name; leave no core dump of memory that is the
        // program's; do not preempt others, even where the program runs in real
        // time.
        call(libc::SYS_chdir, [c"/".as_ptr().addr(), 0, 0, 0]);
        let name = c"tenure-teardown".as_ptr().addr();
        call(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name, 0, 0]);
        let no_core = (&raw const no_core).addr();
        call(
            libc::SYS_prlimit64,
            [0, libc::RLIMIT_CORE as usize, no_core, 0],
        );
        let batch = libc::SCHED_BATCH as usize;
        let unprioritised = (&raw const unprioritised).addr();
        call(libc::SYS_sched_setscheduler, [0, batch, unprioritised, 0]);
        install_filter().map_err(|errno| (Step::Seccomp, errno))
    }
}

/// Closes every descriptor but these two: `close_range(2)`. The others would
/// hold pipes, sockets and ports of the program open after its end.
///
/// # Safety
///
/// The task must have a descriptor table of its own.
unsafe fn close_all_but(one: i32, other: i32) -> Result<(), i32> {
    let (low, high) = (one.min(other) as u32, one.max(other) as u32);
    let gaps = [
        (0, low.checked_sub(1)),
        (low.wrapping_add(1), high.checked_sub(1)),
        (high.wrapping_add(1), Some(u32::MAX)),
    ];
    for (first, last) in gaps {
        let Some(last) = last.filter(|last| first <= *last) else {
            continue;
        };
        // SAFETY: the descriptor table is this task's own (the caller's
        // contract).
        let answer = unsafe { call(libc::SYS_close_range, [first as usize, last as usize, 0, 0]) };
        if answer < 0 {
            return Err(-answer as i32);
        }
    }
    Ok(())
}

/// Restricts this task, and its clones, to the calls of [`FILTER`].
fn install_filter() -> Result<(), i32> {
    let program = libc::sock_fprog {
        len: FILTER.len() as u16,
        filter: FILTER.as_ptr().cast_mut(),
    };
    // SAFETY: both calls affect this task alone; the kernel copies the program.
    let answer = unsafe {
        call(
            libc::SYS_prctl,
            [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0],
        );
        let mode = libc::SECCOMP_MODE_FILTER as usize;
        let program = (&raw const program).addr();
        call(
            libc::SYS_prctl,
            [libc::PR_SET_SECCOMP as usize, mode, program, 0],
        )
    };
    if answer < 0 {
        return Err(-answer as i32);
    }
    Ok(())
}

/// # Safety
///
/// The arguments must satisfy the contract of the system call.
unsafe fn call(number: c_long, [a, b, c, d]: [usize; 4]) -> isize {
    // SAFETY: the arguments satisfy the call's contract (the caller's
    // contract).
    unsafe { syscall(number, [a, b, c, d, 0, 0]) }
}

/// All system calls that the helper makes once it is ready.
const ALLOWED: [c_long; 8] = [
    libc::SYS_ppoll,
    libc::SYS_restart_syscall,
    libc::SYS_unshare,
    libc::SYS_read,
    libc::SYS_clone,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_exit,
];

/// `AUDIT_ARCH_*`.
const ARCHITECTURE: u32 = if cfg!(target_arch = "aarch64") {
    0xc000_00b7
} else {
    0xc000_003e
};

/// The offsets of these fields in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;

const FILTER_LEN: usize = ALLOWED.len() + 6;

/// The seccomp filter. Calls that are not allowed fail with EPERM; system calls
/// of another architecture (32-bit ones, on a 64-bit kernel) kill the helper.
static FILTER: [libc::sock_filter; FILTER_LEN] = {
    const fn step(code: u32, value: u32, if_equal: u8) -> libc::sock_filter {
        libc::sock_filter {
            code: code as u16,
            jt: if_equal,
            jf: 0,
            k: value,
        }
    }
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const COMPARE: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const ANSWER: u32 = libc::BPF_RET | libc::BPF_K;
    let deny = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

    let mut filter = [step(ANSWER, deny, 0); FILTER_LEN];
    filter[0] = step(LOAD, ARCHITECTURE_AT, 0);
    filter[1] = step(COMPARE, ARCHITECTURE, 1);
    filter[2] = step(ANSWER, libc::SECCOMP_RET_KILL_PROCESS, 0);
    filter[3] = step(LOAD, NUMBER_AT, 0);
    let mut index = 0;
    while index < ALLOWED.len() {
        // Jumps past the rest of the list and the EPERM that follows it.
        let skipped = (ALLOWED.len() - index) as u8;
        filter[4 + index] = step(COMPARE, ALLOWED[index] as u32, skipped);
        index += 1;
    }
    filter[FILTER_LEN - 1] = step(ANSWER, libc::SECCOMP_RET_ALLOW, 0);
    filter
};
