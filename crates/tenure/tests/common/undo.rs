//! What a test changes for others is undone, however the test ends.

/// Undoes something when it is dropped, or when this process ends, however that
/// comes about: by a process of its own, which waits for it.
pub struct Undo {
    pid: libc::pid_t,
    /// Closed when it is time.
    time: Option<std::io::PipeWriter>,
}

impl Undo {
    /// Call it before what is to be undone is done. `undo` tells whether it is.
    pub fn later(undo: impl FnOnce() -> bool) -> Self {
        use std::io::Read;
        let (mut read, write) = std::io::pipe().unwrap();
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            drop(write);
            // Who ends the tests from a terminal does not end this.
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
        assert!(status == 0 || std::thread::panicking(), "it is not undone");
    }
}
