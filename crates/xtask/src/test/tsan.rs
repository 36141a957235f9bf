//! ThreadSanitizer: the toolchain that builds the tests with it, the options that they
//! run with, and the tests that cannot run under it.
//!
//! The standard library is built with it as well (`-Zbuild-std`): otherwise
//! ThreadSanitizer does not see what its mutexes and channels order, and reports races
//! that are none. Building it takes a nightly toolchain and the library's source.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use super::{
    program::Job,
    report::{Outcome, Report},
};

/// Names the folder `library` of the source of Rust, for a toolchain without rust-src.
const SOURCE: &str = "TENURE_RUST_SRC";

/// Where cargo looks for that folder, if not in the toolchain. (cargo has no stable name
/// for it.)
const CARGO_SOURCE: &str = "__CARGO_TESTS_ONLY_SRC_ROOT";

/// A target by its name, because build scripts and macros are built for the host without
/// ThreadSanitizer.
pub const BUILD_ARGUMENTS: [&str; 3] = ["-Zbuild-std", "--target", TARGET];

const RUSTFLAG: &str = "-Zsanitizer=thread";

const TARGET: &str = if cfg!(target_arch = "aarch64") {
    "aarch64-unknown-linux-gnu"
} else {
    "x86_64-unknown-linux-gnu"
};

/// A toolchain that can build with ThreadSanitizer.
pub struct Tsan {
    /// The source of the standard library.
    source: PathBuf,
    /// Where cargo builds.
    target: PathBuf,
    suppressions: PathBuf,
}

impl Tsan {
    /// Looks for the toolchain; returns what is missing, if anything is.
    pub fn find(root: &Path) -> Result<Self, String> {
        let mut rustc = Command::new("rustc");
        let output = rustc.args(["+nightly", "--print", "sysroot"]).output();
        let output = output.ok().filter(|output| output.status.success());
        let Some(output) = output else {
            return Err("ThreadSanitizer needs a nightly toolchain of rustup's".to_owned());
        };
        let sysroot = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let in_sysroot = Path::new(&sysroot).join("lib/rustlib/src/rust/library");
        let source = env::var_os(SOURCE).map_or(in_sysroot, PathBuf::from);
        if !source.join("Cargo.lock").is_file() {
            let missing = format!(
                "{} is not there: rustup +nightly component add rust-src, or name the \
                 folder of the same version in {SOURCE}",
                source.display()
            );
            return Err(missing);
        }
        let target = env::var_os("CARGO_TARGET_DIR");
        Ok(Self {
            source,
            target: target.map_or_else(|| root.join("target"), PathBuf::from),
            suppressions: root.join("tests/sanitizers/tsan.supp"),
        })
    }

    /// The command `cargo` that builds with it.
    pub fn cargo(&self) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.arg("+nightly");
        cargo.env("RUSTFLAGS", RUSTFLAG);
        cargo.env(CARGO_SOURCE, &self.source);
        cargo.env("CARGO_TARGET_DIR", self.target.join("tsan"));
        cargo
    }

    /// The variable with the options of ThreadSanitizer, for a test that has this folder.
    /// Reports go to files there, because a test may discard the output of its children.
    pub fn run_variable(&self, folder: &Path) -> (&'static str, String) {
        // A child of a fork may start threads, as those of tenure do. The tests have
        // expectations of their own about these signals.
        let options = "die_after_fork=0 history_size=4 handle_segv=0 handle_sigbus=0 \
                       handle_abort=0 handle_sigill=0 handle_sigfpe=0 log_path=";
        let (log, suppressions) = (folder.join(LOG), &self.suppressions);
        let value = format!(
            "{options}{} suppressions={}",
            log.display(),
            suppressions.display()
        );
        ("TSAN_OPTIONS", value)
    }
}

/// Builds and runs a program that has a data race. It is a failed test if that is not
/// reported: then a test without a report says nothing.
pub fn prove_itself(tsan: &Tsan, root: &Path, report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir().context("making a folder for the planted race")?;
    let program = folder.path().join("race");
    let mut rustc = Command::new("rustc");
    rustc.args(["+nightly", "--edition=2024", RUSTFLAG]);
    // Here the standard library may be the toolchain's own: the race is not in it.
    rustc.arg("-Cunsafe-allow-abi-mismatch=sanitizer");
    rustc.arg(root.join("tests/sanitizers/race.rs"));
    let built = rustc.arg("-o").arg(&program).status();
    ensure!(
        built.context("starting rustc")?.success(),
        "race.rs is not built"
    );
    let (variable, options) = tsan.run_variable(folder.path());
    let status = Command::new(&program).env(variable, options).status();
    let status = status.context("starting the planted race")?;
    let reports = reports(folder.path());
    let outcome = match reports.contains(RACE) && !status.success() {
        true => Outcome::Passed,
        false => Outcome::Failed(format!("{status}, without a report")),
    };
    let name = "tsan::planted_race_is_reported".to_owned();
    report.add(name, outcome, Duration::ZERO, &reports);
    Ok(())
}

/// The beginning of a report of a data race.
const RACE: &str = "WARNING: ThreadSanitizer";

/// The beginning of the names of the files with reports.
const LOG: &str = "tsan-report";

/// Returns the reports that a test's processes have left in its folder.
pub fn reports(folder: &Path) -> String {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_log = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(LOG);
    let logs = entries.filter(is_log);
    logs.filter_map(|entry| fs::read(entry.path()).ok())
        .map(|text| String::from_utf8_lossy(&text).into_owned())
        .collect()
}

/// Makes failures of tests with a report, and skipped ones of those whose assertions
/// ThreadSanitizer breaks.
pub fn judge(outcomes: &mut [(String, Outcome)], reports: &str) {
    for (name, outcome) in outcomes {
        if reports.contains(RACE) {
            *outcome = Outcome::Failed("ThreadSanitizer has reported something".to_owned());
        } else if outcome.is_failed()
            && let Some(reason) = reason(&UNFIT, name)
        {
            *outcome = Outcome::Skipped(format!("no data race as far as it got, but {reason}"));
        }
    }
}

/// Names of tests, or of a program's (with `::` at the end), with a reason.
type Reasons = (&'static str, &'static [&'static str]);

/// The tests that are not run.
const LEFT_OUT: [Reasons; 3] = [
    (
        "the supervisor of its system calls takes ThreadSanitizer's for tenure's",
        &["tenure::faults::"],
    ),
    (
        "the tear-down helper has no thread-local storage of its own, where code built with \
         ThreadSanitizer keeps its state",
        &[
            "tenure::teardown::",
            "tenure::verbs::teardown::",
            "tenure::ground::sys::helper::",
        ],
    ),
    (
        "mlockall locks ThreadSanitizer's shadow memory, which takes minutes or all memory",
        &[
            "tenure::lock_all::",
            "tenure::lock_kernel::lock_all_current_locks_only_existing_mappings",
            "tenure::lock_kernel::lock_all_current_and_future_locks_both",
            "tenure-heap::decay::freed_memory_under_mlockall_is_returned",
        ],
    ),
];

/// The tests that are run, but whose assertions may fail.
const UNFIT: [Reasons; 5] = [
    (
        "it measures memory of the process, which ThreadSanitizer adds to",
        &[
            "tenure-heap::decay::",
            "tenure-heap::huge::partly_filled_huge_page_is_not_charged",
            "tenure-heap::zeros::calloc_of_retained_place_touches_no_page",
            "tenure::mapping::failed_map_leaves_nothing_mapped",
            "tenure::mapping::failed_mmap_request_leaves_nothing_mapped",
            "tenure::release::munmap_of_any_size_unmaps_and_frees",
            "tenure::release::munmap_sync_leaves_nothing_pending",
            "tenure::release_soak::",
            "tenure::residency::residency_flushes_lazyfree_batch",
            "tenure::residency::residency_of_other_process_matches_its_own",
        ],
    ),
    (
        "ThreadSanitizer's memory exceeds the limit of its cgroup",
        &[
            "tenure-heap::limits::",
            "tenure-heap::soak::random_calls_at_cgroup_limit_keep_contents",
            "tenure::free_policy::",
            "tenure::headroom::",
            "tenure::lazy_free_accounting::",
            "tenure::locked_file::locked_pages_survive_memory_shortage",
            "tenure::pressure::",
            "tenure::volatile_cache::",
            "tenure::volatile_cache_limits::",
            "tenure::volatile_offer_thread::",
            "tenure::volatile_soak::soak_at_cgroup_limit_has_no_wrong_byte_or_unreported_purge",
        ],
    ),
    (
        "it takes away addresses, mappings or system calls that ThreadSanitizer needs",
        &[
            "tenure-heap::off::",
            "tenure::locked_file::file_over_memlock_limit_leaves_nothing_mapped",
            "tenure::release_plainly::release_at_map_count_limit_frees_or_reports_limit",
            "tenure::residency::residency_at_map_count_limit_leaves_lazily_free_unknown",
            "tenure::secret::dropped_buffer_is_wiped_before_munmap",
            "tenure::stats::counters_without_mappable_page_still_count",
            "tenure::volatile_buffer::transitions_within_offer_delay_make_no_syscall",
            "tenure::volatile_buffer::failed_purge_still_reports_purged_pages",
        ],
    ),
    (
        "ThreadSanitizer's thread in the child maps memory where the test expects none",
        &["tenure::secret::forked_child_has_no_hidden_memory"],
    ),
    (
        "ThreadSanitizer allows no core dump",
        &["tenure::security::core_dump_contains_no_secret"],
    ),
];

/// Moves the tests that are not run from the jobs to the report, as skipped.
pub fn leave_out(jobs: &mut Vec<Job>, report: &mut Report) {
    for Job {
        program,
        tests,
        others,
        ..
    } in jobs.iter_mut()
    {
        tests.retain(|test| {
            let name = test.full_name(program);
            let reason = reason(&LEFT_OUT, &name);
            if let Some(reason) = reason {
                others.push(test.name.clone());
                let skipped = Outcome::Skipped(reason.to_owned());
                report.add(name, skipped, Duration::ZERO, "");
            }
            reason.is_none()
        });
    }
    jobs.retain(|job| !job.tests.is_empty());
}

fn reason(list: &[Reasons], name: &str) -> Option<&'static str> {
    let is_meant = |it: &&str| name == *it || it.ends_with("::") && name.starts_with(*it);
    let found = list.iter().find(|(_, names)| names.iter().any(is_meant));
    found.map(|(reason, _)| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_of_unfit_test_is_a_skip_unless_it_raced() {
        let failed = || Outcome::Failed("status 101".to_owned());
        let outcomes = || {
            [
                ("tenure::pressure::a".to_owned(), failed()),
                ("tenure::pressure".to_owned(), failed()),
                ("tenure::pressure::b".to_owned(), Outcome::Passed),
            ]
        };
        let mut judged = outcomes();
        judge(&mut judged, "");
        assert!(matches!(&judged[0].1, Outcome::Skipped(_)));
        assert_eq!(judged[1..], outcomes()[1..]);
        let mut raced = outcomes();
        judge(
            &mut raced,
            "==\nWARNING: ThreadSanitizer: data race (pid=1)",
        );
        assert!(raced.iter().all(|(_, outcome)| outcome.is_failed()));
    }

    #[test]
    fn reports_are_read_from_files_of_all_processes() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("tsan-report.1", "one"),
            ("tsan-report.23", "two"),
            ("x", "no"),
        ] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let text = reports(folder.path());
        assert!(text.contains("one") && text.contains("two") && text.len() == 6);
    }
}
