//! Debian packages of what `make install` has installed below a folder, made with
//! Debian's own tools.

mod control;
mod packages;
mod tree;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

use packages::PACKAGES;
use tree::Tree;

/// Debian's tools that this calls, with the packages that have them.
const TOOLS: [(&str, &str); 6] = [
    ("dpkg-deb", "dpkg"),
    ("dpkg-architecture", "dpkg-dev"),
    ("dpkg-gensymbols", "dpkg-dev"),
    ("dpkg-shlibdeps", "dpkg-dev"),
    ("gzip", "gzip"),
    ("strip", "binutils"),
];

/// The arguments of `cargo xtask deb`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The files that `make install PREFIX=/usr LIBDIR=/usr/lib/TRIPLET DESTDIR=FOLDER` has installed
    #[arg(long, value_name = "FOLDER")]
    staging: PathBuf,
    /// Where the packages go
    #[arg(long, value_name = "FOLDER")]
    output: PathBuf,
    /// The packages' revision of this version of tenure
    #[arg(long, default_value_t = 1)]
    revision: u32,
}

/// The common part of the packages of one build.
struct Build {
    /// Where each file of the project is found.
    root: PathBuf,
    /// Where the packages are made.
    output: PathBuf,
    architecture: String,
    multiarch: String,
    /// tenure's version, and with the revision that of the packages.
    upstream: String,
    version: String,
    /// The time of the changelog's entry, in seconds since 1970.
    time: String,
}

/// Makes the packages, and prints their paths.
pub fn run(root: &Path, arguments: &Arguments) -> Result<bool> {
    for (tool, package) in TOOLS {
        let is_there = |folder: PathBuf| folder.join(tool).is_file();
        let path = std::env::var_os("PATH").unwrap_or_default();
        ensure!(
            std::env::split_paths(&path).any(is_there),
            "{tool} is unavailable: install Debian's package {package}"
        );
    }
    let build = Build::new(root, arguments)?;
    let _ = fs::remove_dir_all(build.output.join("trees"));
    let mut trees = Vec::new();
    for package in &PACKAGES {
        trees.push(Tree::new(&build, package)?);
    }
    let prefix = arguments.staging.join("usr");
    for file in tree::files_below(&prefix)? {
        let below = file.strip_prefix(&prefix)?;
        let Some((package, to)) = packages::place(below, &build.multiarch)? else {
            continue;
        };
        let tree = trees.iter().find(|tree| tree.package == package);
        let tree = tree.context("a package without a tree")?;
        tree.take(&file, &to)?;
    }
    for tree in &trees {
        tree.add_documents(&build)?;
    }
    // A package depends on the libraries of others, which must all be in place.
    for tree in &trees {
        let made = control::finish(&build, tree)?;
        println!("{}", made.display());
    }
    Ok(true)
}

impl Build {
    fn new(root: &Path, arguments: &Arguments) -> Result<Self> {
        let ask = |variable: &str| output(Command::new("dpkg-architecture").args(["-q", variable]));
        let command = tenure_cli::command();
        let upstream = command
            .get_version()
            .context("tenure has no version")?
            .to_owned();
        let time = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(time) => time,
            Err(_) => output(
                Command::new("git")
                    .args(["log", "-1", "--format=%ct"])
                    .current_dir(root),
            )
            .context("without git, set SOURCE_DATE_EPOCH: the time of the changelog's entry")?,
        };
        ensure!(
            arguments.staging.join("usr").is_dir(),
            "{} has no folder usr: `make deb` installs into it",
            arguments.staging.display()
        );
        fs::create_dir_all(&arguments.output)?;
        Ok(Self {
            root: root.to_owned(),
            output: arguments.output.canonicalize()?,
            architecture: ask("DEB_HOST_ARCH")?,
            multiarch: ask("DEB_HOST_MULTIARCH")?,
            version: format!("{upstream}-{}", arguments.revision),
            upstream,
            time,
        })
    }
}

/// Runs a command that must succeed.
fn run_tool(command: &mut Command) -> Result<()> {
    let status = command.status();
    let status = status.with_context(|| format!("starting {command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// Runs a command that must succeed, and returns its output without the last newline.
fn output(command: &mut Command) -> Result<String> {
    let output = command.output();
    let output = output.with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {}\n{}", output.status, errors.trim());
    }
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}
