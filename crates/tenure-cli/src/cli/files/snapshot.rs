//! The arguments of `tenure snapshot` and `tenure restore`.

use std::path::PathBuf;

use clap::Args;

use super::TreeArguments;

const EXIT_STATUS: &str = "\
Exit status:
  0  done
  1  something could not be examined; a line on standard error names it, the rest is done
  2  the command line was wrong";

/// Record which ranges of files are in the page cache
///
/// tenure restore reads these ranges again: after a boot, or on a machine to which the files
/// were deployed. Files without resident pages are left out.
///
/// The snapshot is text, a JSON document on each line. The first is
/// {"format":"tenure-snapshot","version":1}. Each other stands for a file: "path" (absolute),
/// "len_bytes", "modified_ns" (nanoseconds since 1970) and "ranges", pairs of a first byte
/// and the byte behind the last. FILE is replaced when all is written.
#[derive(Args, Debug)]
#[command(after_help = EXIT_STATUS)]
pub struct SnapshotArguments {
    /// The snapshot to write
    #[arg(value_name = "FILE")]
    pub snapshot: PathBuf,

    #[command(flatten)]
    pub tree: TreeArguments,
}

/// Read the ranges of a snapshot into the page cache
///
/// The command reads what is missing of them, as tenure warm does, in the order of the
/// snapshot. A file that has another length or another time of change than when the
/// snapshot was made is skipped and named, as is one that is gone.
#[derive(Args, Debug)]
#[command(after_help = super::EXIT_STATUS)]
pub struct RestoreArguments {
    /// The snapshot that tenure snapshot has written
    #[arg(value_name = "FILE")]
    pub snapshot: PathBuf,

    /// Read SIZE at most. SIZE is in bytes, or ends in K, M, G or T
    #[arg(long, value_name = "SIZE", value_parser = super::budget)]
    pub budget: Option<u64>,

    /// Print one JSON document at the end and nothing else on standard output
    #[arg(long)]
    pub json: bool,
}
