//! The project's own tasks, run as `cargo xtask TASK`.

mod c_interface;
mod dependencies;
mod generate;
mod kernels;
mod layers;
mod summary;
mod tests_run;
mod tuning;
mod watched;

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

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
    /// Make the files that are made from definitions in the source: man pages, shell
    /// completions, the C header, docs/TUNING.md
    Generate {
        /// Write nothing; fail when a committed file is stale
        #[arg(long)]
        check: bool,
    },
    /// Write docs/DEPENDENCIES.md anew, with the reasons that it has
    Dependencies {
        /// Write nothing; fail when it is stale or a reason is missing
        #[arg(long)]
        check: bool,
    },
    /// Check that each layer of the core library uses only those below it
    Layers,
    /// Record what the tests have said on Debian's kernels (tests/kernels/run calls it),
    /// and make docs/KERNELS.md of all that is recorded
    Kernels {
        /// What the virtual machines have printed, one file for each
        logs: Vec<PathBuf>,
    },
    /// Run all tests and add up their results
    Test {
        /// Run the tests as user and group 65534, without privileges
        #[arg(long)]
        unprivileged: bool,
        /// Run the library's tests without what older kernels lack
        #[arg(long, conflicts_with_all = ["unprivileged", "arguments"])]
        older: bool,
        /// Further arguments for cargo test
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Run a test program; show and kill it should it hang
    #[command(hide = true)]
    Watch {
        /// The program and its arguments
        #[arg(last = true)]
        command: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    let done = match Cli::parse().task {
        Task::Generate { check } => root().and_then(|root| generate::run(&root, check)),
        Task::Dependencies { check } => root().and_then(|root| dependencies::run(&root, check)),
        Task::Kernels { logs } => root().and_then(|root| kernels::record(&root, &logs)),
        Task::Layers => root().and_then(|root| layers::run(&root)),
        Task::Test { older: true, .. } => root().and_then(|root| tests_run::run_older(&root)),
        Task::Test {
            unprivileged,
            arguments,
            ..
        } => root().and_then(|root| tests_run::run(&root, unprivileged, &arguments)),
        Task::Watch { command } => match watched::run(&command, watched::LIMIT) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
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
