//! What the `tenure` command does. The man pages and the shell completions are
//! made from [`command`], the same definition that parses the command line.

#![cfg(target_os = "linux")]

mod bench;
mod cli;
mod doctor;
mod report;
mod stat;
mod table;
mod text;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{CommandFactory, Parser as _};

/// Returns the definition of the command line.
pub fn command() -> clap::Command {
    cli::Cli::command()
}

/// Parses the command line, does what it asks, and returns the exit status:
/// 0 done, 1 something failed, 2 the command line was wrong; others are the
/// command's own.
pub fn run() -> ExitCode {
    if bench::is_worker() {
        return match bench::work() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    // This itself ends the process: status 2 on a wrong command line, status 0
    // after --help and --version.
    let cli = cli::Cli::parse();
    let mut stdout = io::stdout().lock();
    let done = match cli.command {
        cli::Command::Bench(arguments) => {
            bench::run(&arguments, &mut stdout).map(|()| ExitCode::SUCCESS)
        }
        cli::Command::Doctor(arguments) => doctor::run(&arguments, &mut stdout),
        cli::Command::Report(arguments) => {
            report::run(&arguments, &mut stdout).map(|()| ExitCode::SUCCESS)
        }
        cli::Command::Stat(arguments) => {
            stat::run(&arguments, &mut stdout).map(|()| ExitCode::SUCCESS)
        }
    };
    match done.and_then(|status| Ok(stdout.flush().map(|()| status)?)) {
        Ok(status) => status,
        // Whoever read our output has seen enough: not an error.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tenure: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn only_a_broken_pipe_is_one() {
        let broken = anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(is_broken_pipe(&broken));
        let full = anyhow::Error::from(io::Error::from(io::ErrorKind::StorageFull));
        assert!(!is_broken_pipe(&full));
        assert!(!is_broken_pipe(&anyhow::anyhow!("broken pipe")));
    }
}
