//! Reads the output of a test program in a guest: passed and skipped tests.

use crate::test::report::{Outcome, outcomes};

/// The result of one test program.
#[derive(Debug, Default, PartialEq)]
pub struct Summary {
    pub passed: u64,
    /// Each skipped test, with its reason.
    pub skipped_tests: Vec<String>,
}

impl Summary {
    /// Reads the lines of a test program.
    pub fn read(lines: &[&str]) -> Self {
        // The closing line counts; a test may print between its name and its outcome.
        let counts = lines
            .iter()
            .find_map(|line| line.strip_prefix("test result: "));
        let passed = counts.and_then(|counts| counts.split(['.', ';']).find_map(passed_count));
        let skipped = outcomes(&lines.join("\n")).into_iter();
        let skipped = skipped.filter_map(|(name, outcome)| match outcome {
            Outcome::Skipped(reason) => Some(format!("{name}: {reason}")),
            _ => None,
        });
        Self {
            passed: passed.unwrap_or(0),
            skipped_tests: skipped.collect(),
        }
    }
}

/// Reads "3 passed".
fn passed_count(count: &str) -> Option<u64> {
    count.trim().strip_suffix(" passed")?.parse().ok()
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
            passed: 2,
            skipped_tests: vec!["lock::charges_the_limit: needs 64 MiB (8 MiB here)".to_owned()],
        };
        assert_eq!(Summary::read(&output), expected);
        assert_eq!(Summary::read(&[]), Summary::default());
    }
}
