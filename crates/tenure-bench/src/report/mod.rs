//! `tenure report`: one page of what `tenure bench --json` has printed.

mod axis;
mod block;
mod compose;
mod html;
mod machines;
mod markdown;
mod plot;
mod reference;
mod svg;

use std::fs;
use std::io::{self, IsTerminal as _, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::text::{printable, printable_lines};
use crate::{arguments::ReportArguments, record::Record};

/// Reads the records that `arguments` name and writes the page.
///
/// # Errors
///
/// Fails when a file cannot be read, is no record, would be overwritten by the page, or
/// the page cannot be written.
pub fn run(arguments: &ReportArguments, out: &mut dyn Write) -> Result<()> {
    let files = &arguments.files;
    let stdin = files.is_empty().then(|| PathBuf::from("/dev/stdin"));
    let mut inputs = files.iter().chain(&stdin);
    if let Some(output) = &arguments.output
        && inputs.any(|input| is_same(input, output))
    {
        bail!(
            "the page would overwrite the record {}: name another file",
            output.display()
        );
    }
    let records = records(files)?;
    let blocks = compose::blocks(&records);
    let page = if arguments.markdown {
        markdown::render(&blocks)
    } else {
        html::render(compose::TITLE, &blocks)
    };
    // Records come from others, and the page may go to a terminal.
    let page = printable_lines(&page);
    match &arguments.output {
        None => out.write_all(page.as_bytes())?,
        Some(path) => {
            fs::write(path, page).with_context(|| format!("writing {}", path.display()))?;
            writeln!(out, "{}", printable(&path.display().to_string()))?;
        }
    }
    Ok(())
}

/// Whether two paths lead to one regular file.
fn is_same(one: &Path, other: &Path) -> bool {
    let file = |path| fs::metadata(path).ok().filter(fs::Metadata::is_file);
    let identity = |path| file(path).map(|it| (it.dev(), it.ino()));
    identity(one).is_some_and(|it| Some(it) == identity(other))
}

fn records(files: &[PathBuf]) -> Result<Vec<Record>> {
    let standard_input = [PathBuf::from("-")];
    let files = if files.is_empty() {
        &standard_input
    } else {
        files
    };
    if files.iter().filter(|path| path.as_os_str() == "-").count() > 1 {
        bail!("standard input can be read once only");
    }
    let record = |(path, label): (&PathBuf, String)| Record::read(&label, &read(path)?);
    files.iter().zip(labels(files)).map(record).collect()
}

fn read(path: &Path) -> Result<String> {
    if path.as_os_str() != "-" {
        return fs::read_to_string(path).with_context(|| format!("reading {}", path.display()));
    }
    let input = io::stdin();
    if input.is_terminal() {
        bail!("name a file, or pipe: tenure bench --quick --json | tenure report -o page.html");
    }
    io::read_to_string(input).context("reading standard input")
}

/// Names the records after their files: without folders and extension where that
/// tells them apart.
fn labels(files: &[PathBuf]) -> Vec<String> {
    let short = |path: &PathBuf| match path.file_stem() {
        Some(stem) if stem != "-" => stem.to_string_lossy().into_owned(),
        _ => "standard input".to_owned(),
    };
    let labels: Vec<String> = files.iter().map(short).collect();
    let label = |(label, path): (&String, &PathBuf)| {
        let is_clear = labels.iter().filter(|other| *other == label).count() == 1;
        if is_clear {
            label.clone()
        } else {
            path.display().to_string()
        }
    };
    labels.iter().zip(files).map(label).collect()
}

#[cfg(test)]
#[path = "../../tests/unit/report.rs"]
mod tests;
