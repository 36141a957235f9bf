//! `tenure cache`: its arguments.

use clap::{Args, Subcommand};

const EXIT_STATUS: &str = "\
Exit status:
  0  done (also when the reader of the output has closed it)
  1  something failed; a line on standard error names it, the rest is done
  2  the command line was wrong";

/// Show and remove what processes share by name
///
/// Caches and arenas of a name (SharedCache, SharedArena, tenure_cache_open_shared) are files
/// in /dev/shm, which stay when the processes that used them have ended, until the machine
/// stops.
#[derive(Args, Debug)]
#[command(after_help = EXIT_STATUS)]
pub struct CacheArguments {
    /// The subcommand.
    #[command(subcommand)]
    pub command: CacheCommand,
}

/// The subcommands of `tenure cache`.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// List this user's caches and arenas
    List(CacheListArguments),
    /// Remove names that no process uses
    Drop(CacheDropArguments),
}

/// The arguments of `tenure cache list`.
#[derive(Args, Debug)]
pub struct CacheListArguments {
    /// Print one JSON document and nothing else on standard output
    #[arg(long)]
    pub json: bool,
}

/// The arguments of `tenure cache drop`.
#[derive(Args, Debug)]
pub struct CacheDropArguments {
    /// The names, as `tenure cache list` shows them
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
}
