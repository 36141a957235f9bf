//! The arguments of `tenure fincore`.

use clap::Args;

use super::TreeArguments;

const EXIT_STATUS: &str = "\
Exit status:
  0  done (also when the reader of the output has closed it)
  1  something could not be examined; a line on standard error names it, the rest is done
  2  the command line was wrong";

/// Show what of files is in the page cache, and where
///
/// For each file: its resident pages, of these the dirty ones (changed, not written yet)
/// and those under writeback, and the pages that the kernel has evicted and still
/// remembers, of these the ones evicted so recently that reading them again shows that the
/// page cache is too small. The line of blocks stands for the file from its begin to its
/// end: the darker a block, the more of that part is resident.
///
/// Folders have a sum over their files. Files of terabytes with holes and trees of many
/// files take seconds. Without cachestat (Linux 6.5) the command counts resident pages
/// only ("-" for the others). The kernel tells this only of files that the user owns or may
/// write.
#[derive(Args, Debug)]
#[command(after_help = EXIT_STATUS)]
pub struct FincoreArguments {
    #[command(flatten)]
    pub tree: TreeArguments,

    /// Show only the N files with the most resident pages, most first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub top: Option<u32>,

    /// Show only the sums
    #[arg(long, short, conflicts_with = "top")]
    pub summarize: bool,

    /// Show a sum for each folder down to N levels below each PATH
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub depth: usize,

    /// Print one JSON document and nothing else on standard output. Figures that the kernel
    /// does not tell are null; "blocks" has the resident share of each of 40 equal parts of
    /// a file, in percent, where they differ
    #[arg(long)]
    pub json: bool,
}
