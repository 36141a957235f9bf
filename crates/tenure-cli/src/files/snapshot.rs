//! `tenure snapshot` and `tenure restore`: the resident ranges of files.

use std::cell::Cell;
use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, BufWriter, Read as _, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use tenure::files::{self, Wanted, WarmOptions};

use super::complaints::Complaints;
use super::walk::{Walk, open, reason};
use super::warm::{Report, left_out};
use super::{size_text, status};
use crate::cli::{RestoreArguments, SnapshotArguments};
use crate::replacement::Replacement;

const FORMAT: &str = "tenure-snapshot";
const VERSION: u32 = 1;

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    format: String,
    version: u32,
}

/// Any other line.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    path: PathBuf,
    len_bytes: u64,
    modified_ns: i128,
    ranges: Vec<(u64, u64)>,
}

impl Entry {
    fn fits(&self, metadata: &Metadata) -> bool {
        (self.len_bytes, self.modified_ns) == (metadata.len(), modified_ns(metadata))
    }
}

fn modified_ns(metadata: &Metadata) -> i128 {
    i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec())
}

pub fn snapshot(arguments: &SnapshotArguments, out: &mut impl Write) -> Result<ExitCode> {
    let complaints = Complaints::plain();
    let path = &arguments.snapshot;
    let writing = || format!("writing {}", path.display());
    // A reader never sees a part.
    let file = Replacement::of(path).with_context(writing)?;
    let mut lines = BufWriter::new(file);
    let header = Header {
        format: FORMAT.to_owned(),
        version: VERSION,
    };
    writeln!(lines, "{}", serde_json::to_string(&header)?).with_context(writing)?;
    let (mut file_count, mut bytes) = (0_u64, 0);
    for found in Walk::new(&arguments.tree, &complaints)? {
        let resident = match files::resident(&found.file, 0..u64::MAX) {
            Ok(resident) if resident.is_empty() => continue,
            Ok(resident) => resident,
            Err(error) => {
                complaints.fail(&found.path, error);
                continue;
            }
        };
        let entry = Entry {
            path: std::path::absolute(&found.path)?,
            len_bytes: found.metadata.len(),
            modified_ns: modified_ns(&found.metadata),
            ranges: resident
                .iter()
                .map(|range| (range.start, range.end))
                .collect(),
        };
        let Ok(line) = serde_json::to_string(&entry) else {
            complaints.fail(
                &found.path,
                "the name is no UTF-8, which a snapshot is made of",
            );
            continue;
        };
        writeln!(lines, "{line}").with_context(writing)?;
        file_count += 1;
        bytes += resident
            .iter()
            .map(|range| range.end - range.start)
            .sum::<u64>();
    }
    let file = lines
        .into_inner()
        .map_err(|error| error.into_error())
        .with_context(writing)?;
    file.put_in_place().with_context(writing)?;
    writeln!(
        out,
        "{} of {file_count} files are recorded",
        size_text(bytes)
    )?;
    Ok(status(complaints.have_failed(), false))
}

pub fn restore(arguments: &RestoreArguments, out: &mut impl Write) -> Result<ExitCode> {
    let began = Instant::now();
    let path = &arguments.snapshot;
    let reading = || format!("reading {}", path.display());
    let mut lines = BufReader::new(File::open(path).with_context(reading)?);
    let header = header(&mut lines).with_context(reading)?;
    check_header(&header).with_context(|| path.display().to_string())?;
    let lines = lines.lines();
    let complaints = Complaints::new(ProgressBar::hidden());
    let (skipped, file_count) = (Cell::new(0_u64), Cell::new(0_u64));
    let mut is_readable = true;
    // After an error of reading each further line would be one.
    let lines = lines.take_while(|line| std::mem::replace(&mut is_readable, line.is_ok()));
    let wanted = lines.enumerate().filter_map(|(index, line)| {
        let entry = line.map_err(anyhow::Error::from);
        let entry: Result<Entry> = entry.and_then(|line| Ok(serde_json::from_str(&line)?));
        match entry {
            Ok(entry) => {
                let wanted = want(entry, &complaints);
                let count = if wanted.is_some() {
                    &file_count
                } else {
                    &skipped
                };
                count.set(count.get() + 1);
                wanted
            }
            Err(error) => {
                complaints.fail(path, format_args!("line {}: {error}", index + 2));
                None
            }
        }
    });
    let mut options = WarmOptions::new();
    if let Some(bytes) = arguments.budget {
        options = options.budget_bytes(bytes);
    }
    let warmed = files::warm(wanted, &options, |path, outcome| {
        if let Some(error) = outcome.error {
            complaints.fail(&path, error);
        }
    })?;
    Report::new(&warmed, file_count.get(), &complaints, began).print(arguments.json, out)?;
    if let Some(stopped_by) = &warmed.stopped_by {
        complaints.line(&format!(
            "tenure: {}",
            left_out(warmed.left_bytes, stopped_by)
        ));
    }
    let is_partial = warmed.stopped_by.is_some() || skipped.get() > 0;
    Ok(status(complaints.have_failed(), is_partial))
}

/// Reads the first line. A file that is no snapshot may have no line break at all.
fn header(lines: &mut impl BufRead) -> io::Result<Vec<u8>> {
    const MAX_BYTES: u64 = 4096;
    let mut header = Vec::new();
    lines.take(MAX_BYTES).read_until(b'\n', &mut header)?;
    Ok(header)
}

fn check_header(line: &[u8]) -> Result<()> {
    match serde_json::from_slice::<Header>(line).ok() {
        Some(header) if header.format != FORMAT => bail!("is no snapshot of tenure"),
        None => bail!("is no snapshot of tenure"),
        Some(Header { version, .. }) if version != VERSION => bail!(
            "is a snapshot of version {version}, and this tenure reads version {VERSION}: make it anew"
        ),
        Some(_) => Ok(()),
    }
}

/// Opens a file of the snapshot, unless it has changed since.
fn want(entry: Entry, complaints: &Complaints) -> Option<Wanted<PathBuf>> {
    match open(&entry.path) {
        Ok((file, metadata)) if metadata.is_file() && entry.fits(&metadata) => {
            let ranges = entry.ranges.into_iter();
            Some(Wanted {
                tag: entry.path,
                file,
                ranges: ranges.map(|(start, end)| start..end).collect(),
            })
        }
        Ok(_) => {
            complaints.note(
                &entry.path,
                "has changed since the snapshot, and is skipped",
            );
            None
        }
        Err(error) => {
            complaints.note(
                &entry.path,
                format_args!("{}, and is skipped", reason(&error)),
            );
            None
        }
    }
}
