//! The results of the tests.

use std::{collections::BTreeMap, time::Duration};

use super::schedule::milliseconds;

/// The reason of a test that is skipped without one.
pub const NO_REASON: &str = "no reason given";

/// How often a failed test has to pass by itself to count as unstable.
pub const REPEATS: usize = 5;

/// How many of the slowest jobs are named.
const SLOWEST: usize = 10;

/// The result of one test.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Passed,
    /// With the reason.
    Skipped(String),
    /// How, if the test's own words do not tell.
    Failed(String),
}

impl Outcome {
    pub fn is_failed(&self) -> bool {
        matches!(self, Self::Failed(_))
    }
}

/// The results of a pass.
pub struct Report {
    names_each: bool,
    passed: usize,
    skipped: Vec<(String, String)>,
    /// The names, each with how it failed.
    failed: Vec<(String, String)>,
    unstable: Vec<String>,
    took: BTreeMap<String, Duration>,
    notes: Vec<String>,
}

impl Report {
    pub fn new(names_each: bool) -> Self {
        Self {
            names_each,
            passed: 0,
            skipped: Vec::new(),
            failed: Vec::new(),
            unstable: Vec::new(),
            took: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    /// Takes a test's outcome in; prints a failure with the test's output at once.
    pub fn add(&mut self, name: String, outcome: Outcome, took: Duration, output: &str) {
        let word = match outcome {
            Outcome::Passed => {
                self.passed += 1;
                "ok"
            }
            Outcome::Skipped(reason) => {
                self.skipped.push((name.clone(), reason));
                "skipped"
            }
            Outcome::Failed(how) => {
                println!(
                    "\nFAILED {name} after {:.1} s {how}\n{output}",
                    took.as_secs_f64()
                );
                self.failed.push((name, how));
                return;
            }
        };
        if self.names_each {
            println!("{word:7} {:7.2} s  {name}", took.as_secs_f64());
        }
    }

    /// The number of tests that have failed.
    pub fn failed(&self) -> usize {
        self.failed.len()
    }

    /// Counts a failed test as passed, and names it as unstable.
    pub fn mark_unstable(&mut self, name: &str) {
        let before = self.failed.len();
        self.failed.retain(|(failed, _)| failed != name);
        self.passed += before - self.failed.len();
        self.unstable.push(name.to_owned());
    }

    /// Notes how long a process took.
    pub fn timed(&mut self, key: String, took: Duration) {
        self.took.insert(key, took);
    }

    /// Adds a line to the end.
    pub fn note(&mut self, line: String) {
        self.notes.push(line);
    }

    /// Whether tests have run and none has failed.
    pub fn is_well(&self) -> bool {
        self.failed.is_empty() && self.passed + self.skipped.len() > 0
    }

    /// How long each process took, in milliseconds.
    pub fn durations(&self) -> impl Iterator<Item = (String, u64)> {
        self.took
            .iter()
            .map(|(key, took)| (key.clone(), milliseconds(*took)))
    }

    /// Prints the skipped tests with their reasons, the slowest, the failed ones and the
    /// counts.
    pub fn finish(&self, took: Duration) {
        let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, reason) in &self.skipped {
            by_reason.entry(reason).or_default().push(name);
        }
        for (reason, names) in by_reason {
            println!("\nskipped: {reason}");
            names.iter().for_each(|name| println!("    {name}"));
        }
        let mut slowest: Vec<_> = self.took.iter().collect();
        slowest.sort_by_key(|(_, took)| std::cmp::Reverse(**took));
        println!("\nslowest, of {:.0} s in all:", took.as_secs_f64());
        for (name, took) in slowest.into_iter().take(SLOWEST) {
            println!("    {:6.1} s  {name}", took.as_secs_f64());
        }
        self.notes.iter().for_each(|line| println!("{line}"));
        if !self.failed.is_empty() {
            println!("\nfailed:");
            for (name, how) in &self.failed {
                println!("    {}", format!("{name} {how}").trim_end());
            }
        }
        for name in &self.unstable {
            println!("unstable: {name} failed, and passed {REPEATS} times by itself");
        }
        let (failed, skipped) = (self.failed.len(), self.skipped.len());
        if self.passed + failed + skipped == 0 {
            println!("\nno test has run");
        }
        println!(
            "\n{} passed, {failed} failed, {skipped} skipped",
            self.passed
        );
    }
}

/// Reads "test NAME ... OUTCOME" lines. A reason follows "ignored" after a comma when it
/// comes from `#[ignore = "..."]`, and in parentheses when a test skipped itself while it
/// ran.
pub fn outcomes(output: &str) -> Vec<(String, Outcome)> {
    let lines = output.lines().filter_map(|line| line.strip_prefix("test "));
    lines.filter_map(outcome).collect()
}

fn outcome(line: &str) -> Option<(String, Outcome)> {
    let (name, outcome) = line.split_once(" ... ")?;
    // libtest-mimic prints the kind before the name; rustdoc, how a test is run behind it.
    let name = name.trim();
    let name = name
        .split_once("] ")
        .filter(|_| name.starts_with('['))
        .map_or(name, |it| it.1);
    let name = name
        .split_once(" - ")
        .filter(|it| it.1 == "should panic")
        .map_or(name, |it| it.0);
    let reason = outcome.strip_prefix("ignored");
    let outcome = match (outcome, reason) {
        ("FAILED", _) => Outcome::Failed(String::new()),
        (_, Some(reason)) => {
            let reason = reason.trim_start_matches(',').trim();
            let bare = reason.strip_prefix('(').and_then(|it| it.strip_suffix(')'));
            Outcome::Skipped(match bare.unwrap_or(reason) {
                "" => NO_REASON.to_owned(),
                reason => reason.to_owned(),
            })
        }
        ("ok", _) => Outcome::Passed,
        // A test's own output may come between its name and the outcome.
        (text, _) if text.ends_with("ok") => Outcome::Passed,
        (text, _) if text.ends_with("FAILED") => Outcome::Failed(String::new()),
        _ => return None,
    };
    Some((name.trim().to_owned(), outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_of_each_harness_is_read() {
        let output = "running 5 tests\ntest a::b ... ok\ntest [exclusive] c ... FAILED\n\
                      test d ... ignored, no userfaultfd\ntest e ... ignored (not root)\n\
                      test src/lib.rs - f (line 3) ... ok\ntest g - should panic ... ok\n";
        let skipped = |reason: &str| Outcome::Skipped(reason.to_owned());
        let expected = [
            ("a::b", Outcome::Passed),
            ("c", Outcome::Failed(String::new())),
            ("d", skipped("no userfaultfd")),
            ("e", skipped("not root")),
            ("src/lib.rs - f (line 3)", Outcome::Passed),
            ("g", Outcome::Passed),
        ];
        let expected = expected.map(|(name, outcome)| (name.to_owned(), outcome));
        assert_eq!(outcomes(output), expected);
    }

    #[test]
    fn failure_makes_the_report_unwell() {
        let mut report = Report::new(false);
        assert!(!report.is_well(), "without any test");
        report.add("a".to_owned(), Outcome::Passed, Duration::ZERO, "");
        report.add(
            "b".to_owned(),
            Outcome::Skipped("x".to_owned()),
            Duration::ZERO,
            "",
        );
        assert!(report.is_well());
        report.add(
            "c".to_owned(),
            Outcome::Failed(String::new()),
            Duration::ZERO,
            "",
        );
        assert!(!report.is_well());
        report.mark_unstable("c");
        assert!(report.is_well() && report.failed() == 0);
    }
}
