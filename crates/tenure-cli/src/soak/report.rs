//! What a soak has come to.

use std::{collections::BTreeMap, sync::atomic::Ordering::Relaxed, time::Duration};

use comfy_table::Cell;
use serde::Serialize;

use super::{
    board::{Board, Count, REFUSALS},
    step::VERBS,
};
use crate::{
    table::{number, table_with},
    text::{bytes_text, count_text},
};

/// What was asked for, and what there is for it.
#[derive(Debug, Serialize)]
pub struct Setting {
    pub seed: u64,
    pub minutes: f64,
    pub threads: u32,
    /// The limit of the memory cgroup.
    pub limit_bytes: Option<usize>,
    pub why_no_limit: Option<String>,
}

impl Setting {
    /// Returns the lines that come first.
    pub fn text(&self) -> String {
        let Self {
            seed,
            minutes,
            threads,
            ..
        } = self;
        let memory = match (self.limit_bytes, &self.why_no_limit) {
            (Some(limit), _) => format!("in a memory cgroup of {}", bytes_text(limit as f64)),
            (None, why) => format!(
                "without a memory limit, so that pages go only when the kernel is asked to take \
                 them ({})",
                why.as_deref().unwrap_or("none was made")
            ),
        };
        format!("soak: seed {seed}, {minutes} minutes, {threads} threads, {memory}\n")
    }
}

/// All of it.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(flatten)]
    pub setting: Setting,
    pub seconds: f64,
    /// Of the first operations of all threads: the same for the same seed and
    /// number of threads, if they have come so far.
    pub digest: String,
    pub operations: BTreeMap<&'static str, u64>,
    pub pages_checked: u64,
    pub pages_checked_by_children: u64,
    pub forks: u64,
    pub signals: u64,
    pub pages_lost: u64,
    pub unmarked_intact: u64,
    pub page_outs: u64,
    pub purges_of_all: u64,
    pub ballast_waves: u64,
    pub waits: u64,
    /// Errors that were the right answer.
    pub refusals: BTreeMap<&'static str, u64>,
    pub peak_rss_bytes: u64,
    pub pending_bytes: u64,
    pub mappings_before: u64,
    pub mappings_after: u64,
    pub descriptors_before: u64,
    pub descriptors_after: u64,
    pub failure: Option<String>,
    /// Of each thread, when something is wrong.
    pub last_operations: Vec<Vec<String>>,
}

impl Report {
    pub fn new(
        setting: Setting,
        board: &Board,
        elapsed: Duration,
        peak_rss_bytes: u64,
        failure: Option<String>,
    ) -> Self {
        let counts = |names: &[&'static str], counts: &[std::sync::atomic::AtomicU64]| {
            let counts = counts.iter().map(|count| count.load(Relaxed));
            names.iter().copied().zip(counts).collect()
        };
        let threads = if failure.is_some() {
            setting.threads as usize
        } else {
            0
        };
        Self {
            setting,
            seconds: elapsed.as_secs_f64(),
            digest: format!("{:016x}", board.get(Count::Digest)),
            operations: counts(&VERBS, &board.verbs),
            pages_checked: board.get(Count::PagesChecked),
            pages_checked_by_children: board.get(Count::PagesCheckedByChildren),
            forks: board.get(Count::Forks),
            signals: board.get(Count::Signals),
            pages_lost: board.get(Count::PagesLost),
            unmarked_intact: board.get(Count::Intact),
            page_outs: board.get(Count::PageOuts),
            purges_of_all: board.get(Count::PurgeAll),
            ballast_waves: board.get(Count::BallastWaves),
            waits: board.get(Count::Waits),
            refusals: counts(&REFUSALS, &board.refusals),
            peak_rss_bytes,
            pending_bytes: board.get(Count::PendingBytes),
            mappings_before: board.get(Count::MappingsBefore),
            mappings_after: board.get(Count::MappingsAfter),
            descriptors_before: board.get(Count::DescriptorsBefore),
            descriptors_after: board.get(Count::DescriptorsAfter),
            failure,
            last_operations: (0..threads).map(|thread| board.last(thread)).collect(),
        }
    }

    /// Returns it for people.
    pub fn text(&self) -> String {
        let mut table = table_with(["", "number"], 40);
        let mut row = |name: &str, text: String| {
            table.add_row([Cell::new(name), number(text)]);
        };
        let count = |count: u64| count_text(count as f64);
        row("operations", count(self.operations.values().sum()));
        for (name, &times) in &self.operations {
            row(&format!("  {name}"), count(times));
        }
        row("pages checked", count(self.pages_checked));
        row("  by children", count(self.pages_checked_by_children));
        row("forks", count(self.forks));
        row("signals", count(self.signals));
        row("pages lost and reported", count(self.pages_lost));
        row("unmarked intact", count(self.unmarked_intact));
        row("page-outs", count(self.page_outs));
        row("purges of all", count(self.purges_of_all));
        row("waves of pressure", count(self.ballast_waves));
        row(
            "errors that were right",
            count(self.refusals.values().sum()),
        );
        for (name, &times) in self.refusals.iter().filter(|(_, times)| **times > 0) {
            row(&format!("  {name}"), count(times));
        }
        row("peak RSS", bytes_text(self.peak_rss_bytes as f64));
        row("pending after drain", bytes_text(self.pending_bytes as f64));
        let both = |before, after| format!("{} / {}", count(before), count(after));
        row(
            "mappings before / after",
            both(self.mappings_before, self.mappings_after),
        );
        let descriptors = both(self.descriptors_before, self.descriptors_after);
        row("descriptors before / after", descriptors);
        format!("{table}\n{}", self.verdict())
    }

    fn verdict(&self) -> String {
        let Some(failure) = &self.failure else {
            return format!("=> nothing is wrong after {:.0} s\n", self.seconds);
        };
        let Setting { seed, threads, .. } = self.setting;
        let mut text = format!(
            "=> WRONG after {:.0} s (--seed {seed} --threads {threads})\n{failure}\n",
            self.seconds
        );
        for (thread, operations) in self.last_operations.iter().enumerate() {
            text += &format!("last operations of thread {thread}:\n");
            for operation in operations {
                text += &format!("  {operation}\n");
            }
        }
        text
    }
}

/// The name of a level of pressure.
pub fn level_text(level: u64) -> &'static str {
    match level {
        0 => "none",
        1 => "some",
        _ => "severe",
    }
}
