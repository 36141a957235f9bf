//! The seccomp filter of the process under test: the supervisor sees each system call that
//! may fail before it is made.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use libc::{sock_filter, sock_fprog};

/// Calls that cannot fail in a way that matters, that are made very often, or that are
/// needed before there is a supervisor. The supervisor sees all others.
const NOT_SHOWN: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getcpu,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
];

/// Installs the filter on this thread and on the threads that it starts. Returns the number
/// of the descriptor that reports the calls, or the kernel's error.
pub fn install() -> Result<RawFd, i32> {
    let step = |code: u32, jt: u8, jf: u8, k: u32| sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let load = |offset: usize| {
        step(
            libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
            0,
            0,
            offset as u32,
        )
    };
    let is = |jt, jf, k| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, jf, k);
    let answer = |k| step(libc::BPF_RET | libc::BPF_K, 0, 0, k);
    let mut program = vec![load(std::mem::offset_of!(libc::seccomp_data, nr))];
    for &call in NOT_SHOWN {
        program.push(is(0, 1, call as u32));
        program.push(answer(libc::SECCOMP_RET_ALLOW));
    }
    // Of futex(2) the supervisor sees only FUTEX_WAKE_OP, which touches pages (the lower
    // half of the second argument).
    program.push(is(0, 4, libc::SYS_futex as u32));
    program.push(load(std::mem::offset_of!(libc::seccomp_data, args) + 8));
    program.push(step(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, 127));
    program.push(is(1, 0, libc::FUTEX_WAKE_OP as u32));
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    program.push(answer(libc::SECCOMP_RET_USER_NOTIF));
    let program = sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    let descriptor = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    match RawFd::try_from(descriptor) {
        Ok(number) if number >= 0 => Ok(number),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
    }
}

/// A system call that waits for an answer.
pub type Shown = libc::seccomp_notif;

/// The descriptor that reports a process's system calls.
pub struct Listener(OwnedFd);

impl Listener {
    /// Copies the descriptor out of the process.
    pub fn of_process(pid: libc::pid_t, number: RawFd) -> std::io::Result<Self> {
        let process = rustix::process::Pid::from_raw(pid).expect("a child");
        let process = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty())?;
        let fd = rustix::process::pidfd_getfd(
            &process,
            number,
            rustix::process::PidfdGetfdFlags::empty(),
        )?;
        // The supervisor runs at once, on the same CPU (Linux 6.6).
        unsafe { libc::ioctl(fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, 1_u64) };
        Ok(Self(unsafe {
            OwnedFd::from_raw_fd(std::os::fd::IntoRawFd::into_raw_fd(fd))
        }))
    }

    /// Waits for a call; `None` when the time is over.
    pub fn next(&self, timeout_ms: i32) -> Next {
        let mut poll = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        match unsafe { libc::poll(&mut poll, 1, timeout_ms) } {
            0 => return Next::Nothing,
            _ if poll.revents & libc::POLLIN == 0 => return Next::AllHaveEnded,
            _ => {}
        }
        let mut shown: Shown = unsafe { std::mem::zeroed() };
        let fd = self.0.as_raw_fd();
        match unsafe { libc::ioctl(fd, libc::SECCOMP_IOCTL_NOTIF_RECV, &mut shown) } {
            0 => Next::Call(shown),
            // The calling thread has been killed meanwhile.
            _ => Next::Nothing,
        }
    }

    /// Lets the call through, or answers it with an error.
    pub fn answer(&self, shown: &Shown, errno: Option<i32>) {
        let response = libc::seccomp_notif_resp {
            id: shown.id,
            val: 0,
            error: errno.map_or(0, |errno| -errno),
            flags: match errno {
                None => libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
                Some(_) => 0,
            },
        };
        // This fails if the calling thread has been killed meanwhile.
        unsafe {
            libc::ioctl(
                self.0.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SEND,
                &response,
            )
        };
    }
}

pub enum Next {
    Call(Shown),
    Nothing,
    /// No process with the filter is left.
    AllHaveEnded,
}
