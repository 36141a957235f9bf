//! `tenure warm`: reads what is missing.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use tenure::files::{self, StoppedBy, Wanted, WarmOptions, Warmed};
use tenure_bench::text::{printable, printable_json};

use super::complaints::Complaints;
use super::walk::Walk;
use super::{size_text, status};
use crate::cli::{TreeArguments, WarmArguments};

pub fn run(arguments: &WarmArguments, out: &mut impl Write) -> Result<ExitCode> {
    let began = Instant::now();
    let range = arguments.range.clone().unwrap_or(0..u64::MAX);
    let bar = progress_bar();
    if !bar.is_hidden() {
        let missing = missing_bytes(&arguments.tree, &range)?;
        bar.set_length(missing.min(arguments.budget.unwrap_or(u64::MAX)));
    }
    let complaints = Complaints::new(bar.clone());
    let mut options = WarmOptions::new().progress({
        let bar = bar.clone();
        move |progress| bar.set_position(progress.read_bytes)
    });
    if let Some(bytes) = arguments.budget {
        options = options.budget_bytes(bytes);
    }
    if let Some(count) = arguments.readers {
        options = options.readers(count.into());
    }
    let mut file_count = 0_u64;
    let files = Walk::new(&arguments.tree, &complaints)?.map(|found| {
        file_count += 1;
        Wanted::part(found.path, found.file, range.clone())
    });
    let warmed = files::warm(files, &options, |path, outcome| {
        if let Some(error) = outcome.error {
            complaints.fail(&path, error);
        }
    })?;
    bar.finish_and_clear();
    let report = Report::new(&warmed, file_count, &complaints, began);
    report.print(arguments.json, out)?;
    if warmed.left_bytes > 0
        && let Some(stopped_by) = &warmed.stopped_by
    {
        complaints.line(&format!(
            "tenure: {}",
            left_out(warmed.left_bytes, stopped_by)
        ));
    }
    Ok(status(
        complaints.have_failed(),
        warmed.stopped_by.is_some(),
    ))
}

/// Says what was left out and why.
pub fn left_out(bytes: u64, stopped_by: &StoppedBy) -> String {
    let why = match stopped_by {
        StoppedBy::Budget => "the budget was read".to_owned(),
        StoppedBy::Headroom(limit) => format!(
            "{limit} leaves no more headroom, and reading more would push out what is there: \
             raise the limit, free memory, or warm fewer files"
        ),
        _ => "the limit was reached".to_owned(),
    };
    format!("{} were left out: {why}", size_text(bytes))
}

/// Counts what is missing, so that the remaining time can be told. A file that cannot be
/// examined is named when it is read.
fn missing_bytes(tree: &TreeArguments, range: &std::ops::Range<u64>) -> Result<u64> {
    let silent = Complaints::silent();
    let missing =
        Walk::new(tree, &silent)?.map(|found| match files::missing(&found.file, range.clone()) {
            Ok(ranges) => ranges.iter().map(|range| range.end - range.start).sum(),
            Err(_) => found.metadata.len(),
        });
    Ok(missing.sum::<u64>())
}

/// A bar with rate and remaining time on standard error, if that is a terminal.
fn progress_bar() -> ProgressBar {
    let style =
        "{bar:40} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left";
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    match ProgressStyle::with_template(style) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// The document of `--json`.
#[derive(Debug, Serialize)]
pub struct Report {
    files: u64,
    failed_files: u64,
    read_bytes: u64,
    resident_before_bytes: u64,
    left_bytes: u64,
    seconds: f64,
    readers: usize,
    /// "budget" or "headroom".
    stopped_by: Option<&'static str>,
    limit: Option<String>,
}

impl Report {
    pub fn new(warmed: &Warmed, files: u64, complaints: &Complaints, began: Instant) -> Self {
        let (stopped_by, limit) = match &warmed.stopped_by {
            None => (None, None),
            Some(StoppedBy::Headroom(limit)) => (Some("headroom"), Some(limit.to_string())),
            Some(_) => (Some("budget"), None),
        };
        Self {
            files,
            failed_files: complaints.failures(),
            read_bytes: warmed.read_bytes,
            resident_before_bytes: warmed.resident_bytes,
            left_bytes: warmed.left_bytes,
            seconds: began.elapsed().as_secs_f64(),
            readers: warmed.readers,
            stopped_by,
            limit,
        }
    }

    pub fn print(&self, json: bool, out: &mut impl Write) -> Result<()> {
        if json {
            let json = serde_json::to_string_pretty(self)?;
            writeln!(out, "{}", printable_json(&json))?;
            return Ok(());
        }
        let rate = (self.read_bytes as f64 / self.seconds.max(1e-9)) as u64;
        let read = match self.read_bytes {
            0 => "read nothing".to_owned(),
            bytes => format!("read {} ({} a second)", size_text(bytes), size_text(rate)),
        };
        let line = format!(
            "{read}; {} were resident already; {} files in {:.2} s",
            size_text(self.resident_before_bytes),
            self.files,
            self.seconds
        );
        writeln!(out, "{}", printable(&line))?;
        Ok(())
    }
}
