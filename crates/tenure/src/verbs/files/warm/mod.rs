//! Reading what is missing of files into the page cache, ahead of its use.

mod admit;
mod options;
mod plan;
mod readers;
mod scaling;

use std::fs::File;
use std::ops::Range;

pub use options::{Progress, WarmOptions};

use self::plan::Planner;
use self::readers::Readers;
use super::Error;
use crate::ground::error::Result;
use crate::ground::headroom_limit::HeadroomLimit;
use crate::ground::sys::affinity::process_cpu_count;
use crate::ground::sys::thread::with_workers;

/// An open file of which something is wanted in the page cache.
#[derive(Debug)]
pub struct Wanted<T> {
    /// Given back by [`warm`] with the outcome.
    pub tag: T,
    /// The file, open for reading. Its advice about reading ahead changes.
    pub file: File,
    /// The wanted ranges, in bytes of the file, in order.
    pub ranges: Vec<Range<u64>>,
}

impl<T> Wanted<T> {
    /// Wants all of the file.
    pub fn whole(tag: T, file: File) -> Self {
        Self::part(tag, file, 0..u64::MAX)
    }

    /// Wants a part of the file, as far as the file reaches.
    pub fn part(tag: T, file: File, range: Range<u64>) -> Self {
        let ranges = vec![range];
        Self { tag, file, ranges }
    }
}

/// The outcome of one file, in bytes of whole pages. A file whose length changes meanwhile is
/// read as far as it reached when its turn came, and as far as it reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileOutcome {
    /// Was in the page cache already; 0 where the kernel does not tell.
    pub resident_bytes: u64,
    /// Was read.
    pub read_bytes: u64,
    /// Is missing, because the budget or the headroom was used up, or after an error.
    pub left_bytes: u64,
    /// Why the file could not be examined or read.
    pub error: Option<Error>,
}

/// Why something was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoppedBy {
    /// The budget was read.
    Budget,
    /// More would push out what was read before, or what others use: the limit that leaves
    /// the least headroom.
    Headroom(HeadroomLimit),
}

/// The sums over all files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Warmed {
    /// Was in the page cache already.
    pub resident_bytes: u64,
    /// Was read.
    pub read_bytes: u64,
    /// Is missing still.
    pub left_bytes: u64,
    /// How many files had an error.
    pub failed_files: u64,
    /// Why something was left out that could have been read.
    pub stopped_by: Option<StoppedBy>,
    /// How many threads read at most at one time.
    pub readers: usize,
}

impl Warmed {
    /// Whether all that was wanted is in the page cache.
    pub fn is_complete(&self) -> bool {
        self.left_bytes == 0 && self.failed_files == 0
    }
}

/// Reads what is missing of the files, in their order: `cachestat(2)` and `pread(2)`. Holes are
/// not read. Several threads read, as many as raise the rate, and the caller is one of them.
/// `done` learns the outcome of each file, in order.
///
/// It stops reading before the budget of the [options](WarmOptions) or the
/// [headroom](crate::headroom) is exceeded, and only counts what is missing of the other
/// files: what is read must not push out what was read before. Of each limit, the machine's
/// and those of the cgroups around the process, an eighth is left to others (5 GiB at
/// most). The pages that are resident already count, too.
///
/// Where the kernel does not tell what is resident (see the [module](super)) all of the file
/// is read, which for resident pages is a copy.
///
/// # Errors
///
/// [`Error::System`] when the memory limits cannot be read and never were. Files that cannot
/// be read are no error of the call: their outcomes have one.
pub fn warm<T>(
    files: impl IntoIterator<Item = Wanted<T>>,
    options: &WarmOptions,
    done: impl FnMut(T, FileOutcome),
) -> Result<Warmed> {
    let max_readers = options.readers.unwrap_or_else(default_readers).max(1);
    let readers = Readers::new(max_readers, options.readers.is_some());
    let mut planner = Planner::new(&readers, options, done)?;
    with_workers(
        c"tenure-warm",
        1..max_readers,
        &|index| readers.work(index),
        |others| {
            // The others end also if the caller's code panics.
            let closing = readers.close_at_end();
            for wanted in files {
                planner.add(wanted);
            }
            readers.close();
            planner.finish(others);
            drop(closing);
        },
    );
    Ok(planner.into_result())
}

/// More threads than CPUs: they wait for the disk.
fn default_readers() -> usize {
    (4 * process_cpu_count()).clamp(4, 32)
}
