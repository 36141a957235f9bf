//! Reads the output of tests/kernels/init: lines that begin with `@`, and between them
//! the output of the programs.

use serde::Deserialize;

use super::record::{Boot, Check, Program, Skip};
use super::summary::Summary;

/// The part of `tenure doctor --json` that is recorded.
#[derive(Deserialize)]
struct Doctor {
    checks: Vec<Check>,
}

/// Reads the log of one boot. Each program that the boot was to run has a result, if only that
/// it has none. A line that cannot be read is a failure of that boot.
pub fn read(text: &str) -> Boot {
    let mut boot = Boot::default();
    // The lines since the last one that begins with `@`.
    let mut output = Vec::new();
    let mut running: Option<String> = None;
    let mut selected: Vec<String> = Vec::new();
    let mut state = String::new();
    let mut has_doctor = false;
    for line in text.lines() {
        let Some(said) = line.strip_prefix('@') else {
            output.push(line);
            continue;
        };
        let (word, rest) = said.split_once(' ').unwrap_or((said, ""));
        match word {
            "configuration" => boot.configuration = rest.to_owned(),
            "kernel" => boot.kernel = rest.to_owned(),
            "version" => boot.version = rest.to_owned(),
            "command_line" => boot.command_line = rest.trim().to_owned(),
            "memory_kib" => match rest.parse() {
                Ok(memory_kib) => boot.memory_kib = memory_kib,
                Err(_) => boot.programs.push(garbled(line)),
            },
            "state" => state = rest.trim().to_owned(),
            "programs" => selected = rest.split_whitespace().map(str::to_owned).collect(),
            "begin_doctor" => {}
            "end_doctor" => {
                has_doctor = true;
                match serde_json::from_str::<Doctor>(&output.join("\n")) {
                    Ok(doctor) => boot.checks = recorded_checks(doctor),
                    Err(error) => boot.programs.push(unfinished("doctor", &error.to_string())),
                }
            }
            "begin" => {
                let before = running.replace(rest.to_owned());
                boot.programs
                    .extend(before.map(|name| unfinished(&name, "the log has no end of it")));
            }
            "end" => {
                let mut program = program(rest, &output);
                if running.take().as_ref() != Some(&program.name) {
                    let how = "the log has no beginning of it".to_owned();
                    program.trouble.get_or_insert(how);
                }
                boot.programs.push(program);
            }
            "counter" => {
                let counter = rest.rsplit_once(' ');
                match counter.and_then(|(name, value)| Some((name, value.parse().ok()?))) {
                    Some((name, value)) => _ = boot.counters.insert(name.to_owned(), value),
                    None => boot.programs.push(garbled(line)),
                }
            }
            "kernel_said" => boot.kernel_said.push(rest.to_owned()),
            "trouble" => boot.programs.push(unfinished("init", rest)),
            "done" => boot.complete = true,
            // A program's own output.
            _ => {
                output.push(line);
                continue;
            }
        }
        output.clear();
    }
    if let Some(name) = running {
        boot.programs
            .push(unfinished(&name, "the machine ended before the program"));
    }
    selected.extend(boot.unrecorded().into_iter().map(str::to_owned));
    for name in selected {
        if boot.programs.iter().all(|program| program.name != name) {
            boot.programs
                .push(unfinished(&name, "the machine has not run it"));
        }
    }
    if boot.programs.is_empty() {
        boot.programs
            .push(unfinished("init", "the machine has run no program"));
    }
    // A machine that has shut down by itself has come past it.
    if boot.complete && !has_doctor {
        boot.programs
            .push(unfinished("doctor", "the log has no end of it"));
    }
    for program in &mut boot.programs {
        program.state.clone_from(&state);
    }
    boot
}

/// Returns doctor's checks, without the remedies that are not needed.
fn recorded_checks(doctor: Doctor) -> Vec<Check> {
    let mut checks = doctor.checks;
    for check in checks.iter_mut().filter(|it| it.status == "ok") {
        (check.effect, check.remedy) = (String::new(), None);
    }
    checks
}

fn unfinished(name: &str, how: &str) -> Program {
    Program {
        name: name.to_owned(),
        trouble: Some(how.to_owned()),
        ..Program::default()
    }
}

/// Returns what stands for a line of init's that cannot be read.
fn garbled(line: &str) -> Program {
    unfinished("init", &format!("the log has a garbled line: {line}"))
}

/// Reads "NAME STATUS SECONDS" and the program's output.
fn program(ended: &str, output: &[&str]) -> Program {
    let mut fields = ended.split(' ');
    let mut next = || fields.next().unwrap_or_default();
    let (name, status, seconds) = (next(), next(), next());
    let summary = Summary::read(output);
    let failed = failed(output);
    let trouble = match status {
        // libtest and libtest-mimic exit with 101 when tests failed, whose names the
        // output has.
        "0" | "101" if summary.has_result => {
            summary.contradiction(status == "0", failed.len() as u64)
        }
        "137" => Some(format!("killed after {seconds} s in {}", last_test(output))),
        _ => Some(format!("ended with {status} in {}", last_test(output))),
    };
    let took = seconds.parse();
    let trouble = match took {
        Ok(_) => trouble,
        Err(_) => Some(format!("the log has a garbled end of it: {ended}")),
    };
    Program {
        name: name.to_owned(),
        seconds: took.unwrap_or_default(),
        trouble,
        // A killed program prints no counts.
        passed: match summary.has_result {
            true => summary.passed,
            false => output.iter().filter(|line| has_passed(line)).count() as u64,
        },
        failed,
        state: String::new(),
        skipped: summary
            .skipped_tests
            .iter()
            .map(|text| skip(text))
            .collect(),
    }
}

fn has_passed(line: &str) -> bool {
    line.starts_with("test ") && line.ends_with(" ... ok")
}

/// Returns the failed tests, also of a program that did not reach its end. A test's own
/// output may stand between its name and its outcome.
fn failed(output: &[&str]) -> Vec<String> {
    let mut failed = Vec::new();
    let mut begun = None;
    for line in output {
        let ended = match line
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once(" ... "))
        {
            Some((name, outcome)) => {
                begun = Some(name.trim().to_owned());
                outcome
            }
            None => line,
        };
        if ended == "FAILED" {
            failed.extend(begun.take());
        }
    }
    failed
}

/// Returns the test that began last.
fn last_test<'a>(output: &[&'a str]) -> &'a str {
    let name = |line: &&'a str| Some(line.strip_prefix("test ")?.split_once(" ... ")?.0.trim());
    output.iter().rev().find_map(name).unwrap_or("no test")
}

fn skip(text: &str) -> Skip {
    let (test, reason) = text.split_once(": ").unwrap_or((text, ""));
    Skip {
        test: test.to_owned(),
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = r#"
@configuration 6.1/swap
@kernel 6.1.0-56-cloud-amd64
@version #1 SMP Debian 6.1.192-2
@command_line console=ttyS0 configuration=6.1/swap 
@memory_kib 2025988
@begin_doctor
{ "tenure_version": "0.1.0", "checks": [
  { "verb": "lock", "name": "RLIMIT_MEMLOCK", "status": "ok", "found": "8 MiB", "effect": "", "remedy": null }
] }
@end_doctor
@begin lock
running 3 tests
test stays           ... ok
test charges         ... ignored (needs 64 MiB: 8 MiB here)
test is_kept         ... FAILED

failures:

---- is_kept ----
    it is not

failures:
    is_kept

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.05s

@end lock 101 12
@begin prepare
running 4 tests
test begins ... ok
test fails  ... FAILED
test prints ... 
thread 'main' panicked
FAILED
test waits  ... 
Killed
@end prepare 137 300
@counter pglazyfreed 4096
@counter memory.events: max 3
@kernel_said [  12.3] WARNING: something
@done
"#;

    #[test]
    fn complete_log_is_read_whole() {
        let boot = read(LOG);
        assert_eq!(boot.configuration, "6.1/swap");
        assert_eq!(boot.kernel, "6.1.0-56-cloud-amd64");
        assert_eq!(boot.memory_kib, 2_025_988);
        assert!(boot.complete);
        assert_eq!(boot.checks[0].name, "RLIMIT_MEMLOCK");
        assert_eq!(boot.counters["pglazyfreed"], 4096);
        assert_eq!(boot.counters["memory.events: max"], 3);
        assert_eq!(boot.kernel_said, ["[  12.3] WARNING: something"]);
        let lock = &boot.programs[0];
        assert_eq!((lock.passed, lock.seconds), (1, 12));
        assert_eq!(lock.failed, ["is_kept"]);
        assert_eq!(lock.skipped, [skip("charges: needs 64 MiB: 8 MiB here")]);
        assert_eq!(boot.programs[1].passed, 1);
        assert_eq!(
            boot.failures(),
            [
                "lock: is_kept failed",
                "prepare: fails failed",
                "prepare: prints failed",
                "prepare: killed after 300 s in waits"
            ]
        );
    }

    #[test]
    fn program_that_was_not_run_is_a_failure() {
        let log = LOG.replace(
            "@begin_doctor",
            "@state 2026-11-28 14:31 37ded60\n@programs lock pool",
        );
        let log = log.replace("\n@memory_kib", "tenure_only=lock,arena\n@memory_kib");
        let boot = read(&log);
        let told = boot.failures();
        for name in ["pool", "arena"] {
            assert!(told.contains(&format!("{name}: the machine has not run it")));
        }
        assert!(
            boot.programs
                .iter()
                .all(|it| it.state == "2026-11-28 14:31 37ded60")
        );
    }

    #[test]
    fn mangled_log_is_a_failure() {
        // The line of an end or of a beginning is lost.
        let lost = LOG.replace("@end lock 101 12\n", "");
        assert_eq!(read(&lost).failures()[0], "lock: the log has no end of it");
        let lost = LOG.replace("@begin prepare\n", "");
        let told = read(&lost).failures();
        assert!(told.contains(&"prepare: killed after 300 s in waits".to_owned()));
        let lost = LOG.replace("@begin lock\n", "");
        let lost = lost.replace("test is_kept         ... FAILED", "test is_kept ... ok");
        let lost = lost.replace("FAILED. 1 passed; 1 failed", "ok. 2 passed; 0 failed");
        let lost = lost.replace("@end lock 101", "@end lock 0");
        assert_eq!(
            read(&lost).failures()[0],
            "lock: the log has no beginning of it"
        );
        let doctor = LOG.replace("{ \"tenure_version\"", "Segmentation fault");
        let told = read(&doctor).failures();
        assert!(
            told.iter().any(|how| how.starts_with("doctor: ")),
            "{told:?}"
        );
        let swap = LOG.replace("@begin_doctor", "@trouble no swap\n@begin_doctor");
        let told = read(&swap).failures();
        assert!(told.contains(&"init: no swap".to_owned()), "{told:?}");
    }

    #[test]
    fn garbled_line_is_a_failure_of_its_boot() {
        for (line, garbled) in [
            ("@memory_kib 2025988", "@memory_kib"),
            ("@counter pglazyfreed 4096", "@counter pglazyfreed 40x"),
            ("@counter pglazyfreed 4096", "@counter"),
            ("@end lock 101 12", "@end lock 101"),
            ("@end lock 101 12", "@end"),
        ] {
            let told = read(&LOG.replace(line, garbled)).failures();
            let tells = |how: &String| how.contains("garbled");
            assert!(told.iter().any(tells), "{garbled}: {told:?}");
        }
    }

    #[test]
    fn boot_without_doctor_or_program_is_a_failure() {
        let (before, rest) = LOG.split_once("@begin_doctor").unwrap();
        let (doctor, programs) = rest.split_once("@end_doctor").unwrap();
        let told = read(&format!("{before}{programs}")).failures();
        let none = "doctor: the log has no end of it".to_owned();
        assert!(told.contains(&none), "{told:?}");
        let told = read(&format!("{before}@begin_doctor{doctor}@end_doctor\n@done")).failures();
        assert_eq!(told, ["init: the machine has run no program"]);
    }

    #[test]
    fn program_that_has_run_no_test_is_a_failure() {
        let none = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out";
        let ended = program("faults 0 1", &["running 0 tests", none]);
        assert_eq!(ended.trouble.as_deref(), Some("has run no test"));
    }

    #[test]
    fn result_line_that_contradicts_the_output_is_a_failure() {
        let result = "test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out";
        let trouble = |lines: &[&str], status: &str| {
            let ended = program(&format!("lock {status} 1"), lines);
            ended.trouble
        };
        let well = [
            "running 2 tests",
            "test a ... ok",
            "test b ... ignored (why)",
        ];
        assert_eq!(trouble(&[&well[..], &[result]].concat(), "0"), None);
        // Lines are lost, a test more was to run, and the words do not fit the status.
        assert!(trouble(&[well[0], well[1], well[2], well[2], result], "0").is_some());
        assert!(trouble(&[&well[..], &["test c ... FAILED", result]].concat(), "0").is_some());
        assert!(trouble(&["running 3 tests", well[1], well[2], result], "0").is_some());
        let failed = result.replace("ok. 1 passed; 0 failed", "FAILED. 0 passed; 1 failed");
        assert!(trouble(&["running 2 tests", well[1], well[2], &failed], "0").is_some());
        // A child's result is not the program's.
        let child = [
            "running 1 test",
            "test result: ok. 1 passed; 0 failed; 0 ignored",
        ];
        let all = ["running 5 tests", child[0], "test x ... ok", child[1]];
        assert!(trouble(&all, "0").is_some());
    }

    #[test]
    fn truncated_log_is_a_failure() {
        let text = LOG.split_once("@end prepare").unwrap().0;
        let boot = read(text);
        assert!(!boot.complete);
        assert_eq!(
            boot.failures()[1..],
            [
                "prepare: the machine ended before the program",
                "the machine did not shut down by itself"
            ]
        );
    }

    #[test]
    fn program_without_result_line_is_a_failure() {
        let well = program(
            "lock 0 1",
            &["test result: ok. 1 passed; 0 failed; 0 ignored"],
        );
        assert_eq!(well.trouble, None);
        for status in ["0", "101", "139"] {
            let program = program(&format!("lock {status} 1"), &["test a ... ok"]);
            let told = format!("ended with {status} in a");
            assert_eq!(program.trouble, Some(told));
        }
    }
}
