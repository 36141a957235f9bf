//! A file of `/proc` that describes this process.
//!
//! Those of the address space are read through the calling thread, because the first thread
//! has none any more once it has called pthread_exit(3).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::private_files::{PrivateFile, holds, run_with_file};

/// `pagemap` or `maps` of `/proc/thread-self`, or the first thread's `stat`, for one use: after fork, a descriptor that
/// is kept would still describe the parent.
pub(super) enum ProcFile {
    Own(OwnedFd),
    /// The file cannot be opened, but the thread of `private_files` holds it.
    Private(PrivateFile),
}

impl ProcFile {
    pub(super) fn pagemap() -> Result<Self, Errno> {
        Self::open(PrivateFile::Pagemap)
    }

    pub(super) fn maps() -> Result<Self, Errno> {
        Self::open(PrivateFile::Maps)
    }

    pub(super) fn stat() -> Result<Self, Errno> {
        Self::open(PrivateFile::Stat)
    }

    fn open(file: PrivateFile) -> Result<Self, Errno> {
        match file.open() {
            Ok(fd) => Ok(Self::Own(fd)),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOENT | Errno::ACCESS | Errno::PERM)
                if holds(file) =>
            {
                Ok(Self::Private(file))
            }
            Err(errno) => Err(errno),
        }
    }

    /// Runs `work` with a descriptor of the file, on this thread or on the one that holds
    /// it.
    pub(super) fn run<T: Send>(
        &self,
        work: impl FnOnce(BorrowedFd<'_>) -> Result<T, Errno> + Send,
    ) -> Result<T, Errno> {
        match self {
            Self::Own(fd) => work(fd.as_fd()),
            Self::Private(file) => run_with_file(*file, work).unwrap_or(Err(Errno::BADF)),
        }
    }
}
