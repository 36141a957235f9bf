//! The record of one boot.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One kernel, booted in one configuration.
#[derive(Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Boot {
    /// The kernel's short name and that of the configuration: "6.1/swap".
    pub configuration: String,
    /// The output of `uname -r` and `uname -v`.
    pub kernel: String,
    pub version: String,
    pub command_line: String,
    pub memory_kib: u64,
    /// Whether the machine shut down by itself.
    pub complete: bool,
    /// The checks of `tenure doctor`.
    pub checks: Vec<Check>,
    pub programs: Vec<Program>,
    /// The kernel's counters at the end.
    pub counters: BTreeMap<String, u64>,
    /// The kernel's warnings, each behind the name of the program that ran.
    pub kernel_said: Vec<String>,
}

/// A check of `tenure doctor --json`.
#[derive(Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Check {
    pub verb: String,
    pub name: String,
    pub status: String,
    pub found: String,
    /// This and the following are what is told where the status is not "ok".
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub effect: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// One test program.
#[derive(Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Program {
    pub name: String,
    /// The time and the commit of the sources that it was built from; older records have none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub state: String,
    pub seconds: u64,
    /// How the program ended, unless it exited by itself with all its results.
    pub trouble: Option<String>,
    pub passed: u64,
    pub failed: Vec<String>,
    pub skipped: Vec<Skip>,
}

/// A test that could not run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Skip {
    pub test: String,
    pub reason: String,
}

/// The order of configurations; others come last.
const ORDER: [&str; 7] = ["root", "user", "swap", "group", "small", "psi-off", "numa"];

impl Boot {
    /// Returns the sort key: the kernel's processor, if it is not x86-64 ("7.2-arm64"), its
    /// numbers, then the configuration's place in [`ORDER`].
    pub fn place(&self) -> (String, Vec<u32>, usize, String) {
        let (kernel, name) = self.names();
        let (kernel, processor) = kernel.split_once('-').unwrap_or((kernel, ""));
        let numbers = kernel.split('.').map(|part| part.parse().unwrap_or(0));
        let at = ORDER.iter().position(|&other| other == name);
        (
            processor.to_owned(),
            numbers.collect(),
            at.unwrap_or(ORDER.len()),
            name.to_owned(),
        )
    }

    /// Returns the short name of the kernel and that of the configuration.
    pub fn names(&self) -> (&str, &str) {
        self.configuration
            .split_once('/')
            .unwrap_or((&self.configuration, ""))
    }

    /// Adds the programs that only an earlier boot of the same kernel has run, and what the
    /// kernel said while they ran.
    pub fn keep(&mut self, earlier: Self) {
        if (&self.kernel, &self.version) != (&earlier.kernel, &earlier.version) {
            return;
        }
        // The first two are no programs on the disk: each boot has its own.
        let is_kept = |program: &Program| {
            !["init", "doctor"].contains(&program.name.as_str())
                && self.programs.iter().all(|own| own.name != program.name)
        };
        let kept: Vec<_> = earlier.programs.into_iter().filter(is_kept).collect();
        let is_of_kept = |line: &String| {
            let name = line.split_once(": ").map(|(name, _)| name);
            kept.iter()
                .any(|program| Some(program.name.as_str()) == name)
        };
        self.kernel_said
            .extend(earlier.kernel_said.into_iter().filter(is_of_kept));
        self.programs.extend(kept);
        self.programs
            .sort_by(|one, other| one.name.cmp(&other.name));
    }

    /// Returns the programs that the boot was to run and whose results the record lacks.
    pub fn unrecorded(&self) -> Vec<&str> {
        let mut words = self.command_line.split(' ');
        let only = words.find_map(|word| word.strip_prefix("tenure_only="));
        let selected = only.unwrap_or_default().split(',');
        let is_recorded = |name: &str| self.programs.iter().any(|program| program.name == name);
        selected
            .filter(|name| !name.is_empty() && !is_recorded(name))
            .collect()
    }

    /// Returns the failures.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for program in &self.programs {
            let name = &program.name;
            let failed = program.failed.iter();
            failures.extend(failed.map(|test| format!("{name}: {test} failed")));
            failures.extend(program.trouble.iter().map(|how| format!("{name}: {how}")));
        }
        for name in self.unrecorded() {
            failures.push(format!("{name}: selected, but no result is recorded"));
        }
        if !self.complete {
            failures.push("the machine did not shut down by itself".to_owned());
        }
        failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot(version: &str, programs: &[(&str, u64)]) -> Boot {
        let program = |&(name, passed): &(&str, u64)| Program {
            name: name.to_owned(),
            passed,
            ..Program::default()
        };
        Boot {
            configuration: "6.1/root".to_owned(),
            version: version.to_owned(),
            programs: programs.iter().map(program).collect(),
            ..Boot::default()
        }
    }

    #[test]
    fn keep_from_same_kernel_keeps_other_programs() {
        let earlier = || boot("#1", &[("lock", 1), ("prepare", 2)]);
        let mut later = boot("#1", &[("lock", 3), ("mapping", 4)]);
        later.keep(earlier());
        let all = boot("#1", &[("lock", 3), ("mapping", 4), ("prepare", 2)]);
        assert_eq!(later, all);
        // Kernel messages stay with the program, and each boot has an init of its own.
        let mut earlier_said = boot("#1", &[("lock", 1), ("prepare", 2), ("init", 0)]);
        earlier_said.kernel_said = ["lock: [1] BUG", "prepare: [2] BUG"]
            .map(str::to_owned)
            .into();
        let mut later = boot("#1", &[("lock", 3)]);
        later.keep(earlier_said);
        assert_eq!(
            later.programs,
            boot("#1", &[("lock", 3), ("prepare", 2)]).programs
        );
        assert_eq!(later.kernel_said, ["prepare: [2] BUG"]);
        // Results of another kernel are dropped.
        let mut newer = boot("#2", &[("lock", 3)]);
        newer.keep(earlier());
        assert_eq!(newer, boot("#2", &[("lock", 3)]));
    }

    #[test]
    fn selected_program_without_result_is_a_failure() {
        let mut boot = boot("#1", &[("lock", 1)]);
        boot.complete = true;
        boot.command_line = "panic=-1 tenure_only=lock,pool".to_owned();
        let told = ["pool: selected, but no result is recorded"];
        assert_eq!(boot.failures(), told);
        boot.command_line = "tenure_only=".to_owned();
        assert!(boot.failures().is_empty());
    }

    #[test]
    fn boots_are_sorted_by_kernel_number() {
        let mut boots = [
            "7.2-arm64-16k/root",
            "6.1-arm64/root",
            "6.12/root",
            "6.1/swap",
            "6.1/root",
        ]
        .map(|configuration| Boot {
            configuration: configuration.to_owned(),
            ..Boot::default()
        });
        boots.sort_by_key(Boot::place);
        let names = boots.map(|boot| boot.configuration);
        assert_eq!(
            names,
            [
                "6.1/root",
                "6.1/swap",
                "6.12/root",
                "6.1-arm64/root",
                "7.2-arm64-16k/root"
            ]
        );
    }
}
