//! The outcome of each test of a process that has ended.

use std::{collections::BTreeMap, process::ExitStatus};

use super::{
    process::Ended,
    program::Job,
    report::{self, Outcome},
};

/// The harness's last line.
struct Summary {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Summary {
    /// Reads "test result: ok. 1 passed; 0 failed; 2 ignored; ...". There must be
    /// one for each line "running 1 test": otherwise this one may be of a harness that a test
    /// ran in a child, and the test's own harness has not come to its end.
    fn read(output: &str) -> Option<Self> {
        let begun = output.lines().filter(|line| begins_run(line)).count();
        if begun > output.matches("test result: ").count() {
            return None;
        }
        let (_, counts) = output.rsplit_once("test result: ")?.1.split_once(". ")?;
        let mut counts = counts.split("; ");
        let mut count = |word: &str| {
            let count = counts.next()?.strip_suffix(word)?;
            count.trim().parse::<usize>().ok()
        };
        Some(Self {
            passed: count("passed")?,
            failed: count("failed")?,
            skipped: count("ignored")?,
        })
    }

    /// Returns why it cannot be believed.
    fn contradiction(&self, tests: usize, status: ExitStatus) -> Option<String> {
        let ran = self.passed + self.failed + self.skipped;
        if ran != tests {
            return Some(format!("ran {ran} of {tests} tests: {status}"));
        }
        let agrees = status.success() == (self.failed == 0);
        (!agrees).then(|| format!("{status}, with {} failed tests", self.failed))
    }
}

/// Returns whether a harness prints this line before its tests.
fn begins_run(line: &str) -> bool {
    let count = line.strip_prefix("running ");
    let count = count.and_then(|rest| rest.strip_suffix('s').unwrap_or(rest).strip_suffix(" test"));
    count.is_some_and(|count| count.parse::<usize>().is_ok())
}

/// Returns the outcome of each test of a job. No test passes unless the harness has counted
/// them all at the end and the status agrees: before that, a test or its child may have
/// printed anything, such as another test's "ok".
pub fn outcomes(job: &Job, ended: &Ended) -> Vec<(String, Outcome)> {
    // The last wins, because a test may run itself again in a child.
    let told: BTreeMap<_, _> = report::outcomes(&ended.output).into_iter().collect();
    let of = |test: &_| told.get(test).cloned();
    let told: Vec<_> = job.tests.iter().map(|test| of(&test.name)).collect();
    let outcomes = match believed(&told, ended) {
        Ok(summary) => told
            .into_iter()
            .map(|it| of_counted(it, &summary))
            .collect(),
        Err(how) => {
            // In a group a failure is one test's own.
            let own = |it: &Outcome| job.tests.len() > 1 && it.is_failed();
            let told = told.into_iter().map(|it| it.filter(own));
            told.map(|it| it.unwrap_or_else(|| Outcome::Failed(how.clone())))
                .collect::<Vec<_>>()
        }
    };
    let names = job.tests.iter().map(|test| test.full_name(&job.program));
    names.zip(outcomes).collect()
}

/// Returns the harness's counts, or why the tests have failed.
fn believed(told: &[Option<Outcome>], ended: &Ended) -> Result<Summary, String> {
    let early = || format!("ended early: {}", ended.status);
    if let Some(problem) = &ended.problem {
        return Err(problem.clone());
    }
    let summary = Summary::read(&ended.output).ok_or_else(early)?;
    if let Some(contradiction) = summary.contradiction(told.len(), ended.status) {
        return Err(contradiction);
    }
    let count = |is: fn(&Outcome) -> bool| told.iter().flatten().filter(|it| is(it)).count();
    let is_skipped = |it: &Outcome| matches!(it, Outcome::Skipped(_));
    let is_named =
        count(Outcome::is_failed) == summary.failed && count(is_skipped) == summary.skipped;
    match told.len() == 1 || is_named {
        true => Ok(summary),
        false => Err("does not name all tests that failed or were skipped".to_owned()),
    }
}

/// The outcome of one test where the harness's counts are right. They are all there is
/// about a single test whose own output hides the line that names it; of a group, each
/// test that failed or was skipped is named.
fn of_counted(told: Option<Outcome>, summary: &Summary) -> Outcome {
    let is_single = summary.passed + summary.failed + summary.skipped == 1;
    match told {
        Some(Outcome::Skipped(reason)) if summary.skipped > 0 => Outcome::Skipped(reason),
        _ if is_single && summary.skipped > 0 => Outcome::Skipped(report::NO_REASON.to_owned()),
        Some(Outcome::Failed(how)) if summary.failed > 0 => Outcome::Failed(how),
        _ if is_single && summary.failed > 0 => Outcome::Failed(String::new()),
        _ => Outcome::Passed,
    }
}

#[cfg(test)]
#[path = "outcomes_tests.rs"]
mod tests;
