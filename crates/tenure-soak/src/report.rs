//! The report of a soak.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use comfy_table::Cell;
use serde::{Deserialize, Serialize};

use super::board::Board;
use super::step::{COUNTS, VERBS};
use super::verbs::{ERRORS, Scale};
use tenure_bench::table::{number, table_with};
use tenure_bench::text::{bytes_text, count_text};

type Counts = BTreeMap<&'static str, u64>;

/// How the soak is run.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Setting {
    pub seed: u64,
    pub minutes: f64,
    pub threads: usize,
    /// The limit of the memory cgroup.
    pub limit_bytes: Option<usize>,
    pub why_no_limit: Option<String>,
    /// Use many more objects.
    pub long: bool,
    /// Only admit memory, and take it, while the limits often cannot be read.
    pub unreadable_limits: bool,
}

impl Setting {
    /// The warm-up, and a run of less than half a minute, as tests have it, use fewer objects
    /// and addresses.
    pub fn scale(&self, is_warm_up: bool) -> Scale {
        let (objects, empty_gib) = match (self.long, self.minutes < 0.5) {
            _ if is_warm_up => (10_000, 4),
            (true, _) => (1_000_000, 64),
            (false, true) => (10_000, 4),
            (false, false) => (100_000, 64),
        };
        Scale {
            objects,
            empty_bytes: empty_gib << 30,
        }
    }

    /// Returns the first line of the output.
    pub fn text(&self) -> String {
        let memory = match (self.limit_bytes, &self.why_no_limit) {
            (Some(limit), _) => format!("in a memory cgroup of {}", bytes_text(limit as f64)),
            (None, why) => format!(
                "without a memory limit, so that the kernel reclaims pages only on request ({})",
                why.as_deref().unwrap_or("none was made")
            ),
        };
        format!(
            "soak: seed {}, {} minutes, {} threads, {memory}\n",
            self.seed, self.minutes, self.threads
        )
    }
}

#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(flatten)]
    pub setting: Setting,
    pub seconds: f64,
    /// Covers the first operations of all threads: equal for equal seeds and numbers of
    /// threads.
    pub digest: String,
    pub operations: Counts,
    #[serde(flatten)]
    pub counts: Counts,
    pub expected_errors: Counts,
    pub peak_rss_bytes: u64,
    pub failure: Option<String>,
    /// Those of each thread; empty without a failure.
    pub last_operations: Vec<Vec<String>>,
}

impl Report {
    /// Makes the report of what the board shows.
    pub fn new(setting: Setting, board: &Board, failure: Option<String>) -> Self {
        let threads = match &failure {
            Some(_) => setting.threads,
            None => 0,
        };
        Self {
            setting,
            seconds: 0.0,
            digest: format!("{:016x}", board.digest.load(Relaxed)),
            operations: counts(VERBS.iter().copied(), &board.verbs),
            counts: counts(COUNTS.iter().copied(), &board.counts),
            expected_errors: counts(ERRORS.iter().map(|(name, _)| *name), &board.expected_errors),
            peak_rss_bytes: 0,
            failure,
            last_operations: (0..threads).map(|thread| board.recent(thread)).collect(),
        }
    }

    /// Returns the table and the verdict.
    pub fn text(&self) -> String {
        let mut table = table_with(["", "number"], 40);
        let mut row = |name: &str, count: u64| {
            let text = match name.ends_with("bytes") {
                true => bytes_text(count as f64),
                false => count_text(count as f64),
            };
            table.add_row([Cell::new(name), number(text)]);
        };
        row("operations", self.operations.values().sum());
        for (name, &count) in &self.operations {
            row(&format!("  {name}"), count);
        }
        for name in COUNTS {
            row(&name.replace('_', " "), self.counts[name]);
        }
        row("expected errors", self.expected_errors.values().sum());
        for (name, &count) in self.expected_errors.iter().filter(|(_, count)| **count > 0) {
            row(&format!("  {name}"), count);
        }
        row("peak RSS bytes", self.peak_rss_bytes);
        format!("{table}\n{}", self.verdict())
    }

    fn verdict(&self) -> String {
        let Some(failure) = &self.failure else {
            return format!("=> nothing is wrong after {:.0} s\n", self.seconds);
        };
        let Setting { seed, threads, .. } = self.setting;
        let mode = match self.setting.unreadable_limits {
            true => " --unreadable-limits",
            false => "",
        };
        let mut text = format!(
            "=> WRONG after {:.0} s (--seed {seed} --threads {threads}{mode})\n{failure}\n",
            self.seconds
        );
        for (thread, operations) in self.last_operations.iter().enumerate() {
            let operations = operations.join("\n  ");
            text += &format!("last operations of thread {thread}:\n  {operations}\n");
        }
        text
    }
}

fn counts(names: impl Iterator<Item = &'static str>, counts: &[AtomicU64]) -> Counts {
    let counts = counts.iter().map(|count| count.load(Relaxed));
    names.zip(counts).collect()
}
