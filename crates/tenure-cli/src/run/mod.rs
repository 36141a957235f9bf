//! `tenure run`: sets LD_PRELOAD and the options, and becomes the program.

mod program;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use crate::cli::RunArguments;
use tenure_bench::{library, text::printable_lines};
use tenure_options::FIRST_PROGRAM;

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

/// Replaces this process with the command. Returns the exit status only where that fails.
pub fn run(arguments: &RunArguments) -> ExitCode {
    let Refusal { status, message } = match become_program(arguments) {
        Ok(never) => match never {},
        Err(refusal) => refusal,
    };
    eprintln!("tenure: {}", printable_lines(&message));
    ExitCode::from(status)
}

enum Never {}

fn become_program(arguments: &RunArguments) -> Result<Never, Refusal> {
    let Some((name, rest)) = arguments.command.split_first() else {
        return Err(Refusal::new(FAILED, "no command to run was given"));
    };
    let library = library::find();
    let library = library.map_err(|error| Refusal::new(FAILED, format!("{error:#}")))?;
    let program = program::find(name)?;
    program::check(&program)?;
    let settings = arguments.settings.iter();
    let error = Command::new(&program)
        .arg0(name)
        .args(rest)
        .env(FIRST_PROGRAM, "1")
        .envs(settings.map(|(row, value)| (row.variable, value)))
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
