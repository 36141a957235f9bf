//! How much of a file is in the page cache.

use std::fs::File;
use std::ops::{Add, Range};

use super::{clip, system};
use crate::ground::error::{Error, Result};
use crate::ground::sys::features::Features;
use crate::ground::sys::page_cache::{self, CacheStat};
use crate::ground::sys::{Errno, page_size};

/// The part of a file that is in the page cache, in bytes of whole pages. Figures that only
/// `cachestat` has (Linux 6.5) are `None` without it.
///
/// Sums of residencies are residencies: `None` where one of them is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileResidency {
    /// In the page cache.
    pub resident_bytes: u64,
    /// Of these, changed and not yet written to the disk.
    pub dirty_bytes: Option<u64>,
    /// Of these, being written to the disk now.
    pub writeback_bytes: Option<u64>,
    /// Reclaimed by the kernel, as far as it remembers.
    pub evicted_bytes: Option<u64>,
    /// Of these, reclaimed so recently that reading them again would show that the page
    /// cache is too small for what is in use.
    pub recently_evicted_bytes: Option<u64>,
}

impl FileResidency {
    /// The residency of nothing.
    pub const NONE: Self = Self {
        resident_bytes: 0,
        dirty_bytes: Some(0),
        writeback_bytes: Some(0),
        evicted_bytes: Some(0),
        recently_evicted_bytes: Some(0),
    };
}

impl Add for FileResidency {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let both = |one: Option<u64>, other: Option<u64>| Some(one? + other?);
        Self {
            resident_bytes: self.resident_bytes + other.resident_bytes,
            dirty_bytes: both(self.dirty_bytes, other.dirty_bytes),
            writeback_bytes: both(self.writeback_bytes, other.writeback_bytes),
            evicted_bytes: both(self.evicted_bytes, other.evicted_bytes),
            recently_evicted_bytes: both(self.recently_evicted_bytes, other.recently_evicted_bytes),
        }
    }
}

impl From<CacheStat> for FileResidency {
    fn from(counts: CacheStat) -> Self {
        let bytes = |pages: u64| pages * page_size() as u64;
        Self {
            resident_bytes: bytes(counts.cached),
            dirty_bytes: Some(bytes(counts.dirty)),
            writeback_bytes: Some(bytes(counts.writeback)),
            evicted_bytes: Some(bytes(counts.evicted)),
            recently_evicted_bytes: Some(bytes(counts.recently_evicted)),
        }
    }
}

/// Counts the pages of a part of the file that are in the page cache: `cachestat(2)`
/// (Linux 6.5), `mincore(2)` where the kernel lacks or refuses it. `..` is the whole file as
/// `0..u64::MAX`; what lies behind the end of the file counts as nothing. Pages of holes
/// count where they are in the page cache, but not by `mincore`.
///
/// # Errors
///
/// [`Error::Unsupported`] where the kernel tells neither way (see the [module](super)),
/// [`Error::System`] when the file cannot be examined.
///
/// ```
/// # use std::fs::File;
/// let file = File::open("Cargo.toml")?;
/// let found = tenure::files::residency(&file, 0..u64::MAX)?;
/// println!("{} bytes are resident", found.resident_bytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn residency(file: &File, part: Range<u64>) -> Result<FileResidency> {
    // The kernel itself ends at the end of the file, which saves asking for it.
    match cachestat(file, part.clone())? {
        Some(counts) => Ok(counts.into()),
        None => {
            let (pages, is_sparse) = clip(file, &part)?;
            let mut resident_bytes = 0;
            super::ranges::scan(file, pages, is_sparse, &mut |range, is_resident| {
                resident_bytes += u64::from(is_resident) * (range.end - range.start);
            })?;
            Ok(FileResidency {
                resident_bytes,
                dirty_bytes: None,
                writeback_bytes: None,
                evicted_bytes: None,
                recently_evicted_bytes: None,
            })
        }
    }
}

/// Calls `cachestat`; `None` where the kernel lacks it or refuses it for this file.
pub(super) fn cachestat(file: &File, part: Range<u64>) -> Result<Option<CacheStat>> {
    if Features::get().cachestat.is_err() {
        return Ok(None);
    }
    match page_cache::cachestat(file, part) {
        Ok(counts) => Ok(Some(counts)),
        Err(Errno::PERM | Errno::ACCESS | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(system("cachestat")(errno)),
    }
}

/// Returns whether `mincore` tells the truth about the file: a page far behind its end is
/// never resident.
pub(super) fn check_honesty(file: &File) -> Result<()> {
    let (len, _) = page_cache::len_and_sparseness(file).map_err(system("fstat"))?;
    let page = page_size() as u64;
    // Large folios do not reach further than this.
    let beyond = len.next_multiple_of(page) + (64 << 20);
    let answer = match page_cache::mincore(file, beyond..beyond + page) {
        Ok(pages) if pages[0] & 1 == 0 => return Ok(()),
        Ok(_) => Errno::PERM,
        Err(errno) => errno,
    };
    Err(Error::Unsupported {
        verb: "tell what of the file is resident",
        feature: "cachestat(2) or an honest mincore(2)",
        answer,
        remedy: "the kernel tells it only to a process that owns the file or may write it: run as its owner or as root",
    })
}
