//! Files: what of a file is in the page cache, reading what is missing ahead of its use,
//! and dropping it.
//!
//! The page cache holds the contents of files that were read or written, until the kernel
//! needs the memory. These functions are populate, release and residency for it. They work
//! on open files, whether or not the file is mapped anywhere; [`LockedFile`](crate::LockedFile)
//! keeps pages of a file in memory.
//!
//! | function | what it does | system calls |
//! | --- | --- | --- |
//! | [`residency()`] | counts resident, dirty and evicted pages | `cachestat`, or `mincore` |
//! | [`missing`], [`resident`] | tell which ranges are (not) in the page cache | the same, and `lseek(SEEK_DATA)` |
//! | [`warm()`] | reads what is missing, in the order of the files, within a budget and the headroom | `pread` by several threads |
//! | [`evict()`] | writes back and drops | `sync_file_range`, `posix_fadvise` |
//!
//! ```
//! use std::fs::File;
//! use tenure::files::{self, Wanted, WarmOptions};
//!
//! let wanted = Wanted::whole("Cargo.toml", File::open("Cargo.toml")?);
//! let warmed = files::warm([wanted], &WarmOptions::new(), |name, outcome| {
//!     println!("{name}: {} bytes read", outcome.read_bytes);
//! })?;
//! assert!(warmed.is_complete());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Offsets and lengths are in bytes of the file. A part that is not aligned stands for the
//! whole pages around it. Holes of a sparse file have no contents to read, and count neither
//! as missing nor as resident.
//!
//! # Who may look
//!
//! Linux tells what is in the page cache only to a process that owns the file, may write it
//! or has CAP_FOWNER (`mincore` since 5.2, `cachestat` since 6.14). Where it does not tell,
//! [`residency()`], [`missing`] and [`resident`] return [`Error::Unsupported`], and [`warm()`]
//! reads the whole file, which is in memory all the faster the more of it is resident.
//! Files outside the page cache (on hugetlbfs, on DAX file systems, opened with `O_DIRECT`)
//! are not resident.

mod evict;
mod ranges;
mod residency;
mod warm;

use std::ops::Range;

pub use evict::{Evicted, evict};
pub use ranges::{missing, resident};
pub use residency::{FileResidency, residency};
pub use warm::{FileOutcome, Progress, StoppedBy, Wanted, WarmOptions, Warmed, warm};

use crate::ground::error::{Error, Result};
use crate::ground::sys::{Errno, page_cache, page_size};

/// Returns the whole pages around a part of a file, at most up to the page that holds the
/// end of the file; and whether the file is sparse.
fn clip(file: &std::fs::File, part: &Range<u64>) -> Result<(Range<u64>, bool)> {
    let (len, is_sparse) = page_cache::len_and_sparseness(file).map_err(system("fstat"))?;
    let page = page_size() as u64;
    let (start, end) = (part.start, part.end.min(len));
    match start < end {
        true => Ok((start / page * page..end.next_multiple_of(page), is_sparse)),
        false => Ok((0..0, is_sparse)),
    }
}

fn system(call: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::System { call, errno }
}
