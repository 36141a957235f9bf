//! The arguments of `tenure warm`.

use std::ops::Range;

use clap::Args;

use super::TreeArguments;

/// Read what is missing of files into the page cache
///
/// Programs that read or map the files afterwards need not wait for the disk. Resident
/// pages are not read again, nor are the holes of sparse files. Several threads
/// read, as many as raise the rate, in the order of the files.
///
/// The command stops before what it reads would push out what it has read before, or what
/// others use: an eighth of the memory of the machine and of each memory cgroup around the
/// command stays free (5 GiB at most). Resident parts of the files count, too. The kernel
/// may reclaim the pages later, when it needs memory; tenure keep keeps them.
///
/// The kernel tells what is resident only of files that the user owns or may write;
/// others are read as a whole. Files that grow meanwhile are read as far as they reached
/// when their turn came.
#[derive(Args, Debug)]
#[command(after_help = super::EXIT_STATUS)]
pub struct WarmArguments {
    #[command(flatten)]
    pub tree: TreeArguments,

    /// Read SIZE at most, of the first files. SIZE is in bytes, or ends in K, M, G or T
    #[arg(long, value_name = "SIZE", value_parser = super::budget)]
    pub budget: Option<u64>,

    /// Read only this range of bytes of each file: START..END, such as 1G..2G or ..64M
    #[arg(long, value_name = "RANGE", value_parser = super::range)]
    pub range: Option<Range<u64>>,

    /// Read with so many threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub readers: Option<u16>,

    /// Print one JSON document at the end and nothing else on standard output
    #[arg(long)]
    pub json: bool,
}
