//! The generated files: man pages and shell completions, from one definition of the
//! command line; the C header and its man pages, from the source of tenure-c;
//! docs/TUNING.md, from the tables of settings; docs/KERNELS.md, from the recorded
//! results. Hand-written files that repeat a fact of the source are compared with it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use clap::Command;
use clap_complete::{Shell, generate};
use clap_mangen::Man;

use crate::{c_interface, figures, kernels, tuning};

/// Writes the generated files below `root`, or, with `check`, only compares them; then
/// compares the hand-written files with the source. Returns whether all agree.
pub fn run(root: &Path, check: bool) -> Result<bool> {
    let files = files(root)?;
    let mut is_fresh = true;
    if check {
        let stale = stale(root, &files);
        for path in &stale {
            println!("{} is stale", path.display());
        }
        if !stale.is_empty() {
            println!("update it with: cargo xtask generate");
            is_fresh = false;
        }
    } else {
        for (path, contents) in &files {
            let path = root.join(path);
            let folder = path.parent().context("a file in no folder")?;
            fs::create_dir_all(folder)
                .and_then(|()| fs::write(&path, contents))
                .with_context(|| format!("writing {}", path.display()))?;
        }
    }
    for mistake in [c_interface::mistakes(root)?, figures::mistakes(root)?].concat() {
        println!("{mistake}");
        is_fresh = false;
    }
    Ok(is_fresh)
}

type File = (PathBuf, Vec<u8>);

/// Returns the files that are missing or differ from the generated contents.
fn stale<'a>(root: &Path, files: &'a [File]) -> Vec<&'a PathBuf> {
    let is_stale = |file: &&File| fs::read(root.join(&file.0)).ok().as_ref() != Some(&file.1);
    files.iter().filter(is_stale).map(|file| &file.0).collect()
}

/// Generates all files, with their paths below the root.
fn files(root: &Path) -> Result<Vec<File>> {
    // Built, so that subcommands know their full names. "tenure help" has no page,
    // because --help says the same.
    let mut command = tenure_cli::command().disable_help_subcommand(true);
    command.build();
    let mut files = vec![man_page(&command)?];
    for subcommand in command.get_subcommands() {
        files.push(man_page(subcommand)?);
    }
    let completions = [
        (Shell::Bash, "tenure.bash"),
        (Shell::Zsh, "_tenure"),
        (Shell::Fish, "tenure.fish"),
    ];
    for (shell, name) in completions {
        let mut contents = Vec::new();
        generate(shell, &mut tenure_cli::command(), "tenure", &mut contents);
        files.push((Path::new("completions").join(name), contents));
    }
    let tuning = tuning::document()?.into_bytes();
    files.push((Path::new("docs/TUNING.md").to_owned(), tuning));
    let kernels = kernels::document(root)?.into_bytes();
    files.push((Path::new("docs/KERNELS.md").to_owned(), kernels));
    files.extend(c_interface::files(root, version().trim())?);
    Ok(files)
}

fn version() -> String {
    tenure_cli::command().render_version()
}

fn man_page(command: &Command) -> Result<File> {
    // Without a date, so that a page is reproducible.
    let version = version();
    let page = Man::new(command.clone())
        .source(version.trim())
        .manual("tenure");
    let mut contents = Vec::new();
    page.render(&mut contents)?;
    Ok((Path::new("man").join(page.get_filename()), contents))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_cover_every_command_shell_and_option() {
        let files = files(&crate::root().unwrap()).unwrap();
        let paths = files.iter().map(|file| file.0.to_str().unwrap());
        let of_the_command = |path: &&str| !path.ends_with(".3") && !path.ends_with(".h");
        let mut paths: Vec<_> = paths.filter(of_the_command).collect();
        paths.sort_unstable();
        assert_eq!(
            paths,
            [
                "completions/_tenure",
                "completions/tenure.bash",
                "completions/tenure.fish",
                "docs/KERNELS.md",
                "docs/TUNING.md",
                "man/tenure-bench.1",
                "man/tenure-cache.1",
                "man/tenure-doctor.1",
                "man/tenure-evict.1",
                "man/tenure-exporter.1",
                "man/tenure-fincore.1",
                "man/tenure-keep.1",
                "man/tenure-report.1",
                "man/tenure-restore.1",
                "man/tenure-run.1",
                "man/tenure-snapshot.1",
                "man/tenure-stat.1",
                "man/tenure-top.1",
                "man/tenure-warm.1",
                "man/tenure.1"
            ]
        );
    }

    #[test]
    fn generated_files_are_reproducible() {
        let root = crate::root().unwrap();
        assert_eq!(files(&root).unwrap(), files(&root).unwrap());
    }

    #[test]
    fn missing_or_different_file_is_stale() {
        let root = tempfile::tempdir().unwrap();
        let files = [
            (PathBuf::from("same"), b"1".to_vec()),
            (PathBuf::from("other"), b"2".to_vec()),
            (PathBuf::from("missing"), b"3".to_vec()),
        ];
        fs::write(root.path().join("same"), "1").unwrap();
        fs::write(root.path().join("other"), "1").unwrap();
        assert_eq!(
            stale(root.path(), &files),
            [Path::new("other"), Path::new("missing")]
        );
    }
}
