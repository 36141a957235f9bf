//! The `tenure` command. `cargo xtask generate` makes the man pages and the shell
//! completions from [`command`], the definition that also parses the command line.

#![cfg(target_os = "linux")]

mod cache;
mod cli;
mod doctor;
mod exporter;
mod files;
mod metrics;
mod replacement;
mod run;
mod stat;
mod top;

use std::{
    env,
    io::{self, Write},
    process::ExitCode,
};

use clap::{CommandFactory, Parser as _};
use tenure_bench::text::printable_lines;

/// Returns the definition of the command line.
pub fn command() -> clap::Command {
    cli::Cli::command()
}

/// Runs the command that the command line names, and returns the exit status: 0 for
/// success, 1 for a failure, 2 for a wrong command line. Some commands have others, and
/// `tenure run` ends with that of the program.
pub fn run() -> ExitCode {
    if tenure_bench::is_worker() {
        return match tenure_bench::work() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return not_a_command(&error),
    };
    let mut stdout = io::stdout().lock();
    let done = match cli.command {
        cli::Command::Bench(arguments) => {
            tenure_bench::run_bench(&arguments, &mut stdout).map(|()| ExitCode::SUCCESS)
        }
        cli::Command::Cache(arguments) => cache::run(&arguments, &mut stdout),
        cli::Command::Doctor(arguments) => doctor::run(&arguments, &mut stdout),
        cli::Command::Evict(arguments) => files::evict::run(&arguments, &mut stdout),
        cli::Command::Exporter(arguments) => {
            exporter::run(&arguments, &mut stdout).map(|()| ExitCode::SUCCESS)
        }
        cli::Command::Fincore(arguments) => files::fincore::run(&arguments, &mut stdout),
        cli::Command::Keep(arguments) => files::keep::run(&arguments, &mut stdout),
        cli::Command::Report(arguments) => {
            tenure_bench::run_report(&arguments, &mut stdout).map(|()| ExitCode::SUCCESS)
        }
        cli::Command::Restore(arguments) => files::snapshot::restore(&arguments, &mut stdout),
        cli::Command::Snapshot(arguments) => files::snapshot::snapshot(&arguments, &mut stdout),
        cli::Command::Run(arguments) => Ok(run::run(&arguments)),
        cli::Command::Stat(arguments) => {
            stat::run(&arguments, &mut stdout).map(|()| ExitCode::SUCCESS)
        }
        cli::Command::Top(arguments) => top::run(&arguments).map(|()| ExitCode::SUCCESS),
        cli::Command::Warm(arguments) => files::warm::run(&arguments, &mut stdout),
    };
    // The reader of the output may have closed it, which is not a failure, and does not
    // change the status: whether it closes before the last byte is a matter of luck.
    let (status, flushed) = match done {
        Ok(status) => (status, stdout.flush().map_err(anyhow::Error::from)),
        Err(error) => (ExitCode::SUCCESS, Err(error)),
    };
    match flushed {
        Ok(()) => status,
        Err(error) if is_broken_pipe(&error) => status,
        Err(error) => {
            // It may name files, and what a record says.
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints an error, or a warning, on standard error. It may have no reader, or be full: the
/// exit status tells, too.
fn complain(message: &str) {
    let _ = writeln!(io::stderr(), "tenure: {}", printable_lines(message));
}

/// Prints help or a version, with status 0, or the error in the command line.
fn not_a_command(error: &clap::Error) -> ExitCode {
    // Where standard error is closed the message has no reader.
    let _ = error.print();
    let is_run = env::args_os().nth(1).is_some_and(|name| name == "run");
    match error.exit_code() {
        0 => ExitCode::SUCCESS,
        // Lower statuses may be the program's.
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
    fn command_definition_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn broken_pipe_error_is_told_from_others() {
        let broken = anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(is_broken_pipe(&broken));
        let full = anyhow::Error::from(io::Error::from(io::ErrorKind::StorageFull));
        assert!(!is_broken_pipe(&full));
        assert!(!is_broken_pipe(&anyhow::anyhow!("broken pipe")));
    }
}
