//! Dropping a file from the page cache.

use std::fs::File;
use std::ops::Range;

use super::residency::residency;
use super::{FileResidency, clip, system};
use crate::ground::error::{Error, Result};
use crate::ground::sys::page_cache;

/// The result of [`evict`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Evicted {
    /// The residency before the call.
    pub before: FileResidency,
    /// The residency after it: what stayed. Pages that are not dirty stayed because a
    /// process maps them (locked or not) or the kernel uses them at this moment, such as
    /// for another read.
    pub after: FileResidency,
    /// Why dirty pages could not be written, so that everything stayed. The kernel counts
    /// such pages as clean from then on: evicting the file once more loses them.
    pub write_error: Option<Error>,
}

impl Evicted {
    /// The bytes that left the page cache.
    pub fn evicted_bytes(&self) -> u64 {
        self.before
            .resident_bytes
            .saturating_sub(self.after.resident_bytes)
    }
}

/// Writes the dirty pages of a part of the file back, and drops its pages from the page
/// cache: `sync_file_range(2)` and, where that leaves dirty pages, `fdatasync(2)`; then
/// POSIX_FADV_DONTNEED. Pages that a process maps stay, and so does what the kernel keeps
/// in the same large folio. The contents of the file do not change.
///
/// # Errors
///
/// As for [`residency`], with nothing dropped; [`Error::System`] when the kernel refuses
/// the advice. Pages that cannot be written are no error: [`Evicted`] tells.
///
/// ```
/// # use std::fs::File;
/// let file = File::open("Cargo.toml")?;
/// let evicted = tenure::files::evict(&file, 0..u64::MAX)?;
/// println!("{} of {} bytes stayed", evicted.after.resident_bytes, evicted.before.resident_bytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn evict(file: &File, part: Range<u64>) -> Result<Evicted> {
    /// Pages that a CPU holds in a batch for the kernel's lists, or that are being read
    /// ahead, stay for a moment.
    const TRIES: usize = 3;
    let (pages, _) = clip(file, &part)?;
    let before = residency(file, pages.clone())?;
    let mut after = before;
    let mut write_error = None;
    for _ in 0..TRIES {
        if after.resident_bytes == 0 {
            break;
        }
        write_error = write_back(file, &pages, after).err();
        if write_error.is_some() {
            // The kernel counts pages as clean that it failed to write, and would drop them.
            after = residency(file, pages.clone())?;
            break;
        }
        page_cache::drop_pages(file, pages.clone()).map_err(system("posix_fadvise"))?;
        after = residency(file, pages.clone())?;
    }
    Ok(Evicted {
        before,
        after,
        write_error,
    })
}

/// Writes dirty pages; all that may be some, where the kernel does not count them.
fn write_back(file: &File, pages: &Range<u64>, found: FileResidency) -> Result<()> {
    let is_dirty = |found: FileResidency| {
        let bytes = found.dirty_bytes.zip(found.writeback_bytes);
        bytes.is_none_or(|(dirty, writeback)| dirty + writeback > 0)
    };
    if !is_dirty(found) {
        return Ok(());
    }
    page_cache::write_back(file, pages.clone()).map_err(system("sync_file_range"))?;
    // Pages are redirtied where the file system has to allocate blocks.
    if is_dirty(residency(file, pages.clone())?) {
        page_cache::write_back_all(file).map_err(system("fdatasync"))?;
    }
    Ok(())
}
