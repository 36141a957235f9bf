//! `tenure run`: sets LD_PRELOAD and the options, and becomes the program.

mod config;
mod environment;
mod program;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::cli::{Form, RunArguments};
use tenure_bench::library;
use tenure_options::{FIRST_PROGRAM, OptionRow};

const LD_PRELOAD: &str = "LD_PRELOAD";

/// The exit status of tenure's own failures, as in env(1).
pub const FAILED: u8 = 125;
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Why the program does not run, and the exit status.
#[derive(Debug)]
struct Refusal {
    status: u8,
    message: String,
}

impl Refusal {
    fn new(status: u8, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }
}

/// Replaces this process with the command, or prints the environment that it would have.
/// Returns the exit status, with a command only where that fails.
pub fn run(arguments: &RunArguments) -> ExitCode {
    let done = match arguments.print_environment {
        Some(form) => print_environment(arguments, form),
        None => become_program(arguments).map(|never| match never {}),
    };
    let Err(Refusal { status, message }) = done else {
        return ExitCode::SUCCESS;
    };
    crate::complain(&message);
    ExitCode::from(status)
}

enum Never {}

fn become_program(arguments: &RunArguments) -> Result<Never, Refusal> {
    let Some((name, rest)) = arguments.command.split_first() else {
        return Err(Refusal::new(FAILED, "no command to run was given"));
    };
    let settings = settings(arguments)?;
    let library = find_library()?;
    let program = program::find(name)?;
    program::check(&program)?;
    let error = Command::new(&program)
        .arg0(name)
        .args(rest)
        .env(FIRST_PROGRAM, "1")
        .envs(settings.iter().map(|(row, value)| (row.variable, value)))
        .env(
            LD_PRELOAD,
            preloads(library.as_os_str(), env::var_os(LD_PRELOAD)),
        )
        .exec();
    let status = match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => CANNOT_RUN,
    };
    let message = format!("{}: {error}", program.display());
    Err(Refusal::new(status, message))
}

fn find_library() -> Result<PathBuf, Refusal> {
    library::find().map_err(|error| Refusal::new(FAILED, format!("{error:#}")))
}

/// Returns the options of the command line, and those of the file that it does not set.
fn settings(arguments: &RunArguments) -> Result<Vec<(&'static OptionRow, OsString)>, Refusal> {
    let mut settings = arguments.settings.clone();
    if let Some(file) = &arguments.config {
        let of_file = config::read(file).map_err(|message| Refusal::new(FAILED, message))?;
        for (row, value) in of_file {
            if settings.iter().all(|(set, _)| *set != row) {
                settings.push((row, value));
            }
        }
    }
    Ok(settings)
}

fn print_environment(arguments: &RunArguments, form: Form) -> Result<(), Refusal> {
    let settings = settings(arguments)?;
    let library = find_library()?;
    let mut variables = vec![
        (LD_PRELOAD, library.into_os_string()),
        (FIRST_PROGRAM, "1".into()),
    ];
    let of_options = settings.into_iter();
    variables.extend(of_options.map(|(row, value)| (row.variable, value)));
    let text = environment::text(&variables, form);
    let text = text.map_err(|message| Refusal::new(FAILED, message))?;
    let mut stdout = io::stdout().lock();
    match stdout.write_all(&text).and_then(|()| stdout.flush()) {
        // The reader has closed the output, which is not a failure.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Refusal::new(FAILED, format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Returns the value of LD_PRELOAD: tenure's library, then those that were there.
fn preloads(library: &OsStr, before: Option<OsString>) -> OsString {
    let mut list = library.to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        if before == list {
            return before;
        }
        list.push(":");
        list.push(before);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preload_list_begins_with_the_library() {
        let list = |before: Option<&str>| preloads("/a/t.so".as_ref(), before.map(OsString::from));
        assert_eq!(list(None), "/a/t.so");
        assert_eq!(list(Some("")), "/a/t.so");
        assert_eq!(list(Some("/b/j.so c.so")), "/a/t.so:/b/j.so c.so");
        assert_eq!(list(Some("/a/t.so")), "/a/t.so");
    }
}
