//! Counts how often this process opens one of its files in `/proc`.

use std::ffi::CString;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;

/// Watches one file.
pub struct Opens {
    events: File,
    /// Keeps the kernel from making another inode for the same path.
    _file: File,
}

impl Opens {
    pub fn of(name: &str) -> Self {
        let path = format!("/proc/self/{name}");
        let mut options = File::options();
        let file = options.read(true).custom_flags(libc::O_PATH).open(&path);
        let flags = libc::IN_NONBLOCK | libc::IN_CLOEXEC;
        let number = unsafe { libc::inotify_init1(flags) };
        assert!(number >= 0);
        let events = unsafe { File::from_raw_fd(number) };
        let path = CString::new(path).unwrap();
        let watch =
            unsafe { libc::inotify_add_watch(events.as_raw_fd(), path.as_ptr(), libc::IN_OPEN) };
        assert!(watch >= 0);
        let opens = Self {
            events,
            _file: file.unwrap(),
        };
        drop(File::open(path.to_str().unwrap()).unwrap());
        assert_eq!(opens.take(), 1, "the kernel tells of opens in /proc");
        opens
    }

    /// Returns whether the file was opened since the last call, as 1 or 0: the kernel merges
    /// equal events that have not been read.
    pub fn take(&self) -> usize {
        let mut bytes = [0; 4096];
        match (&self.events).read(&mut bytes) {
            Ok(len) => len / size_of::<libc::inotify_event>(),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                0
            }
        }
    }
}
