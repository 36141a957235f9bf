//! The arguments of `tenure evict`.

use std::ops::Range;

use clap::Args;

use super::TreeArguments;

/// Drop files from the page cache
///
/// Dirty pages are written first, so that nothing is lost: the next read comes from the
/// disk. Pages stay that a process has mapped, and those that cannot be written; the output
/// says which files these are, and which processes map them.
///
/// With --if-cold only files that nobody uses are dropped: a file is cold if no process has
/// it open or mapped when the command starts. Only processes count that the user may
/// inspect: as root, all. Where such a process cannot be examined, a line on standard error
/// says so, the files stay, and the exit status is 3.
#[derive(Args, Debug)]
#[command(after_help = super::EXIT_STATUS)]
pub struct EvictArguments {
    #[command(flatten)]
    pub tree: TreeArguments,

    /// Leave files that a process has open or mapped
    #[arg(long)]
    pub if_cold: bool,

    /// Drop only this range of bytes of each file: START..END, such as 1G..2G or ..64M
    #[arg(long, value_name = "RANGE", value_parser = super::range)]
    pub range: Option<Range<u64>>,

    /// Print one JSON document at the end and nothing else on standard output
    #[arg(long)]
    pub json: bool,
}
