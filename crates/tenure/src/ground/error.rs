//! The error type of the library: each variant says what happened, to which
//! range, and what to do about it.

use rustix::io::Errno;

use super::bytes::Bytes;
use super::headroom_limit::HeadroomLimit;
use super::range::PageRange;

/// A `Result` whose error is [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a call failed.
///
/// Unless a variant says otherwise, the call has changed no memory.
/// [`Error::errno`] is the error number that the C interface returns for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address or the length is not a multiple of the page size.
    #[error(
        "{addr:#x}+{len:#x} is not aligned: address and length must be multiples of {page_bytes} bytes"
    )]
    Unaligned {
        /// The requested address.
        addr: usize,
        /// The requested length, in bytes.
        len: usize,
        /// The page size of this memory, of which both must be multiples.
        page_bytes: usize,
    },

    /// The range extends past the end of the address space.
    #[error("{addr:#x}+{len:#x} extends past the end of the address space")]
    Overflow {
        /// The requested address.
        addr: usize,
        /// The requested length, in bytes.
        len: usize,
    },

    /// The byte bounds do not lie inside their [`Mapping`](crate::Mapping).
    #[error("bytes {from}..{to} do not lie inside a mapping of {len} bytes")]
    OutOfBounds {
        /// The first byte requested.
        from: usize,
        /// The byte after the last one requested.
        to: usize,
        /// The mapping's length, in bytes.
        len: usize,
    },

    /// The caller requested a mapping of zero bytes, or of an empty file.
    #[error("a mapping must have at least one byte; an empty file cannot be mapped")]
    EmptyMapping,

    /// A part of the range is not mapped.
    #[error("{range} has a hole at {hole}: map it, or leave it out; nothing was done")]
    Hole {
        /// The requested range.
        range: PageRange,
        /// The first unmapped part of the range.
        hole: PageRange,
    },

    /// The verb does not support this kind of memory.
    #[error(
        "cannot {verb} {range}: {part} is {found}, and {verb} supports {wanted} only; nothing was done"
    )]
    WrongKind {
        /// The verb that failed.
        verb: &'static str,
        /// The requested range.
        range: PageRange,
        /// The part that is of another kind.
        part: PageRange,
        /// The kind of that part.
        found: MemoryKind,
        /// The kind of memory that the verb supports.
        wanted: &'static str,
    },

    /// The protection of the memory does not allow the access that the verb
    /// needs.
    #[error(
        "cannot {verb} {range}: {part} is mapped without {missing} access; add it with mprotect; nothing was done"
    )]
    NoAccess {
        /// The verb that failed.
        verb: &'static str,
        /// The requested range.
        range: PageRange,
        /// The part that lacks the access.
        part: PageRange,
        /// `read` or `write`.
        missing: &'static str,
    },

    /// A part of the range is locked in memory.
    #[error(
        "cannot {verb} {range}: a part of it is locked in memory; unlock that first; nothing was done"
    )]
    Locked {
        /// The verb that failed.
        verb: &'static str,
        /// The requested range.
        range: PageRange,
    },

    /// A part of the range is sealed (`mseal(2)`, Linux 6.10): until the process ends it
    /// stays mapped, and without write access its contents stay.
    #[error(
        "cannot {verb} {range}: {part} is sealed (mseal) until the process ends; leave it out; nothing was done"
    )]
    Sealed {
        /// The verb that failed.
        verb: &'static str,
        /// The requested range.
        range: PageRange,
        /// The part that is sealed.
        part: PageRange,
    },

    /// The lock would exceed `RLIMIT_MEMLOCK`.
    #[error(
        "cannot lock {range}: it needs {2} more, but RLIMIT_MEMLOCK is {0}, of which {1} are in use: raise it with ulimit -l or LimitMEMLOCK=, or give the program CAP_IPC_LOCK",
        Bytes(*limit_bytes), Bytes(*used_bytes), Bytes(*requested_bytes)
    )]
    LockLimit {
        /// The requested range.
        range: PageRange,
        /// The soft limit, in bytes.
        limit_bytes: usize,
        /// The bytes that the process has locked already.
        used_bytes: usize,
        /// The part of the range that is not locked yet, in bytes.
        requested_bytes: usize,
    },

    /// Locking all memory of the process, or a new mapping that is locked
    /// because of [`lock_all`](crate::lock::lock_all), would exceed `RLIMIT_MEMLOCK`.
    #[error(
        "cannot {verb}: it needs {2} more, but RLIMIT_MEMLOCK is {0}, of which {1} are in use: raise it with ulimit -l or LimitMEMLOCK=, or give the program CAP_IPC_LOCK",
        Bytes(*limit_bytes), Bytes(*used_bytes), Bytes(*requested_bytes)
    )]
    ProcessLockLimit {
        /// The verb that failed.
        verb: &'static str,
        /// The soft limit, in bytes.
        limit_bytes: usize,
        /// The bytes that the process has locked already.
        used_bytes: usize,
        /// The further bytes to be locked.
        requested_bytes: usize,
    },

    /// The running kernel, a container or a seccomp filter does not offer a
    /// feature that the verb needs.
    #[error("cannot {verb}: {feature} is not available here ({answer}): {remedy}")]
    Unsupported {
        /// The verb that failed.
        verb: &'static str,
        /// The kernel feature that is missing.
        feature: &'static str,
        /// The kernel's answer.
        answer: Errno,
        /// The kernel version that has the feature, and what may deny it.
        remedy: &'static str,
    },

    /// The contents are volatile, so they cannot be borrowed.
    #[error("{range} is volatile: mark it nonvolatile before it is used")]
    Volatile {
        /// The volatile range.
        range: PageRange,
    },

    /// A part of the volatile contents was purged.
    #[error("pages of {range} have been purged: mark it nonvolatile to learn which")]
    Purged {
        /// The range, of which at least one page was purged.
        range: PageRange,
    },

    /// The arena has no free extent of the requested length.
    #[error(
        "the arena {arena} has no free extent of {} (the longest is {}): drop buffers, or make a larger arena (it takes address space only)",
        Bytes(*requested_bytes), Bytes(*longest_bytes)
    )]
    ArenaFull {
        /// The arena.
        arena: PageRange,
        /// The requested length, in bytes.
        requested_bytes: usize,
        /// The longest free extent, in bytes.
        longest_bytes: usize,
    },

    /// The range is registered with another userfaultfd.
    #[error(
        "cannot mark {range} volatile: a part of it is registered with another userfaultfd; end that registration first; nothing was done"
    )]
    Busy {
        /// The requested range.
        range: PageRange,
    },

    /// A page has no backing: it lies past the end of its file, or the hugetlb
    /// pool is empty. Touching it would be SIGBUS.
    ///
    /// Pages before it may have been populated already.
    #[error(
        "cannot {verb} {range}: a page of it has no backing (the file is shorter than its mapping, or the hugetlb pool is empty), and touching it would be SIGBUS: extend the file, or enlarge the pool"
    )]
    NoBacking {
        /// The verb that failed.
        verb: &'static str,
        /// The requested range.
        range: PageRange,
    },

    /// A page of the range lies on memory with a hardware error (EHWPOISON).
    #[error(
        "cannot {verb} {range}: a page of it lies on memory with a hardware error (EHWPOISON): unmap that page, whose contents cannot be recovered"
    )]
    HwPoison {
        /// The verb that failed.
        verb: &'static str,
        /// The requested range.
        range: PageRange,
    },

    /// The verb would need more than the headroom. It checks before it begins,
    /// because past a cgroup's limit the kernel answers with SIGKILL.
    #[error(
        "cannot {verb} {range}: it needs {}, and {limit} leaves a headroom of {}: {}, or skip this check with `force`; nothing was done",
        Bytes(*need_bytes), Bytes(*headroom_bytes), limit.remedy()
    )]
    NoMemory {
        /// The verb that failed.
        verb: &'static str,
        /// The requested range.
        range: PageRange,
        /// The bytes that the verb would take.
        need_bytes: usize,
        /// The headroom, in bytes.
        headroom_bytes: usize,
        /// The limit that determines the headroom. Boxed, because an error
        /// travels with the mapping that the call did not consume.
        limit: Box<HeadroomLimit>,
    },

    /// The bytes exceed the headroom, less what is admitted already.
    #[error(
        "cannot admit {}: {limit} leaves a headroom of {}: {}",
        Bytes(*need_bytes), Bytes(*headroom_bytes), limit.remedy()
    )]
    NotAdmitted {
        /// The bytes that were to be admitted.
        need_bytes: usize,
        /// The headroom, less what is admitted, in bytes.
        headroom_bytes: usize,
        /// The limit that determines the headroom.
        limit: Box<HeadroomLimit>,
    },

    /// The kernel could not create another mapping: the process has reached
    /// `vm.max_map_count`, its address space limit, or the overcommit limit.
    #[error(
        "{call} on {range} could not create a mapping: the process has reached vm.max_map_count, RLIMIT_AS or the overcommit limit: raise it, or unmap something"
    )]
    MappingLimit {
        /// The system call.
        call: &'static str,
        /// The requested range.
        range: PageRange,
    },

    /// The work was cancelled before it was complete.
    #[error("{verb} {range} was cancelled after {}", Bytes(*done_bytes))]
    Cancelled {
        /// The verb that failed.
        verb: &'static str,
        /// The requested range.
        range: PageRange,
        /// The bytes that were done by then.
        done_bytes: usize,
    },

    /// The timeout expired before the work was complete.
    #[error("the timeout expired with {} pending: wait longer", Bytes(*pending_bytes))]
    TimedOut {
        /// The bytes that are still pending.
        pending_bytes: usize,
    },

    /// There is no process with this number.
    #[error("there is no process {pid}")]
    NoProcess {
        /// The process number.
        pid: u32,
    },

    /// The kernel does not let this process inspect another one's memory.
    #[error(
        "no permission to inspect process {pid} ({answer}): run as its user with kernel.yama.ptrace_scope=0, as root, or with CAP_SYS_PTRACE"
    )]
    PermissionDenied {
        /// The process.
        pid: u32,
        /// The kernel's answer.
        answer: Errno,
    },

    /// The process has counters in a layout that this version does not know.
    #[error(
        "the counters of process {pid} have the layout {layout}, which this version of tenure cannot read: use the version that the process was built with"
    )]
    IncompatibleLayout {
        /// The process.
        pid: u32,
        /// The name of the layout.
        layout: String,
    },

    /// Shared memory cannot be used, or not now.
    #[error("shared memory {name}: {reason}")]
    SharedMemory {
        /// The name, or what there is in place of one.
        name: String,
        /// The reason.
        reason: &'static str,
        /// The error number that stands for it.
        errno: Errno,
    },

    /// A system call failed in a way that has no variant of its own.
    #[error("{call} failed: {errno}")]
    System {
        /// The system call, ioctl or file.
        call: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },

    /// A system call on a range failed in a way that has no variant of its own.
    #[error("{call} on {range} failed: {errno}")]
    SystemAt {
        /// The system call or ioctl.
        call: &'static str,
        /// The range that the call was made on.
        range: PageRange,
        /// The kernel's answer.
        errno: Errno,
    },
}

impl Error {
    /// Returns the error number that stands for this error, as in `errno(3)`.
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
            Self::Sealed { .. } => Errno::PERM,
            Self::Hole { .. }
            | Self::ArenaFull { .. }
            | Self::NoMemory { .. }
            | Self::NotAdmitted { .. }
            | Self::MappingLimit { .. } => Errno::NOMEM,
            Self::LockLimit { limit_bytes: 0, .. }
            | Self::ProcessLockLimit { limit_bytes: 0, .. } => Errno::PERM,
            Self::LockLimit { .. } | Self::ProcessLockLimit { .. } => Errno::NOMEM,
            Self::Unsupported { .. } => Errno::OPNOTSUPP,
            Self::Busy { .. } | Self::Volatile { .. } => Errno::BUSY,
            Self::NoBacking { .. } | Self::Purged { .. } => Errno::FAULT,
            Self::HwPoison { .. } => Errno::HWPOISON,
            Self::Cancelled { .. } => Errno::CANCELED,
            Self::TimedOut { .. } => Errno::TIMEDOUT,
            Self::NoProcess { .. } => Errno::SRCH,
            Self::PermissionDenied { answer, .. } => *answer,
            Self::IncompatibleLayout { .. } => Errno::PROTO,
            Self::System { errno, .. }
            | Self::SystemAt { errno, .. }
            | Self::SharedMemory { errno, .. } => *errno,
        };
        errno.raw_os_error()
    }

    /// Names the verb that the caller requested, where another one failed for it.
    pub(crate) fn of_verb(mut self, requested: &'static str) -> Self {
        if let Self::NoBacking { verb, .. }
        | Self::HwPoison { verb, .. }
        | Self::NoMemory { verb, .. }
        | Self::Cancelled { verb, .. } = &mut self
        {
            *verb = requested;
        }
        self
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        let kind = std::io::Error::from_raw_os_error(error.errno()).kind();
        Self::new(kind, error)
    }
}

/// The kinds of memory that verbs distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Private anonymous memory, such as `malloc` returns.
    PrivateAnonymous,
    /// Shared memory or a shared mapping of a file (memfd, tmpfs, disk).
    Shared,
    /// A private (copy-on-write) mapping of a file.
    PrivateFile,
    /// Memory made of huge pages from the hugetlb pool.
    HugeTlb,
    /// The kernel's own mappings, such as `[vdso]` and `[vvar]`.
    Special,
    /// Memory that the kernel drops when it needs memory (MAP_DROPPABLE, Linux 6.11). Only
    /// locking tells it from other private anonymous memory.
    Droppable,
}

impl std::fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::PrivateAnonymous => "private anonymous memory",
            Self::Shared => "shared memory or a shared file",
            Self::PrivateFile => "a private mapping of a file",
            Self::HugeTlb => "hugetlb memory",
            Self::Special => "a special mapping of the kernel",
            Self::Droppable => "droppable memory",
        })
    }
}

/// The error of a call that consumes its argument: it returns the value,
/// untouched, and the reason.
///
/// `?` converts it to an [`enum@Error`] and drops the value.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused<T> {
    /// The value that the call would have consumed.
    pub value: T,
    /// The reason why the call failed.
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
    fn no_memory_error_names_figures_and_remedy() {
        let page = crate::page_size();
        let range = PageRange::new(page, 64 * page).unwrap();
        let refused = |limit| Error::NoMemory {
            verb: "populate",
            range,
            need_bytes: 300 << 20,
            headroom_bytes: 156 << 20,
            limit: Box::new(limit),
        };
        let by_cgroup = refused(HeadroomLimit::Cgroup {
            path: "/sys/fs/cgroup/jobs".into(),
            limit_bytes: 256 << 20,
            used_bytes: 100 << 20,
        });
        assert_eq!(by_cgroup.errno(), libc::ENOMEM);
        assert_eq!(
            by_cgroup.to_string(),
            format!(
                "cannot populate {range}: it needs 300 MiB, and the memory cgroup \
                 /sys/fs/cgroup/jobs (limit 256 MiB, 100 MiB in use) leaves a headroom of \
                 156 MiB: raise the limit, free memory in the cgroup, or skip this check with \
                 `force`; nothing was done"
            )
        );
        let text = |limit| refused(limit).to_string();
        let by_machine = text(HeadroomLimit::MemAvailable);
        assert!(by_machine.contains("MemAvailable leaves a headroom of 156 MiB: free memory"));
        let pool = HeadroomLimit::HugePool {
            page_bytes: 2 << 20,
        };
        let by_pool = text(pool);
        assert!(by_pool.contains("the hugetlb pool of 2 MiB pages leaves a headroom of 156 MiB:"));
    }
}
