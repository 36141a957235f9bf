use std::{collections::BTreeMap, fs, path::Path};

use serde_json::Value;

use super::*;
use crate::stat::Counters;

fn own_report() -> Report {
    tenure::stats();
    let mut process = ProcessReport::of(std::process::id()).unwrap();
    process.name = "a \"b\"\\\n\u{1b}[J".to_owned();
    Report::of_processes(vec![process])
}

/// Returns the value of the only sample that begins with this text.
fn sample<'a>(text: &'a str, start: &str) -> &'a str {
    let mut lines = text.lines().filter(|line| line.starts_with(start));
    let line = lines.next().unwrap_or_else(|| panic!("{start}\n{text}"));
    assert_eq!(lines.next(), None);
    line.rsplit_once(' ').unwrap().1
}

#[test]
fn document_has_each_family_once_and_ends_with_eof() {
    let text = document(vec![own_report(), own_report()]).unwrap();
    assert!(text.ends_with("\n# EOF\n"), "{text}");
    let mut lines = text.lines().peekable();
    let mut families = BTreeMap::new();
    while let Some(line) = lines.next_if(|line| *line != "# EOF") {
        let (name, help) = line
            .strip_prefix("# HELP ")
            .unwrap()
            .split_once(' ')
            .unwrap();
        assert!(help.ends_with('.'), "{line}");
        let kind = lines.next().unwrap();
        let kind = kind.strip_prefix(&format!("# TYPE {name} ")).unwrap();
        let unit = lines.next_if(|line| line.starts_with("# UNIT "));
        assert_eq!(
            unit.is_some(),
            name.ends_with("_bytes") || name.ends_with("_ratio")
        );
        let mut samples = Vec::new();
        while let Some(sample) = lines.next_if(|line| !line.starts_with('#')) {
            let suffix = match kind {
                "counter" => "_total{",
                "info" => "_info{",
                _ if sample.starts_with(&format!("{name} ")) => " ",
                _ => "{",
            };
            assert!(sample.starts_with(&format!("{name}{suffix}")), "{sample}");
            samples.push(sample.rsplit_once(' ').unwrap().0);
        }
        assert!(!samples.is_empty(), "{name}");
        let count = samples.len();
        samples.sort_unstable();
        samples.dedup();
        assert_eq!(
            samples.len(),
            count,
            "{name} has two samples with the same labels"
        );
        assert_eq!(families.insert(name, count), None, "{name} comes twice");
    }
    assert_eq!(families["tenure_process_purged_bytes"], 4);
    assert!(!families.contains_key("tenure_cgroup_usage_bytes"));
}

#[test]
fn process_name_is_escaped_twice() {
    let text = document(vec![own_report()]).unwrap();
    let pid = std::process::id();
    let start = format!(
        "tenure_process_resident_bytes{{pid=\"{pid}\",name=\"a \\\"b\\\"\\\\\\\\n\\\\u{{1b}}[J\"}} "
    );
    let resident: u64 = sample(&text, &start).parse().unwrap();
    assert!(resident > 0);
}

#[test]
fn unknown_figure_has_no_sample() {
    let group = GroupReport {
        path: "/a".into(),
        cgroup_version: 2,
        usage_bytes: 1000,
        limit_bytes: None,
        anonymous_bytes: Some(1),
        page_cache_bytes: Some(2),
        shared_memory_bytes: Some(3),
        inactive_file_bytes: Some(300),
        working_set_bytes: Some(700),
        lazily_free_bytes: None,
        usage_without_lazily_free_bytes: None,
        pressure: Some(tenure::pressure::Level::Severe),
        unreadable_processes: 1,
    };
    let text = document(vec![Report::of_group(group, Vec::new())]).unwrap();
    for (start, value) in [
        ("tenure_cgroup_usage_bytes{cgroup=\"/a\"}", "1000"),
        ("tenure_cgroup_working_set_bytes{cgroup=\"/a\"}", "700"),
        ("tenure_cgroup_pressure_level{cgroup=\"/a\"}", "2"),
        ("tenure_cgroup_unreadable_processes{cgroup=\"/a\"}", "1"),
    ] {
        assert_eq!(sample(&text, start), value);
    }
    for name in ["limit", "lazily_free", "usage_without"] {
        assert!(!text.contains(&format!("tenure_cgroup_{name}")), "{text}");
    }
    assert!(!text.contains("tenure_process_"), "{text}");
}

#[test]
fn failed_readings_are_counted_by_source() {
    let mut report = own_report();
    report.unreadable = 2;
    let process = &mut report.processes[0];
    process.pressure = None;
    process.preload.error = Some("refused".to_owned());
    process.tenure = Counters::Unreadable {
        error: "refused".to_owned(),
    };
    let text = document(vec![report]).unwrap();
    for (source, count) in [("process", "2"), ("counters", "1"), ("preload", "1")] {
        let errors = sample(
            &text,
            &format!("tenure_scrape_errors{{source=\"{source}\"}}"),
        );
        assert_eq!(errors, count, "{source}");
    }
    let mut readable = text.lines().filter(|line| line.contains("_readable{"));
    assert!(readable.all(|line| line.ends_with(" 0")), "{text}");
    assert!(!text.contains("tenure_process_preloaded"), "{text}");
    let text = document(vec![own_report()]).unwrap();
    let errors = text
        .lines()
        .filter(|line| line.starts_with("tenure_scrape_errors{"));
    assert_eq!(
        errors.filter(|line| line.ends_with(" 0")).count(),
        4,
        "{text}"
    );
    let readable = text.lines().filter(|line| line.contains("_readable{"));
    let readable = readable.filter(|line| !line.contains("source=\"pressure\""));
    assert_eq!(
        readable.filter(|line| line.ends_with(" 1")).count(),
        2,
        "{text}"
    );
}

#[test]
fn named_target_is_up_or_not_and_comes_once() {
    let absent = || Report::of_absent_group(Path::new("/no\u{fffd}"));
    let text = document(vec![absent(), absent()]).unwrap();
    let start = "tenure_target_up{kind=\"cgroup\",target=\"/no\u{fffd}\u{fffd}\"}";
    assert_eq!(sample(&text, start), "0");
}

/// Returns the names of all samples that there can be.
fn sample_names() -> Vec<String> {
    fn of<T>(subject: &str, rows: &[Row<T>]) -> Vec<String> {
        let name = |row: &Row<T>| {
            let unit = if row.is_in_bytes { "_bytes" } else { "" };
            let total = if row.is_counter { "_total" } else { "" };
            format!("tenure_{subject}_{}{unit}{total}", row.name)
        };
        rows.iter().map(name).collect()
    }
    let fixed = [
        "build_info",
        "scrape_errors",
        "target_up",
        "pressure_level",
        "stalled_ratio",
    ];
    let fixed = fixed.map(|name| format!("tenure_{name}")).to_vec();
    let process = [PROCESS, OPERATION_CALLS, OPERATION_BYTES];
    let process = process.map(|rows| of("process", rows)).concat();
    [fixed, of("cgroup", GROUP), process].concat()
}

/// Collects the queries of a dashboard.
fn queries(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match (key.as_str(), value) {
                    ("expr" | "query" | "definition", Value::String(text)) => {
                        found.push(text.clone());
                    }
                    _ => queries(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| queries(value, found)),
        _ => {}
    }
}

#[test]
fn dashboard_queries_name_metrics_that_exist() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/grafana-dashboard.json");
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let mut found = Vec::new();
    queries(&dashboard, &mut found);
    assert!(found.len() >= 10, "{found:?}");
    let known = sample_names();
    for query in &found {
        let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let names: Vec<_> = words.filter(|word| word.starts_with("tenure_")).collect();
        // Variables may ask for others, such as data sources.
        for name in &names {
            assert!(known.iter().any(|known| known == name), "{name} in {query}");
        }
    }
    let text = found.join("\n");
    for name in [
        "lazily_free",
        "purged",
        "pending_release",
        "working_set",
        "cache_lookups",
    ] {
        assert!(text.contains(name), "{name}");
    }
}
