//! Undoes system-wide changes of a test, however the test ends.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;

/// Undoes a change when it is dropped or when this process ends in any way: a process of
/// its own waits for that.
pub struct Undo {
    pid: libc::pid_t,
    /// Closing it starts the undo.
    time: Option<std::io::PipeWriter>,
}

impl Undo {
    /// Starts the process that waits. The caller makes the change afterwards; `undo`
    /// returns whether the change is undone.
    pub fn later(undo: impl FnOnce() -> bool) -> Self {
        use std::io::Read;
        let (mut read, write) = std::io::pipe().unwrap();
        // SAFETY: the child only writes settings and ends; it waits for no other thread.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            drop(write);
            // A signal from the terminal that ends the tests must not end this process.
            // SAFETY: `setsid` has no preconditions.
            unsafe { libc::setsid() };
            let _ = read.read(&mut [0]);
            let is_undone = std::panic::catch_unwind(std::panic::AssertUnwindSafe(undo));
            // SAFETY: `_exit` has no preconditions.
            unsafe { libc::_exit(i32::from(!is_undone.unwrap_or(false))) };
        }
        Self {
            pid,
            time: Some(write),
        }
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        drop(self.time.take());
        let mut status = 0;
        // SAFETY: the call writes to a local variable.
        unsafe { libc::waitpid(self.pid, &mut status, 0) };
        assert!(
            status == 0 || std::thread::panicking(),
            "the undo has failed"
        );
    }
}

/// Waits until no other test changes what a file tells of the machine, and keeps others from
/// it for as long as the returned value lives.
pub fn lock_setting(path: &str) -> Option<File> {
    let lock = File::open(path).ok()?;
    // SAFETY: the descriptor is open while `lock` lives.
    let answer = unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) };
    (answer == 0).then_some(lock)
}

/// Changes a setting of the machine, for which the caller has the lock, where that is
/// allowed. The setting is restored before the lock is released.
pub fn change_setting(path: &'static str, lock: File, value: &str) -> Option<Undo> {
    let before = fs::read_to_string(path).ok()?;
    OpenOptions::new().write(true).open(path).ok()?;
    let undo = Undo::later(move || {
        let is_restored = fs::write(path, before.trim()).is_ok();
        drop(lock);
        is_restored
    });
    fs::write(path, value).ok().map(|()| undo)
}
