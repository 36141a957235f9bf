//! How much more of the groups around this process can be swapped out.

use std::io;
use std::path::Path;

use super::{Groups, NO_LIMIT, errno_of, read_if_present};
use crate::ground::sys::Errno;

/// The files of a group that are about swap.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Files {
    /// The limit, and what counts against it.
    limit: &'static str,
    usage: &'static str,
    /// Whether memory counts against it, too.
    counts_memory: bool,
    /// How willingly the group swaps, where it has a file for that.
    swappiness: Option<&'static str>,
}

pub(super) const VERSION_1: Files = Files {
    limit: "memory.memsw.limit_in_bytes",
    usage: "memory.memsw.usage_in_bytes",
    counts_memory: true,
    swappiness: Some("memory.swappiness"),
};

pub(super) const VERSION_2: Files = Files {
    limit: "memory.swap.max",
    usage: "memory.swap.current",
    counts_memory: false,
    swappiness: None,
};

/// How willingly groups without a file for that swap.
const SWAPPINESS: &str = "proc/sys/vm/swappiness";

impl Groups {
    /// Returns how much more the kernel may swap out, by these groups; `usize::MAX` if they set
    /// no limit.
    pub(crate) fn swappable_bytes(&self) -> Result<usize, Errno> {
        self.swappable_bytes_below(Path::new("/")).map_err(errno_of)
    }

    /// Returns the same for the groups of a recorded tree.
    pub(super) fn swappable_bytes_below(&self, root: &Path) -> io::Result<usize> {
        let Some((version, directories)) = &self.memory else {
            return Ok(usize::MAX);
        };
        let files = &version.swap;
        let own = directories.first().zip(files.swappiness);
        let own = own.map(|(directory, file)| number(&directory.join(file)));
        let swappiness = match own.transpose()?.flatten() {
            None => number(&root.join(SWAPPINESS))?,
            own => own,
        };
        // Nothing of a group at its limit is swapped out then.
        if swappiness == Some(0) {
            return Ok(0);
        }
        let mut least = usize::MAX;
        for directory in directories {
            // No file: the root of version 2, or a kernel that does not count swap.
            if let Some(limit) = number(&directory.join(files.limit))? {
                let usage = number(&directory.join(files.usage))?.unwrap_or(limit);
                // Swap is what the limit allows beyond that of memory.
                let of_memory = match files.counts_memory {
                    true => number(&directory.join(version.limit))?.unwrap_or(limit),
                    false => 0,
                };
                let left = limit.saturating_sub(usage.max(of_memory));
                least = least.min(usize::try_from(left).unwrap_or(usize::MAX));
            }
        }
        Ok(least)
    }
}

/// Reads a number; `None` where there is no limit, or no such file.
fn number(file: &Path) -> io::Result<Option<u64>> {
    let text = read_if_present(file)?;
    let number = match text.trim() {
        "" | "max" => return Ok(None),
        text => text.parse().map_err(io::Error::other)?,
    };
    Ok(Some(number).filter(|&number| number < NO_LIMIT))
}
