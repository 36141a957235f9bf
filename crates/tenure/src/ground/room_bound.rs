//! What bounds the memory that may be taken.

use std::fmt;
use std::path::PathBuf;

use super::bytes::Bytes;

/// What bounds the memory that may be taken; shown as people read it.
///
/// ```
/// let bound = tenure::RoomBound::Cgroup {
///     path: "/sys/fs/cgroup/jobs".into(),
///     limit_bytes: 256 << 20,
///     used_bytes: 100 << 20,
/// };
/// assert_eq!(
///     bound.to_string(),
///     "the memory cgroup /sys/fs/cgroup/jobs (limit 256 MiB, 100 MiB in use)"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RoomBound {
    /// The machine: `MemAvailable`, what can be taken without swapping.
    MemAvailable,
    /// A memory cgroup of this process's, or one around it. The kernel answers
    /// with SIGKILL past its limit.
    Cgroup {
        /// The folder where the kernel shows it.
        path: PathBuf,
        /// Its limit.
        limit_bytes: usize,
        /// What it and the groups in it use, less what the kernel gives up
        /// first: inactive page cache, and what this process has freed lazily.
        /// The room is the limit less this.
        used_bytes: usize,
    },
    /// The pool of huge pages of one size.
    HugePool {
        /// That size.
        page_bytes: usize,
    },
}

impl RoomBound {
    /// What makes the room larger.
    pub(super) fn remedy(&self) -> &'static str {
        match self {
            Self::MemAvailable => "free memory",
            Self::Cgroup { .. } => "raise the limit, free memory in the cgroup",
            Self::HugePool { .. } => "enlarge the pool with nr_hugepages",
        }
    }
}

impl fmt::Display for RoomBound {
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
            Self::HugePool { page_bytes } => {
                write!(f, "the pool of {} huge pages", Bytes(*page_bytes))
            }
        }
    }
}
