//! Runs the tests: each in a process of its own, several side by side, those that need
//! the machine to themselves one after the other; then what each pass asked for.
//!
//! A test program declares at the test what its tests need, by their kind (libtest-mimic
//! prints it in brackets): `exclusive` has the machine to itself; the `grouped` tests of
//! a program share one process, because they share what is expensive to set up;
//! `thorough` is left to `make test-thorough`.

mod clean;
mod hang;
mod outcomes;
mod privileges;
mod process;
mod program;
pub mod report;
pub mod run_folder;
mod schedule;
pub mod supervisor;
mod tsan;

use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use self::{
    privileges::User,
    program::{Program, Test},
    report::{Outcome, Report},
    run_folder::RunFolder,
    tsan::Tsan,
};

/// The arguments of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Run the tests as user and group 65534, without privileges
    #[arg(long)]
    unprivileged: bool,
    /// Run the tests that `make test` leaves out, and only those
    #[arg(long)]
    thorough: bool,
    /// Run both
    #[arg(long, conflicts_with = "thorough")]
    all: bool,
    /// Run the tests as on a kernel without these features (TENURE_WITHOUT)
    #[arg(long, value_name = "FEATURE,...")]
    without: Option<String>,
    /// Build the tests with ThreadSanitizer, which reports data races
    #[arg(long)]
    tsan: bool,
    /// Run the tests of this package only
    #[arg(long, short, value_name = "PACKAGE")]
    package: Vec<String>,
    /// Leave out tests whose names begin with this
    #[arg(long, value_name = "NAME")]
    skip: Vec<String>,
    /// Run so many tests side by side [default: one for each CPU, and one]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Run failed tests again, each by itself; those that pass five times are reported as
    /// unstable, and do not fail the pass
    #[arg(long)]
    repeat_failed: bool,
    /// Name each test when it ends
    #[arg(long, short)]
    verbose: bool,
    /// Run only tests whose full name (program::test) contains one of these
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

/// Builds and runs the tests below `root`. Returns whether all is well.
pub fn run(root: &Path, arguments: &Arguments) -> Result<bool> {
    let mut report = Report::new(arguments.verbose);
    let tsan = match arguments.tsan.then(|| Tsan::find(root)) {
        Some(Err(reason)) => {
            let skipped = Outcome::Skipped(reason);
            report.add("tsan".to_owned(), skipped, Duration::ZERO, "");
            report.finish(Duration::ZERO);
            return Ok(true);
        }
        Some(Ok(tsan)) => Some(tsan),
        None => None,
    };
    clean::remove_leftovers();
    let folder = RunFolder::make()?;
    let user = User::for_tests(arguments.unprivileged, root, folder.path())?;
    let programs = program::build(root, &arguments.package, &user, tsan.as_ref())?;
    let begun = Instant::now();
    let durations = schedule::Durations::read(&programs);
    let mut unmatched: BTreeSet<_> = arguments.names.iter().collect();
    let is_chosen = |program: &Program, test: &Test| {
        let name = test.full_name(program);
        let is_named = |named: &&String| name.contains(named.as_str());
        let is_skipped = |skip: &String| test.name.starts_with(skip.as_str());
        unmatched.retain(|named| !is_named(named));
        (arguments.names.is_empty() || arguments.names.iter().any(|named| is_named(&named)))
            && !arguments.skip.iter().any(is_skipped)
            && (arguments.all
                || !arguments.names.is_empty()
                || test.is_thorough() == arguments.thorough)
    };
    let setting = process::Setting {
        user: &user,
        folder: &folder,
        without: arguments.without.as_deref(),
        tsan: tsan.as_ref(),
    };
    let mut jobs = program::jobs(&programs, &setting, is_chosen)?;
    ensure!(unmatched.is_empty(), "no test is named so: {unmatched:?}");
    if let Some(tsan) = &tsan {
        tsan::prove_itself(tsan, root, &mut report)?;
        tsan::leave_out(&mut jobs, &mut report);
    }
    let failed = schedule::run(jobs, arguments.jobs, &setting, &durations, &mut report)?;
    if arguments.repeat_failed {
        schedule::repeat(&failed, &setting, &mut report)?;
    }
    let runs_docs = arguments.names.is_empty()
        && !arguments.thorough
        && arguments.without.is_none()
        && tsan.is_none();
    if runs_docs && !user.is_other() {
        program::run_doc_tests(root, &arguments.package, &setting, &mut report)?;
    }
    drop(folder);
    durations.write(&report);
    report.finish(begun.elapsed());
    Ok(report.is_well())
}
