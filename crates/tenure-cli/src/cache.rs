//! `tenure cache`: the names that processes share.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use tenure::SharedFile;
use tenure_bench::text::{bytes_text, printable, printable_json};

use crate::cli::{CacheArguments, CacheCommand, CacheListArguments};
use crate::complain;

pub fn run(arguments: &CacheArguments, out: &mut impl Write) -> Result<ExitCode> {
    let is_done = match &arguments.command {
        CacheCommand::List(arguments) => list(arguments, out)?,
        CacheCommand::Drop(arguments) => {
            let dropped = arguments.names.iter().map(|name| {
                let removed = SharedFile::remove_unused(name);
                removed
                    .inspect_err(|error| complain(&error.to_string()))
                    .is_ok()
            });
            dropped.fold(true, |all, one| all & one)
        }
    };
    Ok(match is_done {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// A line of `tenure cache list`.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    kind: &'static str,
    values: u64,
    bytes: u64,
    pinned: u64,
    processes: u64,
}

impl Row {
    fn of(name: &str) -> tenure::Result<Self> {
        let file = SharedFile::open(name)?;
        let stats = file.stats()?;
        Ok(Self {
            name: name.to_owned(),
            kind: if file.is_cache() { "cache" } else { "arena" },
            values: stats.live,
            bytes: stats.bytes,
            pinned: stats.pinned,
            processes: stats.processes,
        })
    }
}

/// Lists what can be opened. Returns whether that was all.
fn list(arguments: &CacheListArguments, out: &mut impl Write) -> Result<bool> {
    let (mut rows, mut is_all) = (Vec::new(), true);
    for name in SharedFile::names()? {
        match Row::of(&name) {
            Ok(row) => rows.push(row),
            // Removed since it was listed.
            Err(error) if error.errno() == tenure::Errno::NOENT.raw_os_error() => {}
            Err(error) => {
                complain(&error.to_string());
                is_all = false;
            }
        }
    }
    if arguments.json {
        let json = serde_json::to_string_pretty(&rows)?;
        writeln!(out, "{}", printable_json(&json))?;
        return Ok(is_all);
    }
    if !rows.is_empty() {
        writeln!(out, "kind      values     bytes  pinned  processes  name")?;
    }
    for row in rows {
        let bytes = match row.bytes {
            0 => "0".to_owned(),
            bytes => bytes_text(bytes as f64),
        };
        let (kind, values, pinned, processes) = (row.kind, row.values, row.pinned, row.processes);
        let name = printable(&row.name);
        writeln!(
            out,
            "{kind} {values:>10} {bytes:>9} {pinned:>7} {processes:>10}  {name}"
        )?;
    }
    Ok(is_all)
}
