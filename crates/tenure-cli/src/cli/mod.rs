//! The command line: help, man pages and completions all come from here.

mod bench;
mod doctor;
mod report;
mod run;
mod soak;
mod stat;

use clap::{Parser, Subcommand};

pub use self::bench::{BenchArguments, ExperimentName};
pub use self::doctor::DoctorArguments;
pub use self::report::ReportArguments;
pub use self::run::RunArguments;
pub use self::soak::SoakArguments;
pub use self::stat::StatArguments;

const EXIT_STATUS: &str = "\
Exit status:
  0  done (also when whoever reads the output has closed it)
  1  something failed; one line on standard error says what
  2  the command line was wrong";

/// Control over the life of memory on stock Linux
///
/// tenure moves memory in ahead of use (populate), keeps it (lock), lets the
/// kernel take it (lazy free, volatile) and gives it up without making the
/// caller wait (munmap, discard).
#[derive(Debug, Parser)]
#[command(name = "tenure", version, after_help = EXIT_STATUS)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Bench(BenchArguments),
    Doctor(DoctorArguments),
    Report(ReportArguments),
    Run(RunArguments),
    Soak(SoakArguments),
    Stat(StatArguments),
}
