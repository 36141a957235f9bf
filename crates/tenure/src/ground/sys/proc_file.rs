//! A file of `/proc/self` that describes the address space.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::private_files::{PrivateFile, holds, run_with_file};

/// `/proc/self/pagemap` or `/proc/self/maps`, for one use: after fork, a descriptor that
/// is kept would still describe the parent.
pub(super) enum ProcFile {
    Own(OwnedFd),
    /// The file cannot be opened, but the thread of `private_files` holds it.
    Private(PrivateFile),
}

impl ProcFile {
    pub(super) fn pagemap() -> Result<Self, Errno> {
        Self::open("/proc/self/pagemap", PrivateFile::Pagemap)
    }

    pub(super) fn maps() -> Result<Self, Errno> {
        Self::open("/proc/self/maps", PrivateFile::Maps)
    }

    fn open(path: &str, file: PrivateFile) -> Result<Self, Errno> {
        match PrivateFile::open(path) {
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
