//! Runs a body in a process of its own, sees every system call of that process before it is
//! made, and answers some of them with errors.

use std::time::{Duration, Instant};

use std::sync::atomic::Ordering::SeqCst;

use super::control::Control;
use super::filter::{self, Listener, Next, Shown};
use super::table::{self, Described};

/// A process that takes longer hangs: one without faults takes less than a second.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// The time that processes left by the one under test have to end.
const AFTERLIFE: Duration = Duration::from_secs(5);

/// One system call that the process has made while it was armed.
pub struct Seen {
    /// The thread: `main`, or its name.
    pub thread: String,
    pub call: Described,
}

/// How a process has ended.
pub struct Ended {
    pub seen: Vec<Seen>,
    pub report: String,
    /// The call that was to fail was made, and failed.
    pub is_met: bool,
    /// The reason why it failed.
    pub problem: Option<String>,
}

/// Runs `body` in a process of its own. `judge` is asked about each call that is made while
/// the process is armed, and returns the error to answer it with.
///
/// Err: the reason why no supervisor is available here.
pub fn supervise(
    control: &Control,
    body: impl FnOnce(),
    mut judge: impl FnMut(&Seen) -> Option<i32>,
) -> Result<Ended, String> {
    control.begin();
    let pid = fork(control, body);
    let listener = match take_listener(control, pid) {
        Ok(listener) => listener,
        Err(why) => {
            end(pid);
            return Err(why);
        }
    };
    let mut ended = Ended {
        seen: Vec::new(),
        report: String::new(),
        is_met: false,
        problem: None,
    };
    let mut deadline = Instant::now() + TIME_LIMIT;
    let mut status = None;
    loop {
        match listener.next(50) {
            Next::Call(shown) => {
                let errno = judge_call(control, pid, &shown, &mut ended, &mut judge);
                listener.answer(&shown, errno);
            }
            Next::AllHaveEnded => break,
            Next::Nothing => {}
        }
        if status.is_none() {
            status = status_if_ended(pid, libc::WNOHANG);
            if status.is_some() {
                deadline = Instant::now() + AFTERLIFE;
            }
        }
        if Instant::now() > deadline {
            ended.problem = Some(match status {
                None => format!("it hangs:\n{}", where_it_is(pid)),
                Some(_) => "it has left a process running".to_owned(),
            });
            break;
        }
    }
    // Remaining processes get no answers from here on, and end.
    drop(listener);
    if ended.problem.is_some() && status.is_none() {
        end(pid);
        return Ok(ended);
    }
    let status = status.or_else(|| status_if_ended(pid, 0)).expect("a child");
    ended.report = control.report();
    ended.is_met = control.is_met.load(SeqCst);
    if status != 0 {
        ended
            .problem
            .get_or_insert(match libc::WIFSIGNALED(status) {
                true => format!("ended by signal {}", libc::WTERMSIG(status)),
                false => format!("ended with status {}", libc::WEXITSTATUS(status)),
            });
    }
    Ok(ended)
}

fn fork(control: &Control, body: impl FnOnce()) -> libc::pid_t {
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid > 0 {
        return pid;
    }
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let number = match filter::install() {
        Ok(number) => number,
        Err(errno) => {
            control.listener.store(-1 - errno, SeqCst);
            unsafe { libc::_exit(0) }
        }
    };
    control.listener.store(number, SeqCst);
    while !control.is_taken.load(SeqCst) {
        std::thread::yield_now();
    }
    unsafe { libc::close(number) };
    let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    control.is_armed.store(false, SeqCst);
    unsafe { libc::_exit(if answer.is_ok() { 0 } else { 101 }) }
}

fn take_listener(control: &Control, pid: libc::pid_t) -> Result<Listener, String> {
    let start = Instant::now();
    let number = loop {
        match control.listener.load(SeqCst) {
            -1 if start.elapsed() > Duration::from_secs(10) => return Err("no answer".to_owned()),
            -1 => std::thread::sleep(Duration::from_micros(50)),
            number if number < 0 => {
                let error = std::io::Error::from_raw_os_error(-1 - number);
                return Err(format!(
                    "seccomp user notification is refused here: {error}"
                ));
            }
            number => break number,
        }
    };
    let listener = Listener::of_process(pid, number)
        .map_err(|error| format!("pidfd_getfd is refused here: {error}"))?;
    control.is_taken.store(true, SeqCst);
    Ok(listener)
}

fn judge_call(
    control: &Control,
    pid: libc::pid_t,
    shown: &Shown,
    ended: &mut Ended,
    judge: &mut impl FnMut(&Seen) -> Option<i32>,
) -> Option<i32> {
    if !control.is_armed.load(SeqCst) {
        return None;
    }
    let tid = shown.pid as libc::pid_t;
    let Some(call) = table::describe(tid, &shown.data) else {
        let problem = format!(
            "system call {}, which the table does not list",
            shown.data.nr
        );
        ended.problem.get_or_insert(problem);
        return None;
    };
    let thread = match tid == pid {
        true => "main".to_owned(),
        false => name_of(tid),
    };
    let seen = Seen { thread, call };
    let errno = judge(&seen);
    if errno.is_some() {
        control.is_met.store(true, SeqCst);
    }
    ended.seen.push(seen);
    errno
}

fn name_of(tid: libc::pid_t) -> String {
    let name = std::fs::read_to_string(format!("/proc/{tid}/comm")).unwrap_or_default();
    match name.trim_end() {
        // A thread that has not named itself has the name of the thread that started it.
        name if name.starts_with("tenure-") => name.to_owned(),
        _ => "new".to_owned(),
    }
}

fn status_if_ended(pid: libc::pid_t, flags: i32) -> Option<i32> {
    let mut status = 0;
    match unsafe { libc::waitpid(pid, &mut status, flags) } {
        0 => None,
        answer => {
            assert_eq!(answer, pid);
            Some(status)
        }
    }
}

fn end(pid: libc::pid_t) {
    unsafe { libc::kill(pid, libc::SIGKILL) };
    status_if_ended(pid, 0);
}

/// Returns the threads of a process, and the system call that each is in.
fn where_it_is(pid: libc::pid_t) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let threads = tasks.into_iter().flatten().flatten().map(|task| {
        let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        format!(
            "{}: {}",
            read("comm").trim_end(),
            read("syscall").trim_end()
        )
    });
    threads.collect::<Vec<_>>().join("\n")
}
