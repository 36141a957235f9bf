//! Waiting for signals that end the command, and for files that change.

use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::watch::Watch;

/// SIGTERM, SIGINT and SIGHUP, which wait in a descriptor: `signalfd(2)`.
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks the signals in this thread and in those that it starts.
    pub fn block() -> Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initializes the set before the other calls read it; signalfd
        // returns a new descriptor, or -1.
        let descriptor = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC)
        };
        if descriptor < 0 {
            return Err(std::io::Error::last_os_error()).context("signalfd");
        }
        // SAFETY: signalfd has returned it, and nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    /// Waits for a signal, a change or the time. Returns whether a signal came.
    pub fn wait(&self, watch: &Watch, time: Duration) -> Result<bool> {
        let mut descriptors = vec![PollFd::new(&self.0, PollFlags::IN)];
        descriptors.extend(
            watch
                .descriptor()
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
        );
        let time = Timespec::try_from(time)?;
        match poll(&mut descriptors, Some(&time)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).context("poll"),
        }
        Ok(descriptors[0].revents().contains(PollFlags::IN))
    }
}
