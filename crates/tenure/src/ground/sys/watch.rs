//! Waiting for kernel files that report events by `poll(2)`.

use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::userfaultfd::identity;

/// A file that reports events (`POLLPRI`).
///
/// A program may close descriptors that it did not open (daemons do), after
/// which the number may refer to another file: closing checks first that it is
/// still this file.
#[derive(Debug)]
pub(crate) struct Watched {
    fd: ManuallyDrop<OwnedFd>,
    identity: (u64, u64),
}

impl Watched {
    pub(crate) fn new(fd: OwnedFd) -> Result<Self, Errno> {
        let identity = identity(&fd)?;
        Ok(Self {
            fd: ManuallyDrop::new(fd),
            identity,
        })
    }

    /// Opens a cgroup file whose contents change. Each event is reported until
    /// [`Watched::acknowledge`].
    pub(crate) fn open(file: &Path) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let watched = Self::new(rustix::fs::open(file, flags, Mode::empty())?)?;
        watched.acknowledge();
        Ok(watched)
    }

    /// Reads the file, so that only later events are reported.
    pub(crate) fn acknowledge(&self) {
        // A PSI trigger has nothing to read, and reports each event once
        // anyway.
        let _ = rustix::io::pread(&*self.fd, &mut [0; 64], 0);
    }

    /// Closes the file, in one or two system calls and nothing else.
    pub(crate) fn close(&self) {
        if identity(&self.fd) == Ok(self.identity) {
            // SAFETY: the check above says that the number is still this
            // file's, and nobody uses it any more: the caller drops or forgets
            // the value next.
            unsafe { rustix::io::close(self.fd.as_raw_fd()) };
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.close();
    }
}

/// The outcome of [`wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The timeout expired, or a signal interrupted the call.
    TimedOut,
    /// A file reported an event.
    Event,
    /// A file can no longer report: its cgroup was removed, or its descriptor
    /// closed.
    Closed,
}

/// Waits until a file reports an event: `poll(2)`, for at most `timeout`.
pub(crate) fn wait(files: &[Watched], timeout: Duration) -> Outcome {
    let mut polled: Vec<PollFd> = files
        .iter()
        .map(|file| PollFd::new(&*file.fd, PollFlags::PRI))
        .collect();
    let timeout = Timespec::try_from(timeout).ok();
    if rustix::event::poll(&mut polled, timeout.as_ref()).is_err() {
        // Interrupted, which counts as a timeout.
        return Outcome::TimedOut;
    }
    let any = |flags| polled.iter().any(|file| file.revents().intersects(flags));
    // Cgroup files report an error beside each event.
    let is_closed = polled.iter().any(|file| {
        let lone_error = PollFlags::ERR | PollFlags::HUP;
        file.revents().intersects(PollFlags::NVAL)
            || file.revents().intersects(lone_error) && !file.revents().contains(PollFlags::PRI)
    });
    if is_closed {
        Outcome::Closed
    } else if any(PollFlags::PRI) {
        files.iter().for_each(Watched::acknowledge);
        Outcome::Event
    } else {
        Outcome::TimedOut
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;
    use std::time::Instant;

    const SHORT: Duration = Duration::from_millis(20);

    /// Reports an event only when something is mounted, and needs no privilege.
    fn mounts() -> Watched {
        Watched::open(Path::new("/proc/self/mounts")).unwrap()
    }

    #[test]
    fn wait_without_event_times_out() {
        let begin = Instant::now();
        assert_eq!(wait(&[], SHORT), Outcome::TimedOut);
        assert_eq!(wait(&[mounts()], SHORT), Outcome::TimedOut);
        assert!(begin.elapsed() >= SHORT * 2);
    }

    #[test]
    fn wait_on_broken_pipe_is_closed() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let watched = Watched::new(reader).unwrap();
        drop(writer);
        assert_eq!(
            wait(&[mounts(), watched], Duration::from_secs(60)),
            Outcome::Closed
        );
    }

    #[test]
    fn close_of_reused_descriptor_leaves_it_open() {
        let watched = mounts();
        let number = watched.fd.as_raw_fd();
        let other = tempfile::tempfile().unwrap();
        // SAFETY: the descriptor is replaced by the duplicate, and `watched`
        // does not close it then.
        let mut taken_over = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
        rustix::io::dup2(&other, &mut taken_over).unwrap();
        drop(watched);
        let seen = identity(&taken_over).unwrap();
        assert_eq!(seen, identity(&other.into()).unwrap());
        drop(ManuallyDrop::into_inner(taken_over));
    }
}
