//! The command line: help, man pages and completions all come from here.

mod cache;
mod doctor;
mod exporter;
mod files;
mod run;
mod stat;
mod top;

use clap::{Parser, Subcommand};
use tenure_bench::{BenchArguments, EXIT_STATUS, ReportArguments};

pub use self::cache::{CacheArguments, CacheCommand, CacheListArguments};
pub use self::doctor::DoctorArguments;
pub use self::exporter::ExporterArguments;
pub use self::files::{
    EvictArguments, FincoreArguments, KeepArguments, RestoreArguments, SnapshotArguments,
    TreeArguments, WarmArguments,
};
pub use self::run::{Form, RunArguments};
pub use self::stat::{StatArguments, interval};
pub use self::top::TopArguments;

/// Control over the life of memory on stock Linux
///
/// tenure moves memory in ahead of use (populate), keeps it (lock), lets the
/// kernel reclaim it (lazy free, volatile) and releases it without making the
/// caller wait (munmap, discard).
#[derive(Debug, Parser)]
#[command(name = "tenure", version, after_help = EXIT_STATUS)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Bench(BenchArguments),
    Cache(CacheArguments),
    Doctor(DoctorArguments),
    Evict(EvictArguments),
    Exporter(ExporterArguments),
    Fincore(FincoreArguments),
    Keep(KeepArguments),
    Report(ReportArguments),
    Restore(RestoreArguments),
    Run(RunArguments),
    Snapshot(SnapshotArguments),
    Stat(StatArguments),
    Top(TopArguments),
    Warm(WarmArguments),
}
