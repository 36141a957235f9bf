//! Where the figures come from: what records tell about their machines.

use serde_json::Value;

use crate::present::table::{Cell, Row, Table, in_order};
use crate::record::{OWN, Record, other_version};
use crate::text::bytes_text;

/// Says in a line which kernel and which machine a record is of.
pub fn summary(record: &Record) -> String {
    let value = |key: &str| {
        let value = record.environment.get(key);
        value.map_or_else(|| "?".to_owned(), |value| value_text(key, value))
    };
    let is_virtual = record.environment.get("hypervisor") == Some(&Value::Bool(true));
    format!(
        "tenure {}, Linux {}, {}, {} CPUs, {} of memory{}",
        value("tenure_version"),
        value("kernel"),
        value("cpu_model"),
        value("cpus_allowed"),
        value("memory_total_bytes"),
        if is_virtual { ", virtual machine" } else { "" }
    )
}

/// Tells what lessens the worth of a record's figures.
pub fn warnings(record: &Record) -> Vec<String> {
    let label = &record.label;
    let version = other_version(&record.environment)
        .map(|version| format!("{label} was made by tenure {version}, this page by tenure {OWN}."));
    let is_debug = record.environment.get("build_profile") == Some(&Value::from("debug"));
    let text = "was made by a debug build, whose figures for work outside the kernel mean little.";
    let debug = is_debug.then(|| format!("{label} {text}"));
    version.into_iter().chain(debug).collect()
}

/// Keys of a record in the order of the table, and what they are called there.
const KNOWN: [(&str, &str); 15] = [
    ("tenure_version", "tenure"),
    ("build_profile", "build"),
    ("kernel", "kernel"),
    ("architecture", "architecture"),
    ("hypervisor", "virtual machine"),
    ("cpu_model", "CPU"),
    ("cpus_allowed", "CPUs allowed"),
    ("memory_total_bytes", "memory"),
    ("memory_available_bytes", "memory available"),
    ("memory_room_bytes", "headroom for the experiments"),
    ("memory_room_bound", "limited by"),
    ("swap_total_bytes", "swap"),
    ("page_size_bytes", "base pages"),
    ("transparent_huge_pages", "transparent huge pages"),
    ("libc_version", "C library"),
];

/// Makes the table: a row for each key, a column for each record.
pub fn table(records: &[Record]) -> Table {
    let mut rows = Vec::new();
    let mut add = |name: &str, value: &dyn Fn(&Record) -> Option<String>| {
        let values: Vec<_> = records.iter().map(value).collect();
        if values.iter().any(Option::is_some) {
            let values = values.into_iter();
            let values = values.map(|value| Cell::or_missing(value.map(Cell::Text)));
            let cells = [Cell::text(name)].into_iter().chain(values).collect();
            rows.push(Row::of(cells));
        }
    };
    for (key, name) in KNOWN {
        add(name, &|record| {
            Some(value_text(key, record.environment.get(key)?))
        });
    }
    let keys = records.iter().map(|record| record.environment.keys());
    let keys = in_order(keys.map(|keys| keys.map(String::as_str)));
    for key in keys
        .into_iter()
        .filter(|key| KNOWN.iter().all(|(known, _)| known != key))
    {
        let value = |record: &Record| Some(value_text(key, record.environment.get(key)?));
        add(&key.replace('_', " "), &value);
    }
    add("seed", &|record| Some(record.seed?.to_string()));
    add("command", &|record| record.command.clone());
    let labels = records.iter().map(|record| record.label.clone());
    let header = [String::new()].into_iter().chain(labels).collect();
    Table { header, rows }
}

fn value_text(key: &str, value: &Value) -> String {
    match value {
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Null => "–".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) if key.ends_with("_bytes") => {
            bytes_text(number.as_f64().unwrap_or(f64::NAN))
        }
        Value::Object(values) => {
            // A vulnerability that the machine has not says nothing about its figures.
            let values = values.iter().filter(|(_, value)| **value != "Not affected");
            let texts = values.map(|(name, value)| {
                format!("{}: {}", name.replace('_', " "), value_text(name, value))
            });
            texts.collect::<Vec<_>>().join("; ")
        }
        other => other.to_string(),
    }
}
