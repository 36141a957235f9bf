//! `tenure evict`: writes back and drops.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use tenure::files::{self, Evicted};
use tenure_bench::text::{printable, printable_json};

use super::complaints::Complaints;
use super::holders::{FileId, Holders};
use super::walk::Walk;
use super::{size_text, status};
use crate::cli::EvictArguments;

pub fn run(arguments: &EvictArguments, out: &mut impl Write) -> Result<ExitCode> {
    let complaints = Complaints::plain();
    let range = arguments.range.clone().unwrap_or(0..u64::MAX);
    let in_use = arguments.if_cold.then(|| Holders::find(&complaints));
    let mut report = Report::default();
    let mut stayed = Vec::new();
    for found in Walk::new(&arguments.tree, &complaints)? {
        report.files += 1;
        let id = FileId::of(&found.metadata);
        match in_use
            .as_ref()
            .map_or(Some(false), |in_use| in_use.uses(id))
        {
            Some(false) => {}
            Some(true) => {
                report.files_in_use += 1;
                continue;
            }
            None => {
                report.files_maybe_in_use += 1;
                continue;
            }
        }
        match files::evict(&found.file, range.clone()) {
            Ok(evicted) => {
                report.evicted_bytes += evicted.evicted_bytes();
                if evicted.after.resident_bytes > 0 {
                    stayed.push((found.path, id, evicted));
                }
            }
            Err(error) => complaints.fail(&found.path, error),
        }
    }
    if !stayed.is_empty() {
        // Processes are examined once, when all files are known.
        let holders = Holders::find(&Complaints::silent());
        for (path, id, evicted) in stayed {
            let why = reason(&evicted, &holders, id);
            report.stayed_bytes += evicted.after.resident_bytes;
            report.stayed.push(Stayed {
                path,
                resident_bytes: evicted.after.resident_bytes,
                dirty_bytes: evicted.after.dirty_bytes,
                why,
            });
        }
    }
    report.failed_files = complaints.failures();
    report.print(arguments, out)?;
    let is_partial = report.stayed_bytes > 0 || report.files_maybe_in_use > 0;
    Ok(status(complaints.have_failed(), is_partial))
}

/// Says why pages stayed, as far as that can be seen.
fn reason(evicted: &Evicted, holders: &Holders, id: FileId) -> String {
    if let Some(error) = &evicted.write_error {
        return format!(
            "dirty pages cannot be written (copy the file before it is evicted once more): {error}"
        );
    }
    let mapped = holders.mapped_by(id);
    if !mapped.is_empty() {
        let some: Vec<_> = mapped.iter().take(3).map(ToString::to_string).collect();
        let more = match mapped.len() {
            0..=3 => String::new(),
            count => format!(" and {} more", count - 3),
        };
        return format!("mapped by {}{more}", some.join(", "));
    }
    let after = &evicted.after;
    match after.dirty_bytes.zip(after.writeback_bytes) {
        Some((dirty, writeback)) if dirty + writeback > 0 => "written to meanwhile".to_owned(),
        _ => "in use by the kernel, or mapped by a process that may not be inspected".to_owned(),
    }
}

/// The document of `--json`.
#[derive(Debug, Default, Serialize)]
struct Report {
    files: u64,
    failed_files: u64,
    /// Left by `--if-cold`.
    files_in_use: u64,
    /// Left by `--if-cold`, because a process could not be examined.
    files_maybe_in_use: u64,
    evicted_bytes: u64,
    stayed_bytes: u64,
    stayed: Vec<Stayed>,
}

#[derive(Debug, Serialize)]
struct Stayed {
    #[serde(serialize_with = "super::path_text")]
    path: PathBuf,
    resident_bytes: u64,
    dirty_bytes: Option<u64>,
    why: String,
}

impl Report {
    fn print(&self, arguments: &EvictArguments, out: &mut impl Write) -> Result<()> {
        if arguments.json {
            let json = serde_json::to_string_pretty(self)?;
            return Ok(writeln!(out, "{}", printable_json(&json))?);
        }
        for stayed in &self.stayed {
            let bytes = size_text(stayed.resident_bytes);
            let line = format!("{}: {bytes} stayed: {}", stayed.path.display(), stayed.why);
            writeln!(out, "{}", printable(&line))?;
        }
        let (evicted, stayed) = (size_text(self.evicted_bytes), size_text(self.stayed_bytes));
        let in_use = match (arguments.if_cold, self.files_maybe_in_use) {
            (true, 0) => format!(", {} in use were left", self.files_in_use),
            (true, maybe) => format!(
                ", {} in use and {maybe} that may be were left",
                self.files_in_use
            ),
            (false, _) => String::new(),
        };
        let files = self.files;
        Ok(writeln!(
            out,
            "evicted {evicted}, {stayed} stayed; {files} files{in_use}"
        )?)
    }
}
