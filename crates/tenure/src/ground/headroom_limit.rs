//! The limit that determines the headroom.

use std::fmt;
use std::path::PathBuf;

use super::bytes::Bytes;

/// The limit that leaves the least headroom. `Display` names it and its
/// figures.
///
/// ```
/// let limit = tenure::HeadroomLimit::Cgroup {
///     path: "/sys/fs/cgroup/jobs".into(),
///     limit_bytes: 256 << 20,
///     used_bytes: 100 << 20,
/// };
/// assert_eq!(
///     limit.to_string(),
///     "the memory cgroup /sys/fs/cgroup/jobs (limit 256 MiB, 100 MiB in use)"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeadroomLimit {
    /// The machine: `MemAvailable`, the memory that the kernel estimates to be
    /// available without swapping.
    MemAvailable,
    /// A memory cgroup: this process's own or one of its ancestors. Past its
    /// limit the kernel kills a process (SIGKILL) instead of failing a call.
    Cgroup {
        /// The cgroup's directory.
        path: PathBuf,
        /// The cgroup's limit, in bytes.
        limit_bytes: usize,
        /// The usage of the cgroup and its descendants, less what the kernel
        /// reclaims first: inactive page cache, and memory that this process
        /// has lazily freed. In bytes. The headroom is the limit less this.
        used_bytes: usize,
    },
    /// The last reading of the limits, less what was admitted since: they cannot be
    /// read any more.
    LastReading,
    /// The hugetlb pool of one page size.
    HugePool {
        /// That page size, in bytes.
        page_bytes: usize,
    },
}

impl HeadroomLimit {
    /// Returns the step that increases this headroom, for error messages.
    pub(super) fn remedy(&self) -> &'static str {
        match self {
            Self::MemAvailable => "free memory",
            Self::Cgroup { .. } => "raise the limit, free memory in the cgroup",
            Self::LastReading => "make /proc and the files of the cgroups readable again",
            Self::HugePool { .. } => "enlarge the pool with vm.nr_hugepages",
        }
    }
}

impl fmt::Display for HeadroomLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MemAvailable => f.write_str("MemAvailable"),
            Self::Cgroup {
                path,
                limit_bytes,
                used_bytes,
            } => write!(
                f,
                "the memory cgroup {} (limit {}, {} in use)",
                path.display(),
                Bytes(*limit_bytes),
                Bytes(*used_bytes)
            ),
            Self::LastReading => f.write_str("the last reading of the memory limits"),
            Self::HugePool { page_bytes } => {
                write!(f, "the hugetlb pool of {} pages", Bytes(*page_bytes))
            }
        }
    }
}
