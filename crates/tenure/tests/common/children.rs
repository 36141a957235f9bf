//! Functions of a test file that run in processes of their own.

use std::process::{Command, Output};

use libtest_mimic::Completion;

use super::{ends_well_within, may_lock_anything, skip};

/// Runs a function of this test file, named in `children:`, in a new process.
pub fn in_child(name: &str) -> Output {
    child(name).output().unwrap()
}

/// Runs a function of this test file in a new process, which must succeed.
pub fn in_child_ok(name: &str) {
    assert_ended_well(name, &child(name).output().unwrap());
}

/// Runs a function of this test file in a new process that may hang: it must succeed within
/// the limit.
pub fn in_child_within(limit: std::time::Duration, name: &str) {
    ends_well_within(limit, name, &mut child(name));
}

/// Runs a function of this test file in a new process without the named kernel features;
/// the process must succeed.
pub fn in_child_without(features: &str, name: &str) {
    let output = child(name)
        .env("TENURE_WITHOUT", features)
        .output()
        .unwrap();
    assert_ended_well(name, &output);
    print!("{}", String::from_utf8_lossy(&output.stdout));
}

/// Runs a function of this test file in a new process with an environment variable set.
pub fn in_child_with(variable: &str, value: &str, name: &str) -> Output {
    child(name).env(variable, value).output().unwrap()
}

/// Returns the command that runs a function of this test file in a new process.
pub fn child(name: &str) -> Command {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--child", name]);
    child
}

pub fn assert_ended_well(name: &str, output: &Output) {
    assert!(
        output.status.success(),
        "{name}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Forks, runs `body` in the child, and returns its exit status (or the signal
/// that ended it, negative). A panic in `body` is status 101.
pub fn fork(body: impl FnOnce() -> i32) -> i32 {
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(101);
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    if libc::WIFEXITED(status) {
        libc::WEXITSTATUS(status)
    } else {
        -libc::WTERMSIG(status)
    }
}

/// Runs a function of this test file that locks all memory in a new process, or skips the
/// test where `RLIMIT_MEMLOCK` forbids that.
pub fn in_child_if_unlimited(name: &str) -> Completion {
    if !may_lock_anything() {
        return skip("locks all memory of a process, which RLIMIT_MEMLOCK does not allow");
    }
    in_child_ok(name);
    Completion::Completed
}
