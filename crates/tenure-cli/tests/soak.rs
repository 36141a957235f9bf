//! `tenure soak`: a short run has everything and ends clean, and what is wrong is
//! said.

use std::{
    fs,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use serde_json::Value;

fn main() {
    let mut arguments = Arguments::from_args();
    // Each takes all the CPUs there are.
    arguments.test_threads = Some(1);
    let trials = vec![
        Trial::ignorable_test("a_short_run_has_everything", || Ok(short_run())),
        Trial::test("the_same_seed_does_the_same", same_seed),
        Trial::test("a_process_that_is_killed_is_a_failure", killed),
        Trial::test("too_little_memory_is_refused", too_little),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

fn soak(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.arg("soak").args(arguments);
    command
}

/// Runs for a few seconds, and returns the report of a run that ended clean.
fn report(seed: &str) -> Value {
    let arguments = ["--minutes", "0.15", "--threads", "2", "--json", "--seed"];
    let output = soak(&arguments).arg(seed).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}\n{errors}");
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["failure"], Value::Null, "{text}");
    report
}

fn short_run() -> Completion {
    let report = report("7");
    for (name, count) in report["operations"].as_object().unwrap() {
        assert!(count.as_u64() >= Some(2), "{name}: {count}");
    }
    let number = |name: &str| report[name].as_u64().unwrap();
    for name in [
        "pages_checked",
        "pages_checked_by_children",
        "forks",
        "signals",
        "pages_lost",
        "unmarked_intact",
        "page_outs",
        "peak_rss_bytes",
        "mappings_after",
    ] {
        assert!(number(name) > 0, "{name}: {report:#}");
    }
    assert_eq!((number("seed"), number("threads")), (7, 2));
    assert_eq!(number("pending_bytes"), 0);
    assert!(number("descriptors_after") <= number("descriptors_before"));
    if report["limit_bytes"].is_null() {
        let why = report["why_no_limit"].as_str().unwrap();
        return Completion::ignored_with(format!("without a limit: {why}"));
    }
    assert!(number("ballast_waves") > 0, "{report:#}");
    Completion::Completed
}

fn same_seed() -> Result<(), Failed> {
    let [one, other] = [report("5"), report("5")];
    assert_eq!(one["digest"], other["digest"]);
    assert_ne!(one["digest"], report("6")["digest"]);
    Ok(())
}

/// The process that is soaked, when it is there.
fn soaked(pid: u32) -> Option<u32> {
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
    let body = loop {
        if let Some(body) = soaked(supervisor.id()) {
            break body;
        }
        assert!(Instant::now() < end, "it has not started");
        thread::sleep(Duration::from_millis(20));
    };
    // SAFETY: a child of a child of ours, which waits for it.
    assert_eq!(unsafe { libc::kill(body.cast_signed(), libc::SIGKILL) }, 0);
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
