//! The project's own tasks, run as `cargo xtask TASK`.

mod c_interface;
mod deb;
mod dependencies;
mod figures;
mod generate;
mod kernels;
mod layers;
mod terms;
mod test;
mod tuning;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};

/// The project's own tasks
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Make the generated files: man pages, shell completions, the C header,
    /// docs/TUNING.md
    Generate {
        /// Write nothing; fail if a committed file is stale
        #[arg(long)]
        check: bool,
    },
    /// Rewrite docs/DEPENDENCIES.md, keeping its reasons
    Dependencies {
        /// Write nothing; fail if the file is stale or a reason is missing
        #[arg(long)]
        check: bool,
    },
    /// Make Debian packages of what is installed below a folder (`make deb`)
    Deb(deb::Arguments),
    /// Check that each layer of the core library uses only those below it
    Layers,
    /// Check that no retired name is used and that comments have subjects
    Terms,
    /// Record the test results on Debian's kernels (tests/kernels/run calls it), and
    /// make docs/KERNELS.md from all recorded results
    Kernels {
        /// The output of the virtual machines, one file for each boot
        logs: Vec<PathBuf>,
    },
    /// Run the tests, side by side, and add up their results
    Test(test::Arguments),
    /// Runs a command for `test`
    #[command(hide = true)]
    Supervise(test::supervisor::Arguments),
    /// Removes the folder of a run of `test` after its end
    #[command(hide = true)]
    Guard { folder: PathBuf },
}

fn main() -> ExitCode {
    let done = match Cli::parse().task {
        Task::Generate { check } => root().and_then(|root| generate::run(&root, check)),
        Task::Dependencies { check } => root().and_then(|root| dependencies::run(&root, check)),
        Task::Kernels { logs } => root().and_then(|root| kernels::record(&root, &logs)),
        Task::Deb(arguments) => root().and_then(|root| deb::run(&root, &arguments)),
        Task::Layers => root().and_then(|root| layers::run(&root)),
        Task::Terms => root().and_then(|root| terms::run(&root)),
        Task::Test(arguments) => root().and_then(|root| test::run(&root, &arguments)),
        Task::Supervise(arguments) => test::supervisor::run(&arguments),
        Task::Guard { folder } => test::run_folder::guard(&folder),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the root of the workspace.
fn root() -> Result<PathBuf> {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let root = manifest.ancestors().nth(2);
    Ok(root.context("xtask is not at crates/xtask")?.to_owned())
}
