//! The output, as tables or as JSON.

use std::{ffi::OsString, fmt::Write as _, path::Path};

use comfy_table::{Cell, Table};
use serde::Serialize;

use super::{counters, group::GroupReport, preload::Preload, process::ProcessReport};
use tenure_bench::{
    table::{number, table_with},
    text::{bytes_text, printable},
};

const HEADER_WIDTH: usize = 14;

/// One reading of the processes or the cgroup.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<GroupReport>,
    pub processes: Vec<ProcessReport>,
    /// The processes and cgroups that the command line names.
    #[serde(skip)]
    pub targets: Vec<Target>,
    /// How many processes may not be read, but for those in `cgroup`.
    #[serde(skip)]
    pub unreadable: usize,
}

/// A process or cgroup that the command line names.
#[derive(Clone, Debug)]
pub struct Target {
    pub kind: &'static str,
    /// As it was named.
    pub name: OsString,
    /// Whether it is there and could be read.
    pub is_up: bool,
}

impl Target {
    pub fn process(pid: u32, is_up: bool) -> Self {
        Self {
            kind: "process",
            name: pid.to_string().into(),
            is_up,
        }
    }

    pub fn group(path: &Path, is_up: bool) -> Self {
        Self {
            kind: "cgroup",
            name: path.into(),
            is_up,
        }
    }
}

impl Report {
    pub fn of_processes(processes: Vec<ProcessReport>) -> Self {
        Self {
            cgroup: None,
            processes,
            targets: Vec::new(),
            unreadable: 0,
        }
    }

    pub fn of_group(group: GroupReport, processes: Vec<ProcessReport>) -> Self {
        Self {
            cgroup: Some(group),
            ..Self::of_processes(processes)
        }
    }

    /// The report of a cgroup that is not there, or cannot be read.
    pub fn of_absent_group(path: &Path) -> Self {
        Self {
            targets: vec![Target::group(path, false)],
            ..Self::of_processes(Vec::new())
        }
    }

    pub fn is_empty(&self) -> bool {
        self.cgroup.is_none() && self.processes.is_empty()
    }

    /// Returns the tables, with a line break at the end.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if let Some(group) = &self.cgroup {
            let path = printable(&group.path.display().to_string());
            let version = group.cgroup_version;
            let _ = writeln!(text, "cgroup {path} (version {version})");
            let _ = writeln!(text, "{}", group_table(group).trim_fmt());
        }
        if !self.processes.is_empty() {
            let _ = writeln!(text, "{}", process_table(&self.processes).trim_fmt());
        }
        // A cgroup may have hundreds of processes that have nothing of tenure.
        let is_asked_for = |process: &&ProcessReport| {
            self.cgroup.is_none() || process.preload != Preload::default()
        };
        for process in self.processes.iter().filter(is_asked_for) {
            if let Some(line) = process.preload.text() {
                let _ = writeln!(text, "process {}: {}", process.pid, printable(&line));
            }
        }
        let counters = || {
            let processes = self.processes.iter();
            processes.map(|process| (process.pid, &process.tenure))
        };
        let tables = [
            counters::table(counters()),
            counters::heap_table(counters()),
        ];
        for table in tables.into_iter().flatten() {
            let _ = writeln!(text, "{}", table.trim_fmt());
        }
        for process in &self.processes {
            if let counters::Counters::Unreadable { error } = &process.tenure {
                // It may have the name of a memfd of the process.
                let error = printable(error);
                let _ = writeln!(text, "no counters of process {}: {error}", process.pid);
            }
        }
        let unreadable = self
            .cgroup
            .as_ref()
            .map_or(0, |group| group.unreadable_processes);
        if unreadable > 0 {
            let _ = writeln!(
                text,
                "{unreadable} more may not be read: run as root, or with CAP_SYS_PTRACE"
            );
        }
        text
    }
}

fn group_table(group: &GroupReport) -> Table {
    let header = [
        "usage",
        "limit",
        "anonymous",
        "page cache",
        "shared memory",
        "inactive file",
        "working set",
        "lazily free",
        "usage without lazily free",
    ];
    let mut table = table_with(header, HEADER_WIDTH);
    let known = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), size);
    let limit = group.limit_bytes.map_or("none".to_owned(), size);
    table.add_row([
        number(size(group.usage_bytes)),
        number(limit),
        number(known(group.anonymous_bytes)),
        number(known(group.page_cache_bytes)),
        number(known(group.shared_memory_bytes)),
        number(known(group.inactive_file_bytes)),
        number(known(group.working_set_bytes)),
        number(known(group.lazily_free_bytes)),
        number(known(group.usage_without_lazily_free_bytes)),
    ]);
    table
}

fn process_table(processes: &[ProcessReport]) -> Table {
    let mut header = vec![
        "PID",
        "name",
        "RSS",
        "lazily free",
        "RSS without lazily free",
        "PSS",
        "swapped",
        "locked",
        "huge pages",
    ];
    let has_hugetlb = processes.iter().any(|process| process.hugetlb_bytes > 0);
    header.extend(has_hugetlb.then_some("hugetlb"));
    let mut table = table_with(header, HEADER_WIDTH);
    for process in processes {
        let figure =
            |bytes: Option<usize>| number(bytes.map_or("?".to_owned(), |bytes| size(bytes as u64)));
        let mut row = vec![
            number(process.pid.to_string()),
            Cell::new(printable(&process.name)),
            figure(Some(process.resident_bytes)),
            figure(process.lazily_free_bytes),
            figure(process.resident_without_lazily_free_bytes),
            figure(process.proportional_bytes),
            figure(process.swapped_bytes),
            figure(Some(process.locked_bytes)),
            figure(process.huge_page_bytes),
        ];
        row.extend(has_hugetlb.then(|| figure(Some(process.hugetlb_bytes))));
        table.add_row(row);
    }
    table
}

fn size(bytes: u64) -> String {
    match bytes {
        0 => "0".to_owned(),
        bytes => bytes_text(bytes as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, name: &str) -> ProcessReport {
        ProcessReport {
            pid,
            name: name.to_owned(),
            mapped_bytes: 9 << 30,
            reserved_bytes: 0,
            resident_bytes: 3 << 29,
            lazily_free_bytes: Some(1 << 30),
            resident_without_lazily_free_bytes: Some(1 << 29),
            proportional_bytes: Some(3 << 29),
            swapped_bytes: Some(0),
            locked_bytes: 64 << 10,
            huge_page_bytes: Some(6 << 20),
            hugetlb_bytes: 0,
            pressure: None,
            preload: Preload::default(),
            tenure: counters::Counters::None,
        }
    }

    fn lines(text: &str) -> Vec<&str> {
        text.lines().map(str::trim_end).collect()
    }

    #[test]
    fn process_table_has_a_row_for_each_process() {
        let mut without = process(7, "a\x1b[J");
        without.lazily_free_bytes = None;
        let text = Report::of_processes(vec![process(12345, "cache"), without]).text();
        let expected = "\
───────────────────────────────────────────────────────────────────────────────────────────────────
 PID     name        RSS       lazily free   RSS without   PSS       swapped   locked   huge pages
                                             lazily free
───────────────────────────────────────────────────────────────────────────────────────────────────
 12345   cache       1.5 GiB         1 GiB       512 MiB   1.5 GiB         0   64 KiB        6 MiB
     7   a\\u{1b}[J   1.5 GiB             ?       512 MiB   1.5 GiB         0   64 KiB        6 MiB
───────────────────────────────────────────────────────────────────────────────────────────────────
process 12345: libtenure_preload.so is not mapped
process 7: libtenure_preload.so is not mapped
";
        assert_eq!(lines(&text), lines(expected), "\n{text}");
    }

    #[test]
    fn hugetlb_column_appears_where_a_process_has_some() {
        let mut huge = process(1, "a");
        assert!(
            !Report::of_processes(vec![huge.clone()])
                .text()
                .contains("hugetlb")
        );
        huge.hugetlb_bytes = 2 << 20;
        let text = Report::of_processes(vec![huge]).text();
        assert!(text.contains("hugetlb") && text.contains("2 MiB"), "{text}");
    }

    #[test]
    fn unreadable_counters_are_explained_below_the_table() {
        let mut process = process(7, "a");
        let error = "another\x1b[J layout".to_owned();
        process.tenure = counters::Counters::Unreadable { error };
        let text = Report::of_processes(vec![process]).text();
        assert!(
            text.ends_with("\nno counters of process 7: another\\u{1b}[J layout\n"),
            "{text}"
        );
    }

    #[test]
    fn cgroup_table_stands_above_its_processes() {
        let group = GroupReport {
            path: "/sys/fs/cgroup/jobs\x1b".into(),
            cgroup_version: 2,
            usage_bytes: 300 << 20,
            limit_bytes: None,
            anonymous_bytes: Some(200 << 20),
            page_cache_bytes: Some(90 << 20),
            shared_memory_bytes: Some(0),
            inactive_file_bytes: Some(80 << 20),
            working_set_bytes: Some(220 << 20),
            lazily_free_bytes: Some(60 << 20),
            usage_without_lazily_free_bytes: Some(240 << 20),
            pressure: None,
            unreadable_processes: 2,
        };
        let text = Report::of_group(group.clone(), vec![process(7, "a")]).text();
        assert!(
            text.starts_with("cgroup /sys/fs/cgroup/jobs\\u{1b} (version 2)\n"),
            "{text}"
        );
        for part in [
            "300 MiB",
            "none",
            "240 MiB",
            "220 MiB",
            "2 more may not be read",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("unknown"), "{text}");
        let hidden = GroupReport {
            lazily_free_bytes: None,
            usage_without_lazily_free_bytes: None,
            ..group
        };
        let text = Report::of_group(hidden, vec![process(7, "a")]).text();
        assert_eq!(text.matches("unknown").count(), 2, "{text}");
        assert!(!text.contains("is not mapped"), "{text}");
    }
}
