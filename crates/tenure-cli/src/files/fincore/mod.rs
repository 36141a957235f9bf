//! `tenure fincore`: what of files is in the page cache, and where.

mod sums;
mod table;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use tenure::files::{FileResidency, residency};
use tenure_bench::text::printable_json;

use self::sums::Sums;
use super::complaints::Complaints;
use super::walk::{Found, Walk, open};
use super::{picture, status};
use crate::cli::FincoreArguments;

/// Shows each file when it is found: a tree of any size takes little memory.
pub fn run(arguments: &FincoreArguments, out: &mut impl Write) -> Result<ExitCode> {
    let complaints = Complaints::plain();
    // Standard output writes each line at once.
    let mut out = BufWriter::new(out);
    let mut output = Output {
        json: arguments.json,
        is_first: true,
        out: &mut out,
    };
    let mut sums = Sums::new(&arguments.tree.paths, arguments.depth);
    let mut top = BinaryHeap::new();
    output.begin()?;
    for found in Walk::new(&arguments.tree, &complaints)? {
        let len = found.metadata.len();
        let all = match len {
            0 => Ok(FileResidency::NONE),
            _ => residency(&found.file, 0..u64::MAX),
        };
        let all = match all {
            Ok(all) => all,
            Err(error) => {
                complaints.fail(&found.path, error);
                continue;
            }
        };
        sums.add(&found, all);
        match arguments.top {
            Some(count) => {
                top.push(Reverse((all.resident_bytes, Reverse(found.path))));
                if top.len() > count as usize {
                    top.pop();
                }
            }
            None if arguments.summarize => {}
            None => output.file(&Row::of(found, all))?,
        }
    }
    // Least first, in the order of `Reverse`: most resident first.
    for Reverse((_, Reverse(path))) in top.into_sorted_vec() {
        output.again(path, &complaints)?;
    }
    output.sums(&sums)?;
    out.flush()?;
    Ok(status(complaints.have_failed(), false))
}

/// A file or a sum.
#[derive(Debug, Serialize)]
pub struct Row {
    #[serde(serialize_with = "super::path_text")]
    path: PathBuf,
    /// How many files a sum is of.
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<u64>,
    len_bytes: u64,
    resident_bytes: u64,
    dirty_bytes: Option<u64>,
    writeback_bytes: Option<u64>,
    evicted_bytes: Option<u64>,
    recently_evicted_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<Vec<f64>>,
}

impl Row {
    fn new(path: PathBuf, files: Option<u64>, len_bytes: u64, all: FileResidency) -> Self {
        Self {
            path,
            files,
            len_bytes,
            resident_bytes: all.resident_bytes,
            dirty_bytes: all.dirty_bytes,
            writeback_bytes: all.writeback_bytes,
            evicted_bytes: all.evicted_bytes,
            recently_evicted_bytes: all.recently_evicted_bytes,
            blocks: None,
        }
    }

    fn of(found: Found, all: FileResidency) -> Self {
        let len = found.metadata.len();
        let blocks = picture::blocks(&found.file, len, all);
        Self {
            blocks,
            ..Self::new(found.path, None, len, all)
        }
    }

    /// In JSON, blocks that are all alike say no more than the sum.
    fn without_uniform_blocks(&self) -> bool {
        let blocks = self.blocks.as_deref().unwrap_or_default();
        blocks.iter().all(|share| *share == blocks[0])
    }
}

struct Output<'a, W> {
    json: bool,
    is_first: bool,
    out: &'a mut W,
}

impl<W: Write> Output<'_, W> {
    fn begin(&mut self) -> Result<()> {
        match self.json {
            true => write!(self.out, "{{\n  \"files\": [")?,
            false => writeln!(self.out, "{}", table::HEADER.as_str())?,
        }
        Ok(())
    }

    fn file(&mut self, row: &Row) -> Result<()> {
        match self.json {
            true => self.json_row(row),
            false => Ok(writeln!(self.out, "{}", table::line(row))?),
        }
    }

    fn json_row(&mut self, row: &Row) -> Result<()> {
        let mut value = serde_json::to_value(row)?;
        if row.without_uniform_blocks()
            && let Some(fields) = value.as_object_mut()
        {
            fields.remove("blocks");
        }
        let separator = if self.is_first { "" } else { "," };
        self.is_first = false;
        let text = printable_json(&value.to_string());
        Ok(write!(self.out, "{separator}\n    {text}")?)
    }

    /// Shows a file that was examined before: its picture was not kept.
    fn again(&mut self, path: PathBuf, complaints: &Complaints) -> Result<()> {
        let examined = open(&path).map_err(anyhow::Error::from);
        let examined = examined.and_then(|(file, metadata)| {
            let all = residency(&file, 0..u64::MAX)?;
            Ok((file, metadata, all))
        });
        match examined {
            Ok((file, metadata, all)) => {
                let root = 0;
                self.file(&Row::of(
                    Found {
                        path,
                        file,
                        metadata,
                        root,
                    },
                    all,
                ))
            }
            Err(error) => {
                complaints.note(&path, error);
                Ok(())
            }
        }
    }

    fn sums(&mut self, sums: &Sums) -> Result<()> {
        if !self.json {
            for row in sums.folders() {
                writeln!(self.out, "{}", table::line(&row))?;
            }
            if let Some(row) = sums.total() {
                writeln!(self.out, "{}", table::line(&row))?;
            }
            return Ok(());
        }
        write!(self.out, "\n  ],\n  \"folders\": [")?;
        self.is_first = true;
        for row in sums.folders() {
            self.json_row(&row)?;
        }
        let total = serde_json::to_value(sums.all())?;
        let total = printable_json(&total.to_string());
        Ok(writeln!(self.out, "\n  ],\n  \"total\": {total}\n}}")?)
    }
}
