//! The report: a JSON document, or headings, tables and sentences.

use serde::Serialize;

use super::{environment::Environment, experiment::CaseResult, sizes::Sizes, tables};
use crate::cli::ExperimentName;
use crate::text::bytes_text;

/// All that `tenure bench --json` prints.
#[derive(Serialize)]
pub struct Report {
    /// Where the figures come from.
    pub environment: Environment,
    /// The command line, by which it can be repeated.
    pub command: String,
    /// How the figures come about.
    pub method: &'static str,
    /// What random contents and offsets were made from.
    pub seed: u64,
    /// The experiments, in the order in which they ran.
    pub experiments: Vec<ExperimentReport>,
}

/// How all experiments are measured.
pub const METHOD: &str = "Each case does the same work once in tenure's way and once in each older \
    way. The ways take turns (A B C, A B C, ...) in one run; a round before them is not counted, \
    unless a round takes long. Only the work is timed, with the monotonic clock, and each way \
    checks its own answer. samples has a value for each round, in order; median, minimum and \
    maximum are theirs. A ratio is computed round by round, from the pair of values of that round, \
    and its median is the median of the pairs.";

/// One experiment.
#[derive(Serialize)]
pub struct ExperimentReport {
    /// Which one.
    pub name: ExperimentName,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What came of an experiment.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Outcome {
    /// It was measured.
    Measured(Findings),
    /// It could not be measured, or an answer was wrong.
    Failed {
        /// Why.
        error: String,
    },
}

/// What an experiment found.
#[derive(Serialize)]
pub struct Findings {
    /// Which sizes were used.
    pub sizes: Sizes,
    /// What was measured.
    pub title: String,
    /// What a reader must know to judge the figures.
    pub notes: Vec<String>,
    /// The figure whose ratio to the baseline is `times_as_good`, where the case
    /// names no other.
    pub compared: &'static str,
    /// The cases with their ways and figures.
    pub cases: Vec<CaseResult>,
    /// What the data say.
    pub conclusion: String,
}

/// Returns the lines that stand above all experiments.
pub fn heading(environment: &Environment) -> String {
    let Environment {
        tenure_version,
        build_profile,
        kernel,
        architecture,
        cpu_model,
        cpus_allowed,
        transparent_huge_pages,
        ..
    } = environment;
    let hypervisor = if environment.hypervisor {
        ", in a virtual machine"
    } else {
        ""
    };
    let total = bytes_text(environment.memory_total_bytes as f64);
    let available = bytes_text(environment.memory_available_bytes as f64);
    let page_size = bytes_text(environment.page_size_bytes as f64);
    format!(
        "tenure {tenure_version}, {build_profile} build\n\
         Linux {kernel}, {architecture}{hypervisor}\n\
         {cpu_model}, {cpus_allowed} CPUs allowed\n\
         {total} of memory, {available} available; base pages of {page_size}, \
         transparent huge pages: {transparent_huge_pages}\n"
    )
}

impl ExperimentReport {
    /// Returns the experiment as people read it.
    pub fn text(&self) -> String {
        let name = self.name.as_str();
        match &self.outcome {
            Outcome::Failed { error } => format!("\n{name}: failed\n{error}\n"),
            Outcome::Measured(findings) => format!("\n{name}: {}", findings.text()),
        }
    }
}

impl Findings {
    fn text(&self) -> String {
        let notes: String = self.notes.iter().map(|note| format!(" {note}")).collect();
        format!(
            "{}\n{}\n{}{notes}\n=> {}\n",
            self.title,
            tables::text(&self.cases),
            self.rounds(),
            self.conclusion
        )
    }

    fn rounds(&self) -> String {
        let rounds = || self.cases.iter().map(|case| case.rounds);
        let figures = if self.cases.iter().all(|case| case.table.is_empty()) {
            "Median (smallest–largest)"
        } else {
            "Median (smallest–largest, or ± half of what lies between them)"
        };
        match (rounds().min().unwrap_or(0), rounds().max().unwrap_or(0)) {
            (1, 1) => "One round.".to_owned(),
            (fewest, most) if fewest == most => format!("{figures} of {most} rounds."),
            (fewest, most) => format!("{figures} of {fewest} to {most} rounds."),
        }
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
