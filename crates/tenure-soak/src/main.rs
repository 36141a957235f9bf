//! `tenure-soak`: uses every verb of tenure at once and compares every page with a model.
//!
//! Two processes take part. The [`supervisor`] starts and watches the [`soaked`]
//! process, so that it can also report how that one died. Each thread of the soaked
//! process is a [`worker`]: [`plan`] decides its next [`step`] from the seed,
//! [`verbs`] does it, and [`model`] judges what each page holds. The two processes
//! share the [`board`], memory that outlives the soaked process.
//!
//! This is a tool for tenure's developers and is not installed:
//! `cargo run --release -p tenure-soak -- --minutes 1` runs it.

#![cfg(target_os = "linux")]

mod admission;
mod admitting;
mod arguments;
mod board;
mod child;
mod descriptors;
mod handlers;
mod model;
mod peek;
mod plan;
mod pressure;
mod ready;
mod report;
mod shortage;
mod slot;
mod soaked;
mod step;
mod supervisor;
mod verbs;
mod worker;

use std::env;
use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser as _;

use arguments::SoakArguments;

/// How many threads the board has a place for.
pub const MAX_THREADS: usize = 64;

/// The first argument of the soaked process; the second is its configuration.
const SOAKED_PROCESS: &str = "--soaked-process";

fn main() -> ExitCode {
    let is_soaked = env::args_os()
        .nth(1)
        .is_some_and(|first| first == SOAKED_PROCESS);
    let done = match is_soaked {
        true => run_soaked().map(|()| ExitCode::SUCCESS),
        false => supervise(&SoakArguments::parse()),
    };
    done.unwrap_or_else(|error| {
        eprintln!("tenure-soak: {error:#}");
        ExitCode::FAILURE
    })
}

fn run_soaked() -> Result<()> {
    let config = env::args().nth(2).context("no configuration")?;
    soaked::run(&serde_json::from_str(&config)?)
}

/// Soaks, prints the report, and returns the exit status.
fn supervise(arguments: &SoakArguments) -> Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let report = supervisor::soak(arguments, &mut out)?;
    match arguments.json {
        true => writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?,
        false => write!(out, "{}", report.text())?,
    }
    Ok(match report.failure {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    })
}
