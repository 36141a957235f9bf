//! The memory limits around this process, for decisions that must not overlook
//! one: a file that cannot be read is an answer of its own, not "no limit".

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use super::super::mountinfo;
use super::{Groups, Limit, Membership, NO_LIMIT, Version};

/// The limits that held when they were looked up. Reading what is unused then
/// takes some 2 µs for each; looking the limits up, a tenth of a millisecond.
#[derive(Debug)]
pub(crate) struct KnownLimits {
    membership: Membership,
    limits: Vec<Limit>,
}

impl KnownLimits {
    /// Looks the limits up; `None` where a file cannot be read, or where the
    /// mounts do not show the group of this process. (In a cgroup namespace the
    /// group is often called `/`, and it is unknown whether one is hidden.)
    pub(crate) fn find() -> Option<Self> {
        Self::find_below(Path::new("/"))
    }

    /// Looks the limits up in a recorded tree.
    pub(super) fn find_below(root: &Path) -> Option<Self> {
        let membership = Membership::read_below(root).ok()?;
        let mountinfo = mountinfo::read_below(root).ok()?;
        let groups = Groups::of(root, membership, &mountinfo);
        let mut limits = Vec::new();
        if let Some((version, directories)) = &groups.memory {
            let own = super::memory_group(&groups.membership.contents)?.1;
            if directories.is_empty() && own != Path::new("/") {
                return None;
            }
            for directory in directories {
                limits.extend(Limit::find(directory, version).ok()?);
            }
        }
        Some(Self {
            membership: groups.membership,
            limits,
        })
    }

    /// Returns whether this process is still in the groups whose limits these
    /// are.
    pub(crate) fn is_current(&self) -> bool {
        self.membership.is_current().unwrap_or(false)
    }

    /// Returns the least unused part of a limit, in bytes; `None` where the
    /// kernel does not tell.
    pub(crate) fn unused_bytes(&self) -> Option<usize> {
        self.least(|limit| Some(limit.unused()?.1))
    }

    /// Returns the same with inactive page cache, which takes longer to read.
    pub(crate) fn unused_or_cached_bytes(&self) -> Option<usize> {
        self.least(Limit::unused_or_cached_bytes)
    }

    fn least(&self, bytes: impl Fn(&Limit) -> Option<usize>) -> Option<usize> {
        let mut limits = self.limits.iter();
        limits.try_fold(usize::MAX, |least, limit| Some(least.min(bytes(limit)?)))
    }
}

impl Limit {
    /// Reads the limit of a group; `None` where it has none.
    fn find(directory: &Path, version: &'static Version) -> io::Result<Option<Self>> {
        let text = match fs::read_to_string(directory.join(version.limit)) {
            // The root of version 2, or a group without the memory controller.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        // "max" is no number.
        let bytes = text.trim().parse::<u64>().ok();
        let bytes = bytes.filter(|&bytes| bytes < NO_LIMIT);
        Ok(bytes.map(|bytes| Self {
            directory: directory.to_owned(),
            limit_bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
            version,
        }))
    }
}
