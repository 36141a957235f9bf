//! Man pages and shell completions, all from one definition of the command line;
//! the C header and its man pages, all from the source of tenure-c; docs/TUNING.md,
//! from the tables of what can be set; docs/KERNELS.md, from the recorded results.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use clap::Command;
use clap_complete::{Shell, generate};
use clap_mangen::Man;

use crate::{c_interface, kernels, tuning};

/// Writes the generated files below `root`, or, with `check`, only compares
/// them. Returns whether all is well.
pub fn run(root: &Path, check: bool) -> Result<bool> {
    let files = files(root)?;
    if check {
        let stale = stale(root, &files);
        for path in &stale {
            println!("{} is stale", path.display());
        }
        if !stale.is_empty() {
            println!("mend it with: cargo xtask generate");
        }
        return Ok(stale.is_empty());
    }
    for (path, contents) in &files {
        let path = root.join(path);
        let folder = path.parent().context("a file in no folder")?;
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, contents))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(true)
}

type File = (PathBuf, Vec<u8>);

/// Returns the files that differ from what is generated, or are missing.
fn stale<'a>(root: &Path, files: &'a [File]) -> Vec<&'a PathBuf> {
    let is_stale = |file: &&File| fs::read(root.join(&file.0)).ok().as_ref() != Some(&file.1);
    files.iter().filter(is_stale).map(|file| &file.0).collect()
}

/// Makes all files, with their paths below the root.
fn files(root: &Path) -> Result<Vec<File>> {
    // Built, so that subcommands know their full names. There is no page for
    // "tenure help": --help says the same.
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
    let tuning = tuning::document().into_bytes();
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
    // No date: a page must come out the same whenever it is made.
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
    fn there_is_a_page_for_each_command_a_completion_for_each_shell_and_all_knobs() {
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
                "man/tenure-doctor.1",
                "man/tenure-report.1",
                "man/tenure-run.1",
                "man/tenure-soak.1",
                "man/tenure-stat.1",
                "man/tenure.1"
            ]
        );
    }

    #[test]
    fn two_runs_make_the_same_files() {
        let root = crate::root().unwrap();
        assert_eq!(files(&root).unwrap(), files(&root).unwrap());
    }

    #[test]
    fn what_is_missing_or_differs_is_stale() {
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
