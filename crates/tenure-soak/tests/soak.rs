//! `tenure-soak` as its user runs it: a clean short run, and the failures that it reports.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn main() {
    let mut arguments = Arguments::from_args();
    // Each test uses all CPUs.
    arguments.test_threads = Some(1);
    let trials = vec![
        Trial::ignorable_test("short_run_uses_every_verb_and_ends_clean", || {
            Ok(short_run())
        }),
        Trial::test("same_seed_has_the_same_digest", same_seed),
        Trial::ignorable_test("unreadable_limits_never_get_the_process_killed", || {
            Ok(unreadable_limits())
        }),
        Trial::test("killed_soaked_process_is_a_failure", killed),
        Trial::test("memory_below_the_minimum_is_refused", too_little),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

fn soak(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-soak"));
    command.args(arguments);
    command
}

/// Runs for a few seconds, and returns the report of a run that ended clean.
fn report(more: &[&str]) -> Value {
    report_of("0.15", more)
}

fn report_of(minutes: &str, more: &[&str]) -> Value {
    let arguments = ["--minutes", minutes, "--threads", "2", "--json"];
    let output = soak(&arguments).args(more).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}\n{errors}");
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["failure"], Value::Null, "{text}");
    report
}

fn short_run() -> Completion {
    let report = report(&["--seed", "7"]);
    for (name, count) in report["operations"].as_object().unwrap() {
        assert!(count.as_u64() >= Some(2), "{name}: {count}");
    }
    let number = |name: &str| report[name].as_u64().unwrap();
    for name in [
        "pages_checked",
        "pages_checked_by_children",
        "forks",
        "fork_handler_calls",
        "descriptors_closed",
        "signals",
        "pages_purged",
        "unmarked_intact",
        "page_outs",
        "admitted_bytes",
        "peak_rss_bytes",
        "mappings_after",
    ] {
        assert!(number(name) > 0, "{name}: {report:#}");
    }
    assert_eq!((number("seed"), number("threads")), (7, 2));
    assert_eq!(number("pending_bytes"), 0);
    if report["limit_bytes"].is_null() {
        let why = report["why_no_limit"].as_str().unwrap();
        return Completion::ignored_with(format!("without a limit: {why}"));
    }
    assert!(number("pressure_waves") > 0, "{report:#}");
    Completion::Completed
}

/// Admits, populates, locks and caches in a small cgroup while readings of the limits fail.
fn unreadable_limits() -> Completion {
    let report = report(&["--unreadable-limits", "--seed", "7"]);
    for name in ["admit", "populate", "lock", "cache"] {
        let count = &report["operations"][name];
        assert!(count.as_u64() > Some(0), "{name}: {count}");
    }
    assert!(report["admitted_bytes"].as_u64() > Some(0), "{report:#}");
    if report["limit_bytes"].is_null() {
        let why = report["why_no_limit"].as_str().unwrap();
        return Completion::ignored_with(format!("without a limit: {why}"));
    }
    let errors = &report["expected_errors"];
    assert!(errors["not_admitted"].as_u64() > Some(0), "{report:#}");
    Completion::Completed
}

fn same_seed() -> Result<(), Failed> {
    // The digest covers the first operations, which a run performs however short it is.
    let digest = |seed| report_of("0.01", &["--seed", seed])["digest"].clone();
    assert_eq!(digest("5"), digest("5"));
    assert_ne!(digest("5"), digest("6"));
    Ok(())
}

/// Returns the soaked process below a supervisor, once it exists.
fn find_soaked(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let is_soaked = |child: &u32| {
        let line = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("soaked-process")
    };
    let children = children
        .split_whitespace()
        .filter_map(|child| child.parse().ok());
    children.into_iter().find(is_soaked)
}

fn killed() -> Result<(), Failed> {
    let supervisor = soak(&["--minutes", "1", "--threads", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let end = Instant::now() + Duration::from_secs(30);
    let soaked = loop {
        if let Some(pid) = find_soaked(supervisor.id()) {
            break pid;
        }
        assert!(Instant::now() < end, "the soaked process has not started");
        thread::sleep(Duration::from_millis(20));
    };
    let soaked = Pid::from_raw(soaked.cast_signed()).expect("no process has the number 0");
    kill_process(soaked, Signal::KILL)?;
    let output = supervisor.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("the process was ended by signal 9"), "{text}");
    assert!(text.contains("--seed 1 --threads 1"), "{text}");
    Ok(())
}

fn too_little() -> Result<(), Failed> {
    let output = soak(&["--threads", "4", "--memory", "300"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("at least 512 MiB"), "{errors}");
    Ok(())
}
