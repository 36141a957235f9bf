//! Undoes system-wide changes of a test, however the test ends.

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
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            drop(write);
            // A signal from the terminal that ends the tests must not end this process.
            unsafe { libc::setsid() };
            let _ = read.read(&mut [0]);
            let is_undone = std::panic::catch_unwind(std::panic::AssertUnwindSafe(undo));
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
        unsafe { libc::waitpid(self.pid, &mut status, 0) };
        assert!(
            status == 0 || std::thread::panicking(),
            "the undo has failed"
        );
    }
}
