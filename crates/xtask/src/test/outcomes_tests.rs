//! Outcomes of tests, from the output and the end of their processes.

use std::{os::unix::process::ExitStatusExt as _, time::Duration};

use super::{super::program, *};

const EXITED_0: i32 = 0;
const EXITED_101: i32 = 101 << 8;
const KILLED: i32 = 9;

/// The outcomes of the tests a, b, … of a process.
fn outcomes_of<const COUNT: usize>(status: i32, output: &str) -> [Outcome; COUNT] {
    outcomes_with(None, status, output)
}

fn outcomes_with<const COUNT: usize>(
    problem: Option<&str>,
    status: i32,
    output: &str,
) -> [Outcome; COUNT] {
    let names = ["a", "b", "c"].into_iter().take(COUNT);
    let test = |name: &str| program::Test {
        name: name.to_owned(),
        kinds: Vec::new(),
    };
    let job = Job {
        program: program::Program {
            file: "/p".into(),
            folder: "/".into(),
            name: "p".to_owned(),
        },
        tests: names.clone().map(test).collect(),
        others: Vec::new(),
        is_exclusive: false,
    };
    let ended = Ended {
        status: ExitStatus::from_raw(status),
        took: Duration::ZERO,
        output: output.to_owned(),
        problem: problem.map(str::to_owned),
    };
    let (named, outcomes): (Vec<_>, Vec<_>) = outcomes(&job, &ended).into_iter().unzip();
    let expected: Vec<_> = names.map(|name| format!("p::{name}")).collect();
    assert_eq!(named, expected);
    outcomes.try_into().unwrap()
}

fn result(word: &str, passed: usize, failed: usize, skipped: usize) -> String {
    format!(
        "\ntest result: {word}. {passed} passed; {failed} failed; {skipped} ignored; \
         0 measured; 7 filtered out; finished in 0.00s\n"
    )
}

fn failed(how: &str) -> Outcome {
    Outcome::Failed(how.to_owned())
}

#[test]
fn single_test_that_ends_well_passes() {
    let output = "running 1 test\ntest a ... ok\n".to_owned() + &result("ok", 1, 0, 0);
    assert_eq!(outcomes_of(EXITED_0, &output), [Outcome::Passed]);
}

#[test]
fn single_test_that_fails_is_failed() {
    let output = "running 1 test\ntest a ... FAILED\n".to_owned() + &result("FAILED", 0, 1, 0);
    assert_eq!(outcomes_of(EXITED_101, &output), [failed("")]);
}

#[test]
fn test_that_prints_its_own_ok_and_is_killed_fails() {
    let printed = "running 1 test\ntest a ... \ntest a ... ok\n";
    let killed = failed("ended early: signal: 9 (SIGKILL)");
    assert_eq!(outcomes_of(KILLED, printed), [killed]);
    // Its child's harness has even counted it.
    let counted = printed.to_owned() + &result("ok", 1, 0, 0);
    let [outcome] = outcomes_of(KILLED, &counted);
    assert!(outcome.is_failed());
}

#[test]
fn forked_childs_ok_is_not_the_tests_outcome() {
    // The child returns into its copy of the harness; the parent fails.
    let child = "running 1 test\ntest a ... ok\n".to_owned() + &result("ok", 1, 0, 0);
    let output = child + "FAILED\n" + &result("FAILED", 0, 1, 0);
    assert_eq!(outcomes_of(EXITED_101, &output), [failed("")]);
    // Only the status tells.
    let output = "running 1 test\ntest a ... ok\n".to_owned() + &result("ok", 1, 0, 0);
    let [outcome] = outcomes_of(EXITED_101, &output);
    assert!(outcome.is_failed());
}

#[test]
fn forked_childs_failure_is_not_the_tests_outcome() {
    let child = "running 1 test\ntest a ... FAILED\n".to_owned() + &result("FAILED", 0, 1, 0);
    let output = child + "ok\n" + &result("ok", 1, 0, 0);
    assert_eq!(outcomes_of(EXITED_0, &output), [Outcome::Passed]);
}

#[test]
fn childs_harness_does_not_answer_for_a_test_that_ends_early() {
    let child = "running 1 test\ntest child ... ok\n".to_owned() + &result("ok", 1, 0, 0);
    let output = "running 1 test\n".to_owned() + &child;
    assert_eq!(
        outcomes_of(EXITED_0, &output),
        [failed("ended early: exit status: 0")]
    );
    let output = output + "test a ... ok\n" + &result("ok", 1, 0, 0);
    assert_eq!(outcomes_of(EXITED_0, &output), [Outcome::Passed]);
}

#[test]
fn status_101_with_all_ok_fails_all() {
    let output = "test a ... ok\ntest b ... ok\n".to_owned() + &result("ok", 2, 0, 0);
    let how = failed("exit status: 101, with 0 failed tests");
    assert_eq!(outcomes_of(EXITED_101, &output), [how.clone(), how]);
}

#[test]
fn group_that_dies_in_the_middle_passes_nothing() {
    // The dying test has printed the line of the one behind it.
    let output = "test a ... ok\ntest b ... \ntest c ... ok\n";
    let how = failed("ended early: signal: 9 (SIGKILL)");
    assert_eq!(
        outcomes_of(KILLED, output),
        [how.clone(), how.clone(), how.clone()]
    );
    // A failure before that keeps its own output.
    let output = "test a ... FAILED\ntest b ... ";
    assert_eq!(
        outcomes_of(KILLED, output),
        [failed(""), how.clone(), how.clone()]
    );
}

#[test]
fn group_with_status_0_before_all_have_run_passes_nothing() {
    let how = failed("ended early: exit status: 0");
    assert_eq!(
        outcomes_of(EXITED_0, "test a ... ok\ntest b ... "),
        [how.clone(), how]
    );
    let output = "test a ... ok\n".to_owned() + &result("ok", 1, 0, 0);
    let how = failed("ran 1 of 2 tests: exit status: 0");
    assert_eq!(outcomes_of(EXITED_0, &output), [how.clone(), how]);
}

#[test]
fn single_test_that_is_not_run_fails() {
    let output = "running 0 tests\n".to_owned() + &result("ok", 0, 0, 0);
    let how = failed("ran 0 of 1 tests: exit status: 0");
    assert_eq!(outcomes_of(EXITED_0, &output), [how]);
}

#[test]
fn output_without_newline_hides_no_outcome() {
    let output = "test a ... a bookok\ntest b ... deepFAILED\ntest c ... x\nyok\n".to_owned();
    assert_eq!(
        outcomes_of(EXITED_101, &(output + &result("FAILED", 2, 1, 0))),
        [Outcome::Passed, failed(""), Outcome::Passed]
    );
    // Its last word looks like an outcome.
    let [outcome] = outcomes_of(KILLED, "test a ... a book");
    assert!(outcome.is_failed());
    // The harness's last line does not begin a line.
    let output = "test a ... ok\nx".to_owned() + result("ok", 1, 0, 0).trim_start();
    assert_eq!(outcomes_of(EXITED_0, &output), [Outcome::Passed]);
}

#[test]
fn ignored_test_is_skipped_with_its_reason() {
    let output = "test a ... ignored, no swap\n".to_owned() + &result("ok", 0, 0, 1);
    let skipped = |reason: &str| Outcome::Skipped(reason.to_owned());
    assert_eq!(outcomes_of(EXITED_0, &output), [skipped("no swap")]);
    let output = "test a ... x\nignored\n".to_owned() + &result("ok", 0, 0, 1);
    assert_eq!(outcomes_of(EXITED_0, &output), [skipped(report::NO_REASON)]);
    let output = "test a ... ignored (not root)\ntest b ... ok\n".to_owned();
    assert_eq!(
        outcomes_of(EXITED_0, &(output + &result("ok", 1, 0, 1))),
        [skipped("not root"), Outcome::Passed]
    );
}

#[test]
fn skipped_test_of_a_group_without_a_line_is_no_silent_pass() {
    let output = "test a ... x\nignored\ntest b ... ok\n".to_owned() + &result("ok", 1, 0, 1);
    let how = failed("does not name all tests that failed or were skipped");
    assert_eq!(outcomes_of(EXITED_0, &output), [how.clone(), how]);
}

#[test]
fn process_left_behind_fails_a_test_that_says_ok() {
    let output = "test a ... ok\n".to_owned() + &result("ok", 1, 0, 0);
    let outcomes = outcomes_with(Some("left a process behind"), EXITED_0, &output);
    assert_eq!(outcomes, [failed("left a process behind")]);
}
