//! The one error type: what happened, to which range, and what to do about it.

use rustix::io::Errno;

use super::bytes::Bytes;
use super::range::PageRange;
use super::room_bound::RoomBound;

/// What a call of this library answers.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a verb refused or failed.
///
/// Unless a variant says otherwise, nothing has been changed in memory when it
/// is returned. [`Error::errno`] is the kernel's word for it, as the C
/// interface returns it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address or the length is not a whole number of pages.
    #[error(
        "{addr:#x}+{len:#x} is not whole pages: address and length must be multiples of {page_bytes} bytes here"
    )]
    Unaligned {
        /// The first address asked for.
        addr: usize,
        /// The length asked for, in bytes.
        len: usize,
        /// What both must be multiples of: the page size of this memory.
        page_bytes: usize,
    },

    /// The range goes past the end of the address space.
    #[error("{addr:#x}+{len:#x} goes past the end of the address space")]
    Overflow {
        /// The first address asked for.
        addr: usize,
        /// The length asked for, in bytes.
        len: usize,
    },

    /// Byte bounds that do not lie inside their [`Mapping`](crate::Mapping).
    #[error("bytes {from}..{to} do not lie inside a mapping of {len} bytes")]
    OutOfBounds {
        /// The first byte asked for.
        from: usize,
        /// The byte behind the last one asked for.
        to: usize,
        /// The mapping's length in bytes.
        len: usize,
    },

    /// A mapping of no bytes was asked for (or a file that is empty).
    #[error("a mapping must have at least one byte; an empty file cannot be mapped")]
    EmptyMapping,

    /// A part of the range is not mapped.
    #[error("{range} is not mapped throughout: there is a hole at {hole}; nothing was done")]
    Hole {
        /// The range asked for.
        range: PageRange,
        /// Its first part that is not mapped.
        hole: PageRange,
    },

    /// The verb has no meaning on this kind of memory.
    #[error(
        "cannot {verb} {range}: {part} is {found}, and {verb} works on {wanted} only; nothing was done"
    )]
    WrongKind {
        /// What was asked for.
        verb: &'static str,
        /// The range asked for.
        range: PageRange,
        /// The part that is of another kind.
        part: PageRange,
        /// Its kind.
        found: MemoryKind,
        /// What the verb works on.
        wanted: &'static str,
    },

    /// The protection of the memory does not allow what was asked for.
    #[error("cannot {verb} {range}: {part} is mapped without {missing} access; nothing was done")]
    NoAccess {
        /// What was asked for.
        verb: &'static str,
        /// The range asked for.
        range: PageRange,
        /// The part that lacks the access.
        part: PageRange,
        /// `read` or `write`.
        missing: &'static str,
    },

    /// A part of the range is locked in memory.
    #[error(
        "cannot {verb} {range}: a part of it is locked in memory; unlock it first; nothing was done"
    )]
    Locked {
        /// What was asked for.
        verb: &'static str,
        /// The range asked for.
        range: PageRange,
    },

    /// The lock would exceed `RLIMIT_MEMLOCK`.
    #[error(
        "cannot lock {range}: RLIMIT_MEMLOCK is {}, {} of it in use, {} asked: raise it with ulimit -l or LimitMEMLOCK=, or give the program CAP_IPC_LOCK",
        Bytes(*limit_bytes), Bytes(*used_bytes), Bytes(*asked_bytes)
    )]
    LockLimit {
        /// The range asked for.
        range: PageRange,
        /// The soft limit.
        limit_bytes: usize,
        /// What the process has locked already.
        used_bytes: usize,
        /// What of the range is not locked yet.
        asked_bytes: usize,
    },

    /// Locking all memory of the process, or a new mapping that is locked
    /// because of [`lock_all`](crate::lock_all), would exceed `RLIMIT_MEMLOCK`.
    #[error(
        "cannot {verb}: RLIMIT_MEMLOCK is {}, {} of it in use, {} asked: raise it with ulimit -l or LimitMEMLOCK=, or give the program CAP_IPC_LOCK",
        Bytes(*limit_bytes), Bytes(*used_bytes), Bytes(*asked_bytes)
    )]
    ProcessLockLimit {
        /// What was asked for.
        verb: &'static str,
        /// The soft limit.
        limit_bytes: usize,
        /// What the process has locked already.
        used_bytes: usize,
        /// What is to be locked besides.
        asked_bytes: usize,
    },

    /// The running kernel, or what confines this process, does not offer what
    /// the verb is built on.
    #[error("cannot {verb}: {feature} is not available here ({answer}): {remedy}")]
    Unsupported {
        /// What was asked for.
        verb: &'static str,
        /// The kernel feature that is missing.
        feature: &'static str,
        /// What the kernel answered.
        answer: Errno,
        /// Since which kernel there is such a feature, and what may refuse it.
        remedy: &'static str,
    },

    /// The range is registered with another userfaultfd.
    #[error(
        "cannot mark {range} volatile: a part of it is registered with another userfaultfd; nothing was done"
    )]
    Busy {
        /// The range asked for.
        range: PageRange,
    },

    /// Pages that cannot be brought in: behind the end of their file, or with
    /// the pool of huge pages empty. Touching them would be SIGBUS.
    ///
    /// What lies before them may have been populated already.
    #[error(
        "cannot {verb} {range}: there is nothing to bring in for a page of it (a file shorter than its mapping, or no free huge page); touching it would be SIGBUS"
    )]
    NoBacking {
        /// What was asked for.
        verb: &'static str,
        /// The range asked for.
        range: PageRange,
    },

    /// A page of the range is on broken memory.
    #[error("cannot {verb} {range}: a page of it is on memory that has failed (EHWPOISON)")]
    Poisoned {
        /// What was asked for.
        verb: &'static str,
        /// The range asked for.
        range: PageRange,
    },

    /// There is less memory than the verb would take. It looked before it
    /// began, for past a cgroup's limit the kernel answers with SIGKILL.
    #[error(
        "cannot {verb} {range}: it takes {}, and {bound} leaves {}: {}, or go on all the same with `force`; nothing was done",
        Bytes(*need_bytes), Bytes(*room_bytes), bound.remedy()
    )]
    NoMemory {
        /// What was asked for.
        verb: &'static str,
        /// The range asked for.
        range: PageRange,
        /// What it would take.
        need_bytes: usize,
        /// What there is.
        room_bytes: usize,
        /// What leaves no more. (In a box, for an error travels with the
        /// mapping that was refused.)
        bound: Box<RoomBound>,
    },

    /// The kernel could make no further mapping: `vm.max_map_count`, the
    /// address space limit, or overcommit.
    #[error(
        "{call} on {range} found no room: vm.max_map_count mappings are in use, or RLIMIT_AS or the overcommit limit is reached"
    )]
    NoRoom {
        /// The system call.
        call: &'static str,
        /// The range asked for.
        range: PageRange,
    },

    /// The work was cancelled before it was all done.
    #[error("{verb} {range} was cancelled: {} of it are done", Bytes(*done_bytes))]
    Cancelled {
        /// What was asked for.
        verb: &'static str,
        /// The range asked for.
        range: PageRange,
        /// What had been done by then.
        done_bytes: usize,
    },

    /// Waiting ended before the work did.
    #[error("{} are still waiting to be freed", Bytes(*pending_bytes))]
    TimedOut {
        /// What is still pending.
        pending_bytes: usize,
    },

    /// There is no process of this number.
    #[error("there is no process {pid}")]
    NoProcess {
        /// The number asked for.
        pid: u32,
    },

    /// The kernel does not show this process another one's memory.
    #[error(
        "may not look into process {pid} ({answer}): it takes the rights to trace it (ptrace): run as its user with kernel.yama.ptrace_scope=0, or as root or with CAP_SYS_PTRACE"
    )]
    MayNotLook {
        /// The process.
        pid: u32,
        /// What the kernel answered.
        answer: Errno,
    },

    /// The process counts in a layout that this version does not know.
    #[error(
        "the counters of process {pid} are {layout}, which this version of tenure cannot read: use the version that the process was built with"
    )]
    OtherLayout {
        /// The process.
        pid: u32,
        /// The name of its counters.
        layout: String,
    },

    /// A system call failed in a way that has no variant of its own.
    #[error("{call} failed: {errno}")]
    System {
        /// The system call, ioctl or file.
        call: &'static str,
        /// What the kernel answered.
        errno: Errno,
    },

    /// A system call on a range failed in a way that has no variant of its own.
    #[error("{call} on {range} failed: {errno}")]
    SystemAt {
        /// The system call or ioctl.
        call: &'static str,
        /// The range it was made on.
        range: PageRange,
        /// What the kernel answered.
        errno: Errno,
    },
}

impl Error {
    /// The error number that stands for this error, as in `errno(3)`.
    ///
    /// ```
    /// let error = tenure::PageRange::new(1, 1).unwrap_err();
    /// assert_eq!(error.errno(), 22); // EINVAL
    /// ```
    pub fn errno(&self) -> i32 {
        let errno = match self {
            Self::Unaligned { .. }
            | Self::Overflow { .. }
            | Self::OutOfBounds { .. }
            | Self::EmptyMapping
            | Self::WrongKind { .. }
            | Self::Locked { .. } => Errno::INVAL,
            Self::NoAccess { .. } => Errno::ACCESS,
            Self::Hole { .. } | Self::NoMemory { .. } | Self::NoRoom { .. } => Errno::NOMEM,
            Self::LockLimit { limit_bytes: 0, .. }
            | Self::ProcessLockLimit { limit_bytes: 0, .. } => Errno::PERM,
            Self::LockLimit { .. } | Self::ProcessLockLimit { .. } => Errno::NOMEM,
            Self::Unsupported { .. } => Errno::OPNOTSUPP,
            Self::Busy { .. } => Errno::BUSY,
            Self::NoBacking { .. } => Errno::FAULT,
            Self::Poisoned { .. } => Errno::HWPOISON,
            Self::Cancelled { .. } => Errno::CANCELED,
            Self::TimedOut { .. } => Errno::TIMEDOUT,
            Self::NoProcess { .. } => Errno::SRCH,
            Self::MayNotLook { answer, .. } => *answer,
            Self::OtherLayout { .. } => Errno::PROTO,
            Self::System { errno, .. } | Self::SystemAt { errno, .. } => *errno,
        };
        errno.raw_os_error()
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        let kind = std::io::Error::from_raw_os_error(error.errno()).kind();
        Self::new(kind, error)
    }
}

/// The kinds of memory that verbs tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Private anonymous memory: what `malloc` hands out.
    PrivateAnonymous,
    /// Shared memory or a shared mapping of a file (memfd, tmpfs, disk).
    Shared,
    /// A private (copy-on-write) mapping of a file.
    PrivateFile,
    /// Memory made of huge pages from the hugetlb pool.
    HugeTlb,
    /// The kernel's own mappings, such as `[vdso]` and `[vvar]`.
    Special,
}

impl std::fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::PrivateAnonymous => "private anonymous memory",
            Self::Shared => "shared memory or a shared file",
            Self::PrivateFile => "a private mapping of a file",
            Self::HugeTlb => "hugetlb memory",
            Self::Special => "a special mapping of the kernel",
        })
    }
}

/// What a consuming call gives back when it failed: the value, untouched, and
/// why.
///
/// Turns into an [`Error`] with `?`, which drops the value.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused<T> {
    /// The value that the call would have consumed.
    pub value: T,
    /// Why it did not.
    pub error: Error,
}

impl<T> From<Refused<T>> for Error {
    fn from(refused: Refused<T>) -> Self {
        refused.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_memory_is_told_with_its_figures_and_remedy() {
        let page = crate::page_size();
        let range = PageRange::new(page, 64 * page).unwrap();
        let refused = |bound| Error::NoMemory {
            verb: "populate",
            range,
            need_bytes: 300 << 20,
            room_bytes: 156 << 20,
            bound: Box::new(bound),
        };
        let by_cgroup = refused(RoomBound::Cgroup {
            path: "/sys/fs/cgroup/jobs".into(),
            limit_bytes: 256 << 20,
            used_bytes: 100 << 20,
        });
        assert_eq!(by_cgroup.errno(), libc::ENOMEM);
        assert_eq!(
            by_cgroup.to_string(),
            format!(
                "cannot populate {range}: it takes 300 MiB, and the memory cgroup \
                 /sys/fs/cgroup/jobs (limit 256 MiB, 100 MiB in use) leaves 156 MiB: raise the \
                 limit, free memory in the cgroup, or go on all the same with `force`; \
                 nothing was done"
            )
        );
        let told = |bound| refused(bound).to_string();
        assert!(told(RoomBound::MemAvailable).contains("MemAvailable leaves 156 MiB: free memory"));
        let pool = RoomBound::HugePool {
            page_bytes: 2 << 20,
        };
        assert!(told(pool).contains("the pool of 2 MiB huge pages leaves 156 MiB: enlarge"));
    }
}
