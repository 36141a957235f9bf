//! `tenure doctor`: the features and limits of this place, and what they mean for tenure.

mod check;
mod checks;
mod facts;
#[cfg(test)]
mod tests;
mod text;

use std::{
    io::{ErrorKind, Write},
    process::ExitCode,
};

use anyhow::Result;
use serde::Serialize;

use self::{
    check::{Check, Status},
    facts::Facts,
};
use crate::cli::DoctorArguments;
use tenure_bench::text::{printable_json, printable_lines};

/// The exit status when a check is not ok.
const NOT_EVERYTHING: u8 = 3;

/// The output, as JSON or text.
#[derive(Debug, Serialize)]
struct Report {
    tenure_version: &'static str,
    kernel: String,
    architecture: &'static str,
    virtual_machine: bool,
    container: bool,
    everything_is_there: bool,
    checks: Vec<Check>,
}

/// Checks this machine, prints the report, and returns the exit status.
pub fn run(arguments: &DoctorArguments, out: &mut impl Write) -> Result<ExitCode> {
    let report = Report::new(&Facts::gather());
    let text = if arguments.json {
        let json = serde_json::to_string_pretty(&report)?;
        printable_json(&json) + "\n"
    } else {
        printable_lines(&text::text(&report))
    };
    match out.write_all(text.as_bytes()) {
        // The status is the same for a reader who has seen enough.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error.into()),
        _ => {}
    }
    Ok(match report.everything_is_there {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(NOT_EVERYTHING),
    })
}

impl Report {
    fn new(facts: &Facts) -> Self {
        let checks = checks::all(facts);
        Self {
            tenure_version: env!("CARGO_PKG_VERSION"),
            kernel: facts.kernel.clone(),
            architecture: std::env::consts::ARCH,
            virtual_machine: facts.virtual_machine,
            container: facts.container,
            everything_is_there: checks.iter().all(|check| check.status == Status::Ok),
            checks,
        }
    }
}
