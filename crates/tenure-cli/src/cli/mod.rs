//! The command line: help, man pages and completions all come from here.

mod bench;
mod doctor;
mod stat;

use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};

pub use self::bench::{BenchArguments, ExperimentName};
pub use self::doctor::DoctorArguments;
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

impl Cli {
    /// Parses the command line of this process, and ends the process when there
    /// is something wrong with it or only help is asked for.
    pub fn of_this_process() -> Self {
        Self::parse().checked().unwrap_or_else(|error| error.exit())
    }

    /// Checks what the definition cannot.
    fn checked(self) -> Result<Self, clap::Error> {
        let (name, wrong) = match &self.command {
            Command::Bench(arguments) => ("bench", arguments.wrong()),
            // The definition says it all.
            Command::Doctor(_) | Command::Stat(_) => return Ok(self),
        };
        let Some(message) = wrong else {
            return Ok(self);
        };
        let mut command = Self::command();
        command.build();
        let subcommand = command.find_subcommand_mut(name);
        let subcommand = subcommand.expect("each command is a subcommand");
        Err(subcommand.error(ErrorKind::ArgumentConflict, message))
    }
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Bench(BenchArguments),
    Doctor(DoctorArguments),
    Stat(StatArguments),
}
