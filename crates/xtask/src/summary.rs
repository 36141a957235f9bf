//! What test runs say: results added up over all test binaries and doc tests.

/// Results added up from the output of cargo test.
#[derive(Debug, Default, PartialEq)]
pub struct Summary {
    pub passed: u64,
    failed: u64,
    skipped: u64,
    /// Each skipped test that was printed, with its reason.
    pub skipped_tests: Vec<String>,
    /// What failed, line by line: of each test program what it says of its failed
    /// tests, or how it ended.
    failures: Vec<String>,
    /// The lines that follow are about failed tests.
    is_in_failures: bool,
}

/// What begins a line on a test program that ended otherwise than after its tests.
pub const ENDED: &str = "xtask: ended early: ";

impl Summary {
    /// Takes one line of output in.
    pub fn read_line(&mut self, line: &str) {
        if let Some(counts) = line.strip_prefix("test result: ") {
            self.is_in_failures = false;
            self.read_counts(counts);
        } else if let Some(how) = line.strip_prefix(ENDED) {
            self.is_in_failures = false;
            self.failed += 1;
            self.failures.push(how.to_owned());
        } else if line == "failures:" {
            // The second such line is followed by the names, which the first part has.
            self.is_in_failures = !self.is_in_failures;
        } else if self.is_in_failures {
            self.failures.push(line.to_owned());
        } else if let Some(test) = line.strip_prefix("test ") {
            self.read_test(test);
        }
    }

    /// Adds another summary's results to these.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.skipped_tests.extend(other.skipped_tests);
        self.failures.extend(other.failures);
    }

    /// Returns the closing lines: the skipped tests, what failed, then the counts.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if !self.skipped_tests.is_empty() {
            text.push_str("\nskipped:\n");
        }
        for test in &self.skipped_tests {
            text.push_str(&format!("    {test}\n"));
        }
        if !self.failures.is_empty() {
            text.push_str("\nfailed:\n");
        }
        for line in &self.failures {
            text.push_str(format!("    {line}").trim_end());
            text.push('\n');
        }
        let Self {
            passed,
            failed,
            skipped,
            ..
        } = self;
        text.push_str(&format!(
            "\n{passed} passed, {failed} failed, {skipped} skipped\n"
        ));
        text
    }

    /// Reads "ok. 3 passed; 0 failed; 1 ignored; 0 measured; ...".
    fn read_counts(&mut self, counts: &str) {
        for count in counts.split(['.', ';']) {
            match count.trim().split_once(' ') {
                Some((number, "passed")) => self.passed += number.parse().unwrap_or(0),
                Some((number, "failed")) => self.failed += number.parse().unwrap_or(0),
                Some((number, "ignored")) => self.skipped += number.parse().unwrap_or(0),
                _ => {}
            }
        }
    }

    /// Reads "NAME ... OUTCOME". A reason follows "ignored" after a comma when it
    /// comes from #[ignore = "..."], and in parentheses when a libtest-mimic test
    /// skipped itself while it ran.
    fn read_test(&mut self, test: &str) {
        let Some((name, outcome)) = test.split_once(" ... ") else {
            return;
        };
        let Some(reason) = outcome.strip_prefix("ignored") else {
            return;
        };
        let reason = reason.trim_start_matches(',').trim();
        let in_parentheses = reason.strip_prefix('(').and_then(|it| it.strip_suffix(')'));
        let reason = match in_parentheses.unwrap_or(reason) {
            "" => "no reason given",
            reason => reason,
        };
        self.skipped_tests
            .push(format!("{}: {reason}", name.trim()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from cargo test: libtest, then libtest-mimic (which pads names),
    /// then doc tests.
    const OUTPUT: &str = r#"
running 3 tests
test range::tests::rounds_up ... ok
test range::tests::slow ... ignored, takes an hour
test range::tests::old ... ignored

test result: ok. 1 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.00s


running 3 tests
test lock::charges_the_limit   ... ignored (needs RLIMIT_MEMLOCK of 64 MiB (8 MiB here))
test lock::stays               ... ok
test volatile::sigbus          ... FAILED

failures:

---- volatile::sigbus ----
test output: 9 passed; 9 failed

failures:
    volatile::sigbus

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.05s


running 2 tests
test crates/tenure/src/lib.rs - (line 12) ... ok
test crates/tenure/src/lib.rs - Mapping::lock (line 40) - compile ... ok

test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.61s

all doctests ran in 0.89s; merged doctests compilation took 0.28s
"#;

    fn read(output: &str) -> Summary {
        let mut summary = Summary::default();
        output.lines().for_each(|line| summary.read_line(line));
        summary
    }

    #[test]
    fn results_of_all_binaries_are_added_up() {
        let text = read(OUTPUT).text();
        assert_eq!(text.lines().last(), Some("4 passed, 1 failed, 3 skipped"));
    }

    #[test]
    fn skipped_tests_are_named_with_their_reasons() {
        assert_eq!(
            read(OUTPUT).skipped_tests,
            [
                "range::tests::slow: takes an hour",
                "range::tests::old: no reason given",
                "lock::charges_the_limit: needs RLIMIT_MEMLOCK of 64 MiB (8 MiB here)",
            ]
        );
    }

    #[test]
    fn what_failed_is_said_again() {
        let output = format!("{OUTPUT}{ENDED}tests/lock ended by signal 11\n");
        let text = read(&output).text();
        let (_, end) = text.split_once("\nfailed:\n").unwrap();
        let expected = "
    ---- volatile::sigbus ----
    test output: 9 passed; 9 failed

    tests/lock ended by signal 11

4 passed, 2 failed, 3 skipped
";
        assert_eq!(end, expected);
    }

    #[test]
    fn no_output_is_no_tests() {
        assert_eq!(read("").text(), "\n0 passed, 0 failed, 0 skipped\n");
    }
}
