//! `SharedFile`: a look at the names that there are.

use std::fmt;

use super::file;
use super::layout::Kind;
use super::stats::SharedStats;
use super::table::{Table, refused};
use crate::ground::error::Result;
use crate::ground::sys::Errno;

/// A file of a name, for programs that show and remove names: it is not attached.
///
/// ```
/// use tenure::SharedFile;
///
/// for name in SharedFile::names().unwrap_or_default() {
///     match SharedFile::open(&name) {
///         Ok(file) => println!("{name}: {} bytes", file.stats()?.bytes),
///         Err(error) => println!("{error}"),
///     }
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
pub struct SharedFile {
    table: Table,
}

impl SharedFile {
    /// Returns the names of this user's arenas and caches, sorted. Some may be corrupt.
    ///
    /// # Errors
    ///
    /// [`Error::System`](crate::Error::System) if `/dev/shm` cannot be read.
    pub fn names() -> Result<Vec<String>> {
        file::names()
    }

    /// Opens the file of a name.
    ///
    /// # Errors
    ///
    /// As for [`SharedArena::open`](super::SharedArena::open); ENOENT if there is no such name.
    pub fn open(name: &str) -> Result<Self> {
        let none = || refused(name, "there is no such name", Errno::NOENT);
        let table = file::open(name)?.ok_or_else(none)?;
        Ok(Self { table })
    }

    /// Returns whether it is a [`SharedCache`](super::SharedCache), and no arena.
    pub fn is_cache(&self) -> bool {
        self.table.geometry.kind == Kind::Cache
    }

    /// Returns what there is in it, with a cache's values as `buffers`.
    ///
    /// # Errors
    ///
    /// [`Error::SharedMemory`](crate::Error::SharedMemory) if the file was truncated.
    pub fn stats(&self) -> Result<SharedStats> {
        self.table.check()?;
        SharedStats::of(&self.table)
    }

    /// Removes a name that no live process has attached, also of a file that is corrupt. A
    /// process that attaches it at this moment keeps the file without its name.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open), and [`Error::SharedMemory`](crate::Error::SharedMemory)
    /// (EBUSY) if it is in use.
    pub fn remove_unused(name: &str) -> Result<()> {
        match Self::open(name).and_then(|file| file.stats()) {
            Ok(stats) if stats.processes > 0 => {
                Err(refused(name, "live processes use it", Errno::BUSY))
            }
            // No process can open it.
            Err(error) if error.errno() != libc::EPROTO => Err(error),
            _ => file::remove(name),
        }
    }
}

impl fmt::Debug for SharedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedFile")
            .field("name", &self.table.name)
            .finish_non_exhaustive()
    }
}
