//! Files in memory that processes share: `memfd_create(2)`, names in `/dev/shm`,
//! `fallocate(2)`, `pread(2)` and `pwrite(2)`, and whether a process is alive.
//!
//! `fallocate` and `pwrite` hold the inode's lock, so the caller makes them in chunks.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use procfs::FromRead;
use procfs::process::Stat;
use rustix::fs::{AtFlags, CWD, FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::Pid;

/// The metadata of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) len: u64,
    pub(crate) uid: u32,
    pub(crate) is_regular: bool,
    /// Only the owner may open it.
    pub(crate) is_private: bool,
    /// Device and inode.
    pub(crate) identity: (u64, u64),
}

/// Creates a memfd, which can be sealed.
pub(crate) fn memfd() -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    rustix::fs::memfd_create(c"tenure-shared", flags)
}

/// Has only the owner open the file.
pub(crate) fn make_private(fd: impl AsFd) -> Result<(), Errno> {
    rustix::fs::fchmod(fd, Mode::RUSR | Mode::WUSR)
}

/// Sets the length.
pub(crate) fn set_len(fd: impl AsFd, len: u64) -> Result<(), Errno> {
    rustix::fs::ftruncate(fd, len)
}

/// Has the length stay: F_SEAL_SHRINK and F_SEAL_GROW.
pub(crate) fn seal(fd: impl AsFd) -> Result<(), Errno> {
    rustix::fs::fcntl_add_seals(fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
}

/// Returns whether the length stays.
pub(crate) fn is_sealed(fd: impl AsFd) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

/// Creates a file without a name that [`link`] can give one.
pub(crate) fn create_unnamed(folder: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR)
}

/// Gives a file its name: EEXIST if that is taken.
pub(crate) fn link(fd: BorrowedFd<'_>, path: &Path) -> Result<(), Errno> {
    let from = format!("/proc/thread-self/fd/{}", fd.as_raw_fd());
    rustix::fs::linkat(CWD, from, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

/// Opens a file for reading, and for writing: ELOOP for a symbolic link.
pub(crate) fn open(path: &Path, is_writable: bool) -> Result<OwnedFd, Errno> {
    let access = match is_writable {
        true => OFlags::RDWR,
        false => OFlags::RDONLY,
    };
    let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    rustix::fs::open(path, flags, Mode::empty())
}

/// Returns whether the process may have a file of this length (RLIMIT_FSIZE): past the limit a
/// call that writes is SIGXFSZ.
pub(crate) fn may_have_len(len: u64) -> bool {
    let limit = super::process::limit(rustix::process::Resource::Fsize);
    limit.is_none_or(|limit| len <= limit)
}

/// Removes a name.
pub(crate) fn unlink(path: &Path) -> Result<(), Errno> {
    rustix::fs::unlink(path)
}

/// Looks at an open file.
pub(crate) fn facts(fd: impl AsFd) -> Result<Facts, Errno> {
    let stat = rustix::fs::fstat(fd)?;
    Ok(Facts {
        len: stat.st_size.cast_unsigned(),
        uid: stat.st_uid,
        is_regular: stat.st_mode & libc::S_IFMT == libc::S_IFREG,
        is_private: stat.st_mode & 0o077 == 0,
        identity: (stat.st_dev, stat.st_ino),
    })
}

/// Returns the user whose files this process may use.
pub(crate) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Allocates pages: FALLOC_FL_KEEP_SIZE.
pub(crate) fn allocate(fd: BorrowedFd<'_>, start: u64, len: u64) -> Result<(), Errno> {
    fallocate(fd, FallocateFlags::KEEP_SIZE, start, len)
}

/// Frees pages, in all processes: FALLOC_FL_PUNCH_HOLE.
pub(crate) fn punch(fd: BorrowedFd<'_>, start: u64, len: u64) -> Result<(), Errno> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(fd, flags, start, len)
}

fn fallocate(fd: BorrowedFd<'_>, flags: FallocateFlags, start: u64, len: u64) -> Result<(), Errno> {
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(fd, flags, start, len))
}

/// Reads all of the buffer: EIO at the end of the file.
pub(crate) fn read(fd: BorrowedFd<'_>, mut buffer: &mut [u8], mut at: u64) -> Result<(), Errno> {
    while !buffer.is_empty() {
        match rustix::io::pread(fd, &mut *buffer, at) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => {
                buffer = &mut buffer[count..];
                at += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Appends so many bytes to the buffer: EIO at the end of the file.
pub(crate) fn read_to(
    fd: BorrowedFd<'_>,
    buffer: &mut Vec<u8>,
    len: usize,
    at: u64,
) -> Result<(), Errno> {
    buffer.try_reserve_exact(len).map_err(|_| Errno::NOMEM)?;
    let first = buffer.len();
    while buffer.len() < first + len {
        let done = buffer.len() - first;
        let space = &mut buffer.spare_capacity_mut()[..len - done];
        let read = rustix::io::pread(fd, space, at + done as u64);
        match read.map(|(read, _)| read.len()) {
            Ok(0) => return Err(Errno::IO),
            // SAFETY: the call has written so many bytes at the end of the vector.
            Ok(count) => unsafe { buffer.set_len(first + done + count) },
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Writes all of the bytes. EFBIG past RLIMIT_FSIZE, which the program may have lowered since
/// the file was opened: the kernel would send SIGXFSZ.
pub(crate) fn write(fd: BorrowedFd<'_>, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    if !may_have_len(at + bytes.len() as u64) {
        return Err(Errno::FBIG);
    }
    while !bytes.is_empty() {
        match rustix::io::pwrite(fd, bytes, at) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => {
                bytes = &bytes[count..];
                at += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// A process, as other processes of the same PID namespace tell it from a later one of the
/// same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessId {
    pub(crate) pid: u32,
    /// Ticks between the boot and its start, the lower half; 0 where `/proc` does not tell.
    pub(crate) start: u32,
    /// The inodes of the PID namespace and of the time namespace, which shifts `start`; 0 where
    /// `/proc` does not tell.
    pub(crate) namespace: u64,
}

impl ProcessId {
    /// Returns this process.
    pub(crate) fn own() -> Self {
        let pid = std::process::id();
        Self {
            pid,
            start: stat(pid).map_or(0, |stat| stat.starttime as u32),
            namespace: namespace("pid") << 32 | namespace("time"),
        }
    }

    /// Returns whether the process has ended, also where its parent has not waited for it.
    /// `false` where this process, whose namespace is given, cannot tell.
    pub(crate) fn is_dead(self, own_namespace: u64) -> bool {
        if self.namespace != own_namespace {
            return false;
        }
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            return true;
        };
        if rustix::process::test_kill_process(pid) == Err(Errno::SRCH) {
            return true;
        }
        stat(self.pid).is_some_and(|stat| {
            // The first thread of a process may have ended before the others.
            let has_ended = matches!(stat.state, 'Z' | 'X') && stat.num_threads <= 1;
            has_ended || self.start != 0 && stat.starttime as u32 != self.start
        })
    }

    /// Returns whether a signal or a debugger has stopped the process, which is alive.
    pub(crate) fn is_stopped(self, own_namespace: u64) -> bool {
        let is_stopped = |stat: Stat| matches!(stat.state, 'T' | 't');
        self.namespace == own_namespace && stat(self.pid).is_some_and(is_stopped)
    }
}

/// Returns the inode of a namespace of this thread, a number of 32 bits.
fn namespace(kind: &str) -> u64 {
    let found = rustix::fs::stat(format!("/proc/thread-self/ns/{kind}"));
    found.map_or(0, |found| found.st_ino & u64::from(u32::MAX))
}

fn stat(pid: u32) -> Option<Stat> {
    let bytes = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    Stat::from_read(&*bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_alive_until_it_ends() {
        let own = ProcessId::own();
        assert!(!own.is_dead(own.namespace));
        let later = ProcessId {
            start: own.start.wrapping_add(1),
            ..own
        };
        assert_eq!(later.is_dead(own.namespace), own.start != 0);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let of_child = ProcessId {
            pid: child.id(),
            start: 0,
            ..own
        };
        child.wait().unwrap();
        assert!(of_child.is_dead(own.namespace));
        assert!(!of_child.is_dead(own.namespace + 1), "nobody can tell");
    }

    #[test]
    fn punched_pages_read_as_zeros() {
        let fd = memfd().unwrap();
        set_len(&fd, 1 << 20).unwrap();
        seal(&fd).unwrap();
        assert!(is_sealed(&fd) && rustix::fs::ftruncate(&fd, 0).is_err());
        write(fd.as_fd(), &[7; 100_000], 0).unwrap();
        punch(fd.as_fd(), 0, 1 << 20).unwrap();
        let mut bytes = [1; 100_000];
        read(fd.as_fd(), &mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0));
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_blocks, 0);
        assert_eq!(read(fd.as_fd(), &mut [0], 1 << 20), Err(Errno::IO));
    }
}
