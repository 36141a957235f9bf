//! What the `tenure` command does. The man pages and the shell completions are
//! made from [`command`], the same definition that parses the command line.

#![cfg(target_os = "linux")]

mod bench;
mod cli;
mod doctor;
mod library;
mod report;
mod run;
mod soak;
mod stat;
mod table;
mod text;

use std::{
    env,
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
/// command's own, or those of the program that `tenure run` becomes.
pub fn run() -> ExitCode {
    if bench::is_worker() {
        return match bench::work() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    if soak::is_body() {
        return match soak::be_body() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("tenure: {error:#}");
                ExitCode::FAILURE
            }
        };
    }
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return not_a_command(&error),
    };
    let mut stdout = io::stdout().lock();
    let done = match cli.command {
        cli::Command::Bench(arguments) => {
            bench::run(&arguments, &mut stdout).map(|()| ExitCode::SUCCESS)
        }
        cli::Command::Doctor(arguments) => doctor::run(&arguments, &mut stdout),
        cli::Command::Report(arguments) => {
            report::run(&arguments, &mut stdout).map(|()| ExitCode::SUCCESS)
        }
        cli::Command::Run(arguments) => Ok(run::run(&arguments)),
        cli::Command::Soak(arguments) => soak::run(&arguments, &mut stdout),
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

/// Prints help or a version, with status 0, or what is wrong with the command line.
fn not_a_command(error: &clap::Error) -> ExitCode {
    // Nobody is left to be told.
    let _ = error.print();
    let is_run = env::args_os().nth(1).is_some_and(|name| name == "run");
    match error.exit_code() {
        0 => ExitCode::SUCCESS,
        // Others are the program's own.
        _ if is_run => ExitCode::from(run::FAILED),
        _ => ExitCode::from(2),
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
