//! `tenure report`: one page of what `tenure bench --json` has printed.

mod compose;
mod document;
mod figures;
mod html;
mod machines;
mod markdown;
mod plot;
mod record;
mod reference;
mod scale;
mod sentence;
mod svg;

use std::{
    fs,
    io::{self, IsTerminal as _, Read as _, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use self::record::Record;
use crate::cli::ReportArguments;

/// Reads the records that `arguments` name and writes the page.
///
/// # Errors
///
/// Fails when a file cannot be read, is no record, or the page cannot be written.
pub fn run(arguments: &ReportArguments, out: &mut dyn Write) -> Result<()> {
    let records = records(&arguments.files)?;
    let document = compose::document(&records);
    let page = if arguments.markdown {
        markdown::render(&document)
    } else {
        html::render(&document)
    };
    match &arguments.output {
        None => out.write_all(page.as_bytes())?,
        Some(path) => {
            fs::write(path, page).with_context(|| format!("writing {}", path.display()))?;
            writeln!(out, "{}", path.display())?;
        }
    }
    Ok(())
}

fn records(files: &[PathBuf]) -> Result<Vec<Record>> {
    let standard_input = [PathBuf::from("-")];
    let files = if files.is_empty() {
        &standard_input
    } else {
        files
    };
    let is_input = |path: &&PathBuf| path.as_os_str() == "-";
    if files.iter().filter(is_input).count() > 1 {
        bail!("standard input can be read once only");
    }
    let of_file = |(path, label): (&PathBuf, String)| {
        let text = read(path)?;
        Record::read(&label, &text)
    };
    files.iter().zip(labels(files)).map(of_file).collect()
}

fn read(path: &Path) -> Result<String> {
    if path.as_os_str() != "-" {
        return fs::read_to_string(path).with_context(|| format!("reading {}", path.display()));
    }
    let mut input = io::stdin().lock();
    if input.is_terminal() {
        bail!("name a file, or pipe: tenure bench --quick --json | tenure report -o page.html");
    }
    let mut text = String::new();
    input
        .read_to_string(&mut text)
        .context("reading standard input")?;
    Ok(text)
}

/// Names the records after their files: without folders and ending where that
/// tells them apart.
fn labels(files: &[PathBuf]) -> Vec<String> {
    let short = |path: &PathBuf| match path.file_stem() {
        Some(stem) if stem != "-" => stem.to_string_lossy().into_owned(),
        _ => "standard input".to_owned(),
    };
    let labels: Vec<String> = files.iter().map(short).collect();
    let is_clear = |label: &String| labels.iter().filter(|other| *other == label).count() == 1;
    let paths = files.iter().map(|path| path.display().to_string());
    let clear =
        |(label, path): (&String, String)| if is_clear(label) { label.clone() } else { path };
    labels.iter().zip(paths).map(clear).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_called_so_that_they_can_be_told_apart() {
        let of = |files: &[&str]| labels(&files.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(of(&["a/before.json", "a/after.json"]), ["before", "after"]);
        assert_eq!(of(&["a/1.json", "b/1.json"]), ["a/1.json", "b/1.json"]);
        assert_eq!(of(&["-"]), ["standard input"]);
    }
}
