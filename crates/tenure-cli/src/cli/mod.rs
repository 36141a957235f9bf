//! The command line: help, man pages and completions all come from here.

mod doctor;
mod exporter;
mod run;
mod stat;
mod top;

use clap::{Parser, Subcommand};
use tenure_bench::{BenchArguments, EXIT_STATUS, ReportArguments};

pub use self::doctor::DoctorArguments;
pub use self::exporter::ExporterArguments;
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
    Doctor(DoctorArguments),
    Exporter(ExporterArguments),
    Report(ReportArguments),
    Run(RunArguments),
    Stat(StatArguments),
    Top(TopArguments),
}
