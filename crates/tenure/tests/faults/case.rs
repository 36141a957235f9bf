//! What an operation is given: it says which of its calls may fail, and checks what
//! comes of it.

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
    /// Which of the calls of this name that the thread makes; from 1.
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
    /// None: this is the warm-up.
    pub control: Option<&'static Control>,
    pub fault: Option<Fault>,
}

/// Where something is missing for good, what is refused stays refused: then the
/// process ends well, and reports how it was refused.
static MISSING: OnceLock<&'static Control> = OnceLock::new();

impl Case {
    /// For a process in which something is missing.
    pub fn of_missing(control: &'static Control) -> Self {
        let is_first = MISSING.set(control).is_ok();
        assert!(is_first, "one operation in each process");
        Self {
            control: None,
            fault: None,
        }
    }

    /// Does what may fail: `work` and whatever other threads do meanwhile.
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

    /// The same for a call of tenure, whose error must tell what has failed.
    pub fn attempt<T, E: Told>(&self, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let answer = self.armed(work);
        if let Err(error) = &answer {
            self.check(error.told());
        }
        answer
    }

    /// The same for a call that can be made again, which must then succeed.
    pub fn attempt_twice<T, E: Told>(&self, mut work: impl FnMut() -> Result<T, E>) -> T {
        match self.attempt(&mut work) {
            Ok(value) => value,
            Err(_) => again(work()),
        }
    }

    /// An error is one that the fault explains.
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
            "does not tell of the fault: {error} ({error:?})"
        );
    }
}

/// What must succeed, for nothing fails any more.
pub fn again<T, E: Told>(answer: Result<T, E>) -> T {
    answer.unwrap_or_else(|error| {
        let error = error.told();
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

pub trait Told {
    fn told(&self) -> &Error;
}

impl Told for Error {
    fn told(&self) -> &Error {
        self
    }
}

impl<T> Told for Refused<T> {
    fn told(&self) -> &Error {
        &self.error
    }
}

fn tells_of(error: &Error, fault: &Fault) -> bool {
    let errno = fault.errno;
    match error {
        // What pthread_create makes of the calls that it makes.
        Error::System {
            call: "clone",
            errno: told,
        } => {
            let names = ["mmap", "mprotect", "clone", "clone3"];
            let is_of_thread = names.contains(&fault.call.as_str());
            is_of_thread
                && matches!(told.raw_os_error(), told if told == errno || told == libc::EAGAIN)
        }
        Error::System { call, errno: told }
        | Error::SystemAt {
            call, errno: told, ..
        } => told.raw_os_error() == errno && names(call, fault),
        Error::Unsupported { answer, .. } => answer.raw_os_error() == errno,
        Error::NoRoom { call, .. } => errno == libc::ENOMEM && names(call, fault),
        // What the kernel says of a hole that comes up meanwhile, or of a lock.
        Error::Hole { .. } => errno == libc::ENOMEM,
        Error::Locked { .. } => errno == libc::EBUSY && fault.call == "msync",
        Error::Busy { .. } => errno == libc::EBUSY,
        Error::NoBacking { .. } | Error::Purged { .. } => errno == libc::EFAULT,
        Error::Poisoned { .. } => errno == libc::EHWPOISON,
        Error::MayNotLook { answer, .. } => answer.raw_os_error() == errno,
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
        // Some are opened in a folder that was opened before.
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
