//! Waiting for files of the kernel that report something by `poll(2)`.

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
/// A program may close descriptors that it did not open (daemons do), and the
/// number may then be another file's: closing looks first whether it is still
/// this one.
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

    /// Opens a file of the cgroup file system whose contents change. Each event
    /// is reported until [`Watched::acknowledge`].
    pub(crate) fn open(file: &Path) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let watched = Self::new(rustix::fs::open(file, flags, Mode::empty())?)?;
        watched.acknowledge();
        Ok(watched)
    }

    /// Reads the file, so that what comes from now on is news.
    pub(crate) fn acknowledge(&self) {
        // A trigger has nothing to be read, and is news once only anyway.
        let _ = rustix::io::pread(&*self.fd, &mut [0; 64], 0);
    }

    /// Closes it; a system call or two, nothing else.
    pub(crate) fn close(&self) {
        if identity(&self.fd) == Ok(self.identity) {
            // SAFETY: the number is ours, as we have just seen, and nobody uses
            // it any more: who calls this drops or forgets the value next.
            unsafe { rustix::io::close(self.fd.as_raw_fd()) };
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.close();
    }
}

/// What [`wait`] has met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    /// The time has passed, or nearly so.
    Nothing,
    /// A file has something to report.
    News,
    /// A file can report nothing any more: what it belongs to is gone, or the
    /// descriptor is.
    Gone,
}

/// Waits until a file reports something, for `most` at most.
pub(crate) fn wait(files: &[Watched], most: Duration) -> Met {
    let mut polled: Vec<PollFd> = files
        .iter()
        .map(|file| PollFd::new(&*file.fd, PollFlags::PRI))
        .collect();
    let most = Timespec::try_from(most).ok();
    if rustix::event::poll(&mut polled, most.as_ref()).is_err() {
        // Interrupted: as good as the time being up.
        return Met::Nothing;
    }
    let any = |flags| polled.iter().any(|file| file.revents().intersects(flags));
    // Files of a cgroup report an error beside each piece of news.
    let is_gone = polled.iter().any(|file| {
        let lone_error = PollFlags::ERR | PollFlags::HUP;
        file.revents().intersects(PollFlags::NVAL)
            || file.revents().intersects(lone_error) && !file.revents().contains(PollFlags::PRI)
    });
    if is_gone {
        Met::Gone
    } else if any(PollFlags::PRI) {
        files.iter().for_each(Watched::acknowledge);
        Met::News
    } else {
        Met::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;
    use std::time::Instant;

    const SHORT: Duration = Duration::from_millis(20);

    /// Has something to report only when something is mounted, and needs no
    /// privilege.
    fn mounts() -> Watched {
        Watched::open(Path::new("/proc/self/mounts")).unwrap()
    }

    #[test]
    fn nothing_to_report_takes_the_time_given() {
        let begin = Instant::now();
        assert_eq!(wait(&[], SHORT), Met::Nothing);
        assert_eq!(wait(&[mounts()], SHORT), Met::Nothing);
        assert!(begin.elapsed() >= SHORT * 2);
    }

    #[test]
    fn a_file_that_cannot_report_any_more_is_gone() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let watched = Watched::new(reader).unwrap();
        drop(writer);
        assert_eq!(
            wait(&[mounts(), watched], Duration::from_secs(60)),
            Met::Gone
        );
    }

    #[test]
    fn the_number_of_another_file_is_left_open() {
        let watched = mounts();
        let number = watched.fd.as_raw_fd();
        let other = tempfile::tempfile().unwrap();
        // SAFETY: the number is the one that is replaced, nobody else's.
        let mut taken_over = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
        rustix::io::dup2(&other, &mut taken_over).unwrap();
        drop(watched);
        let seen = identity(&taken_over).unwrap();
        assert_eq!(seen, identity(&other.into()).unwrap());
        drop(ManuallyDrop::into_inner(taken_over));
    }
}
