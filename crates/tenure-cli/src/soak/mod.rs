//! `tenure soak`: everything at once, against a model of every page.
//!
//! The process that the command starts as watches another one, in which all
//! happens ([`body`]): it sees on the [`board`] how far the threads are, and is
//! there also when that process has been killed.

mod board;
mod body;
mod child;
mod model;
mod peek;
mod plan;
mod pressure;
mod ready;
mod report;
mod slot;
mod step;
mod supervisor;
mod verbs;
mod worker;

use std::{env, io::Write, process::ExitCode};

use anyhow::{Context as _, Result};

use crate::cli::SoakArguments;

/// How many threads may work.
pub const MOST_THREADS: i64 = 64;

/// The first argument of the process that is soaked.
const ARGUMENT: &str = "--soaked-process";

/// Says whether this process was started to be soaked.
pub fn is_body() -> bool {
    env::args_os().nth(1).is_some_and(|first| first == ARGUMENT)
}

/// Does what that process does.
///
/// # Errors
///
/// Fails when it cannot begin.
pub fn be_body() -> Result<()> {
    let order = env::args().nth(2).context("no order")?;
    body::run(&serde_json::from_str(&order)?)
}

/// Soaks, and writes the report to `out`.
///
/// # Errors
///
/// Fails when it cannot begin, or `out` cannot be written.
pub fn run(arguments: &SoakArguments, out: &mut impl Write) -> Result<ExitCode> {
    let report = supervisor::soak(arguments, out)?;
    match arguments.json {
        true => writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?,
        false => write!(out, "{}", report.text())?,
    }
    Ok(match report.failure {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    })
}
