//! The context of an operation: the operation says which of its calls may fail, and checks
//! the result.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;

use tenure::{Error, Refused, Result};

use super::control::Control;

/// One system call that fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub thread: String,
    pub call: String,
    pub file: Option<String>,
    /// Which of the thread's calls of this name fails; from 1.
    pub occurrence: usize,
    pub errno: i32,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = std::io::Error::from_raw_os_error(self.errno);
        let Self {
            thread,
            call,
            occurrence,
            ..
        } = self;
        write!(f, "{thread}: {call} number {occurrence}: {error}")
    }
}

pub struct Case {
    /// None in the warm-up.
    pub control: Option<&'static Control>,
    pub fault: Option<Fault>,
}

/// Set in a process where a feature is missing: a rejected call is rejected again. The
/// process then succeeds, and reports the error.
static MISSING: OnceLock<&'static Control> = OnceLock::new();

impl Case {
    /// Creates the context of a process in which a feature is missing.
    pub fn of_missing(control: &'static Control) -> Self {
        let is_first = MISSING.set(control).is_ok();
        assert!(is_first, "one operation in each process");
        Self {
            control: None,
            fault: None,
        }
    }

    /// Runs `work` armed: its calls may fail, and those of other threads meanwhile.
    pub fn armed<T>(&self, work: impl FnOnce() -> T) -> T {
        let arm = |armed| {
            if let Some(control) = self.control {
                control.is_armed.store(armed, SeqCst);
            }
        };
        arm(true);
        let answer = work();
        arm(false);
        answer
    }

    /// Runs a call of tenure armed. Its error must name the call that failed.
    pub fn attempt<T, E: AsError>(&self, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let answer = self.armed(work);
        if let Err(error) = &answer {
            self.check(error.as_error());
        }
        answer
    }

    /// Runs a call of tenure armed, and again unarmed if it failed, which must succeed.
    pub fn attempt_twice<T, E: AsError>(&self, mut work: impl FnMut() -> Result<T, E>) -> T {
        match self.attempt(&mut work) {
            Ok(value) => value,
            Err(_) => again(work()),
        }
    }

    /// Asserts that the fault explains the error.
    pub fn check(&self, error: &Error) {
        if MISSING.get().is_some() {
            return;
        }
        let Some(fault) = &self.fault else {
            panic!("failed without a fault: {error}");
        };
        let is_met = self
            .control
            .is_some_and(|control| control.is_met.load(SeqCst));
        assert!(is_met, "failed before the fault: {error}");
        assert!(
            tells_of(error, fault),
            "the error does not name the fault: {error} ({error:?})"
        );
    }
}

/// Unwraps the answer of a call that must succeed, because nothing fails any more.
pub fn again<T, E: AsError>(answer: Result<T, E>) -> T {
    answer.unwrap_or_else(|error| {
        let error = error.as_error();
        if let Some(control) = MISSING.get() {
            control.write_report(kind(error));
            unsafe { libc::_exit(0) };
        }
        panic!("fails again, without a fault: {error}")
    })
}

fn kind(error: &Error) -> &'static str {
    match error {
        Error::Unsupported { .. } => "Unsupported",
        Error::System { .. } | Error::SystemAt { .. } => "System",
        _ => "another error",
    }
}

pub trait AsError {
    fn as_error(&self) -> &Error;
}

impl AsError for Error {
    fn as_error(&self) -> &Error {
        self
    }
}

impl<T> AsError for Refused<T> {
    fn as_error(&self) -> &Error {
        &self.error
    }
}

/// The calls that start a thread, and the one with which it begins where no descriptor is
/// left.
const OF_THREAD: [&str; 5] = ["mmap", "mprotect", "clone", "clone3", "close_range"];

fn tells_of(error: &Error, fault: &Fault) -> bool {
    let errno = fault.errno;
    match error {
        // pthread_create returns its own errors for the calls that it makes.
        Error::System {
            call: "clone",
            errno: answer,
        } => {
            let is_of_thread = OF_THREAD.contains(&fault.call.as_str());
            is_of_thread
                && matches!(answer.raw_os_error(), answer if answer == errno || answer == libc::EAGAIN)
        }
        // The error of a reading is that of any call that it makes.
        Error::System {
            call,
            errno: answer,
        } if call.starts_with("reading the memory limits") => {
            let answer = answer.raw_os_error();
            let is_of_thread = OF_THREAD.contains(&fault.call.as_str());
            answer == errno && (is_of_thread || fault.file.is_some())
                || answer == libc::EAGAIN && is_of_thread
        }
        Error::System {
            call,
            errno: answer,
        }
        | Error::SystemAt {
            call,
            errno: answer,
            ..
        } => answer.raw_os_error() == errno && names(call, fault),
        Error::Unsupported { answer, .. } => answer.raw_os_error() == errno,
        Error::MappingLimit { call, .. } => errno == libc::ENOMEM && names(call, fault),
        // The kernel's answers for a hole that appears concurrently, and for a lock.
        Error::Hole { .. } => errno == libc::ENOMEM,
        Error::Locked { .. } => errno == libc::EBUSY && fault.call == "msync",
        Error::Busy { .. } => errno == libc::EBUSY,
        Error::NoBacking { .. } | Error::Purged { .. } => errno == libc::EFAULT,
        Error::HwPoison { .. } => errno == libc::EHWPOISON,
        Error::PermissionDenied { answer, .. } => answer.raw_os_error() == errno,
        Error::NoProcess { .. } => matches!(errno, libc::ENOENT | libc::ESRCH),
        Error::LockLimit { .. } | Error::ProcessLockLimit { .. } => {
            matches!(errno, libc::ENOMEM | libc::EPERM | libc::EAGAIN)
        }
        _ => false,
    }
}

/// Whether the error's `call` is the one that failed, or the file that it was for.
fn names(call: &str, fault: &Fault) -> bool {
    let (name, detail) = fault.call.split_once('(').unwrap_or((&fault.call, ""));
    let detail = detail.trim_end_matches(')');
    let is_of_file = |file: &String| {
        let is_pagemap = file.ends_with("pagemap") && call.starts_with("PAGEMAP_SCAN");
        let is_secret = file.contains("secretmem") && call == "memfd_secret";
        // Some files are opened relative to a folder that was opened before.
        let is_named = call.contains("/proc") && call.contains(file.as_str());
        is_pagemap || is_secret || is_named || (file.contains("/proc") && call.contains("/proc"))
    };
    call.contains(name)
        || (name == "ioctl" && call.contains(detail))
        || (detail == "PAGEMAP_SCAN" && call.contains("pagemap"))
        || (call == "mlock" && name == "mlock2")
        || (call == "touching a page" && matches!(name, "pwritev" | "futex"))
        || fault.file.as_ref().is_some_and(is_of_file)
}
