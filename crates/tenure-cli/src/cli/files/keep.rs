//! The arguments of `tenure keep`.

use clap::Args;

use super::TreeArguments;

const EXIT_STATUS: &str = "\
Exit status:
  0  ended by SIGTERM, SIGINT or SIGHUP
  1  something failed; one line on standard error says what
  2  the command line was wrong";

/// Keep what is used of files in memory
///
/// Pages of the files stay in memory once any program has read them, until the command ends:
/// the kernel does not reclaim them. Nothing is read ahead (tenure warm does that). Twice a
/// second the command looks for pages that have come into memory, and locks them.
///
/// With --budget at most SIZE stays locked; what came into memory first is unlocked first,
/// and the kernel may reclaim it. The budget is shared among the files by their length.
/// Without it, all files must fit into the headroom of the machine and the memory cgroups,
/// of which an eighth is left to others. All of this also holds for files that come later: one
/// that does not fit is left out and named.
///
/// The kernel tells only the owner of a file, or a user who may write it, what of it is in
/// memory: other files cannot be kept.
///
/// The length of all files counts against RLIMIT_MEMLOCK, whatever the budget. If that does
/// not suffice, the command ends and names the limit to raise (ulimit -l, or LimitMEMLOCK= in
/// a systemd unit).
///
/// Each file that is kept stays open. The command raises its limit on open files as far as it
/// may, and names how many files are left out where that does not suffice (LimitNOFILE=).
///
/// A file that is replaced is followed, as are new files in folders (inotify). The command
/// runs until it is ended. When all is set up it prints a line and tells systemd
/// (Type=notify); packaging/tenure-keep@.service is a unit for it.
#[derive(Args, Debug)]
#[command(after_help = EXIT_STATUS)]
pub struct KeepArguments {
    #[command(flatten)]
    pub tree: TreeArguments,

    /// Keep SIZE at most. SIZE is in bytes, or ends in K, M, G or T
    #[arg(long, value_name = "SIZE", value_parser = super::budget)]
    pub budget: Option<u64>,
}
