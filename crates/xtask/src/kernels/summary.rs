//! Reads the output of a test program in a guest: passed and skipped tests.

use crate::test::report::{NO_REASON, Outcome, outcomes};

/// The result of one test program.
#[derive(Debug, Default, PartialEq)]
pub struct Summary {
    /// Whether there is a closing line.
    pub has_result: bool,
    /// The number of tests that the program began with, if it tells.
    running: Option<u64>,
    pub passed: u64,
    failed: u64,
    ignored: u64,
    /// Each skipped test, with its reason.
    pub skipped_tests: Vec<String>,
}

impl Summary {
    /// Reads the lines of a test program.
    pub fn read(lines: &[&str]) -> Self {
        // The closing line counts; a test may print between its name and its outcome. The last
        // one is the program's own: tests run programs whose lines may stand before it.
        let counts = lines
            .iter()
            .rev()
            .find_map(|line| line.strip_prefix("test result: "));
        let number = |word| counts?.split(['.', ';']).find_map(|it| count(it, word));
        let running = lines.iter().find_map(|line| {
            let rest = line.strip_prefix("running ")?;
            count(rest, "tests").or_else(|| count(rest, "test"))
        });
        let skipped = outcomes(&lines.join("\n")).into_iter();
        let skipped = skipped.filter_map(|(name, outcome)| match outcome {
            Outcome::Skipped(reason) => Some(format!("{name}: {reason}")),
            _ => None,
        });
        let mut skipped_tests: Vec<_> = skipped.collect();
        let ignored = number("ignored").unwrap_or(0);
        // A skipped test's own output may stand between its name and its outcome.
        while (skipped_tests.len() as u64) < ignored {
            skipped_tests.push(format!("unnamed: {NO_REASON}"));
        }
        Self {
            has_result: counts.is_some(),
            running,
            passed: number("passed").unwrap_or(0),
            failed: number("failed").unwrap_or(0),
            ignored,
            skipped_tests,
        }
    }

    /// Returns how the closing line contradicts the rest: the exit status, the number of failed
    /// tests that are named, that of the skipped ones, or that of the tests that were to run.
    pub fn contradiction(&self, has_succeeded: bool, named_failures: u64) -> Option<String> {
        let (passed, failed, ignored) = (self.passed, self.failed, self.ignored);
        // A filter that no name fits any more.
        if passed + failed + ignored == 0 {
            return Some("has run no test".to_owned());
        }
        let fits = has_succeeded == (failed == 0)
            && failed == named_failures
            && ignored == self.skipped_tests.len() as u64
            && self
                .running
                .is_none_or(|it| it == passed + failed + ignored);
        (!fits).then(|| {
            format!("counted {passed} passed, {failed} failed, {ignored} ignored, which contradicts its output")
        })
    }
}

/// Reads "3 passed", of the word "passed".
fn count(text: &str, word: &str) -> Option<u64> {
    text.trim().strip_suffix(word)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_a_program_has_its_count_and_skipped_tests() {
        let output = [
            "running 3 tests",
            "test lock::charges_the_limit   ... ignored (needs 64 MiB (8 MiB here))",
            "test lock::stays               ... 9 passed",
            "ok",
            "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out",
        ];
        let expected = Summary {
            has_result: true,
            running: Some(3),
            passed: 2,
            failed: 0,
            ignored: 1,
            skipped_tests: vec!["lock::charges_the_limit: needs 64 MiB (8 MiB here)".to_owned()],
        };
        assert_eq!(Summary::read(&output), expected);
        assert_eq!(Summary::read(&[]), Summary::default());
        // The skipped test has printed a line, which hides its name.
        let hidden = [
            "test a ... ",
            "x",
            "ignored (why)",
            "test result: ok. 0 passed; 1 ignored",
        ];
        let unnamed = ["unnamed: no reason given"];
        assert_eq!(Summary::read(&hidden).skipped_tests, unnamed);
    }
}
