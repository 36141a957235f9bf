//! The `tenure` command as a script sees it: exit statuses, output, pipes.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

use assert_cmd::cargo::cargo_bin_cmd;
use serde_json::Value;

/// Tests that run benchmarks take it, because each needs the CPUs for itself.
fn measuring() -> MutexGuard<'static, ()> {
    static MEASURING: Mutex<()> = Mutex::new(());
    MEASURING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn version_is_one_line() {
    let version = format!("tenure {}\n", env!("CARGO_PKG_VERSION"));
    let mut tenure = cargo_bin_cmd!("tenure");
    tenure.arg("--version").assert().code(0).stdout(version);
}

#[test]
fn help_names_the_exit_statuses() {
    for arguments in [
        &["--help"][..],
        &["bench", "--help"],
        &["bench", "-h"],
        &["stat", "-h"],
    ] {
        let assert = cargo_bin_cmd!("tenure").args(arguments).assert().code(0);
        let help = String::from_utf8_lossy(&assert.get_output().stdout).into_owned();
        assert!(help.contains("Exit status:"), "{help}");
    }
}

#[test]
fn wrong_command_line_exits_with_2() {
    let wrong: [&[&str]; 6] = [
        &[],
        &["bench", "lock", "--full", "--quick"],
        &["bench", "swap"],
        &["bench", "--rounds", "0"],
        &["bench", "--seed", "x"],
        &["--no-such-option"],
    ];
    for arguments in wrong {
        let assert = cargo_bin_cmd!("tenure").args(arguments).assert().code(2);
        let output = assert.get_output();
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn bench_json_is_one_document_and_nothing_else() {
    let _alone = measuring();
    let assert = cargo_bin_cmd!("tenure")
        .args(["bench", "lazy_free", "--quick", "--rounds", "1", "--json"])
        .args(["--seed", "7"])
        .assert()
        .code(0)
        .stderr("");
    let report: Value = serde_json::from_slice(&assert.get_output().stdout).unwrap();
    assert_eq!(report["seed"], 7);
    assert_eq!(
        report["environment"]["tenure_version"],
        env!("CARGO_PKG_VERSION")
    );
    assert!(report["environment"]["memory_total_bytes"].as_u64() > Some(0));

    let experiments = report["experiments"].as_array().unwrap();
    assert_eq!(experiments.len(), 1);
    let experiment = &experiments[0];
    assert_eq!(experiment["name"], "lazy_free");
    assert!(experiment.get("error").is_none());
    for case in experiment["cases"].as_array().unwrap() {
        assert_eq!(case["rounds"], 1);
        let ways = case["ways"].as_array().unwrap();
        let count = |field: &str| ways.iter().filter(|way| way[field] == true).count();
        assert_eq!((count("is_baseline"), count("is_tenure")), (1, 1));
        for way in ways {
            let figure = &way["figures"][0];
            assert_eq!(figure["samples"].as_array().unwrap().len(), 1);
            assert!(figure["median"].as_f64().unwrap() > 0.0);
            assert_eq!(way["times_as_good"].is_null(), way["is_baseline"] == true);
        }
    }
}

#[test]
fn bench_record_writes_json_beside_the_tables() {
    let _alone = measuring();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.json");
    let assert = cargo_bin_cmd!("tenure")
        .args([
            "bench",
            "--only",
            "lazy_free",
            "--quick",
            "--rounds",
            "1",
            "--record",
        ])
        .arg(&path)
        .assert()
        .code(0);
    let text = String::from_utf8_lossy(&assert.get_output().stdout).into_owned();
    assert!(text.contains("\nlazy_free: "), "{text}");
    let report: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let experiments = report["experiments"].as_array().unwrap();
    assert_eq!(experiments.len(), 1);
    assert_eq!(experiments[0]["sizes"], "quick");
    assert!(
        report["command"]
            .as_str()
            .unwrap()
            .starts_with("tenure bench --only lazy_free")
    );
    assert!(report["method"].as_str().unwrap().contains("take turns"));
    assert!(report["environment"]["memory_room_bytes"].as_u64() > Some(0));
}

#[test]
fn bench_record_that_cannot_be_written_fails_before_measuring() {
    let assert = cargo_bin_cmd!("tenure")
        .args(["bench", "--record", "/proc/self/no/such/file"])
        .assert()
        .code(1)
        .stdout("");
    let errors = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(
        errors.starts_with("tenure: writing /proc/self/no/such/file: "),
        "{errors}"
    );
}

#[test]
fn closed_pipe_is_no_failure() {
    let _alone = measuring();
    let mut tenure = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["bench", "lazy_free", "--quick", "--rounds", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Read the heading, which comes before the experiment, and close the pipe.
    let mut line = String::new();
    let mut output = BufReader::new(tenure.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    assert!(line.starts_with("tenure "), "{line}");
    drop(output);
    let ended = tenure.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
}

#[test]
fn bench_failure_exits_with_1_and_one_line() {
    let assert = cargo_bin_cmd!("tenure")
        .args(["bench", "lock", "--rounds", "1"])
        .env("TMPDIR", "/proc/self/no/such/folder")
        .assert()
        .code(1);
    let output = assert.get_output();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.starts_with("tenure: lock failed: "), "{errors}");
    assert!(errors.contains("TMPDIR"), "{errors}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("lock: failed"), "{text}");
}

/// The reader is gone before the first byte.
#[test]
fn status_into_a_closed_pipe_is_the_same_and_silent() {
    let own_pid = std::process::id().to_string();
    let run = |arguments: &[&str], stdout: Stdio| {
        Command::new(env!("CARGO_BIN_EXE_tenure"))
            .args(arguments)
            .stdout(stdout)
            .stderr(Stdio::piped())
            .output()
            .unwrap()
    };
    for arguments in [
        &["doctor"][..],
        &["doctor", "--json"],
        &["stat", &own_pid],
        &["stat", "--json", &own_pid],
        &["stat", "--openmetrics", &own_pid],
        &["stat", "--watch=0.01", &own_pid],
        &["report", "--help"],
        &["--version"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let closed = run(arguments, writer.into());
        assert_eq!(String::from_utf8_lossy(&closed.stderr), "", "{arguments:?}");
        let expected = match arguments {
            // It would go on for ever.
            ["stat", "--watch=0.01", _] => Some(0),
            _ => run(arguments, Stdio::null()).status.code(),
        };
        assert_eq!(closed.status.code(), expected, "{arguments:?}");
    }
}
