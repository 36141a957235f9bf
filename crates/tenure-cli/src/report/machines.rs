//! Where the figures come from: what records tell about their machines.

use serde_json::Value;

use super::{
    compose::in_order,
    document::{Cell, Row, Table},
    record::{OWN, Record, other_version},
};
use crate::text::bytes_text;

/// Says in a line which kernel and which machine a record is of.
pub fn summary(record: &Record, has_label: bool) -> String {
    let value = |key: &str| {
        let value = record.environment.get(key);
        value.map_or_else(|| "?".to_owned(), |value| value_text(key, value))
    };
    let label = if has_label {
        format!("{}: ", record.label)
    } else {
        String::new()
    };
    let machine = match record.environment.get("hypervisor") {
        Some(Value::Bool(true)) => ", virtual machine",
        _ => "",
    };
    format!(
        "{label}tenure {}, Linux {}, {}, {} CPUs, {} of memory{machine}",
        value("tenure_version"),
        value("kernel"),
        value("cpu_model"),
        value("cpus_allowed"),
        value("memory_total_bytes")
    )
}

/// Tells what a reader has to be warned of.
pub fn warnings(record: &Record) -> Vec<String> {
    let label = &record.label;
    let mut warnings = Vec::new();
    if let Some(version) = other_version(&record.environment) {
        warnings.push(format!(
            "{label} was made by tenure {version}, this page by tenure {OWN}."
        ));
    }
    if record.environment.get("build_profile") == Some(&Value::from("debug")) {
        warnings.push(format!(
            "{label} was made by a debug build, whose figures for work outside the kernel mean little."
        ));
    }
    warnings
}

/// What is known about a machine, by the names of a record; others follow as they
/// are called.
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
    ("memory_room_bytes", "room for the experiments"),
    ("memory_room_bound", "bounded by"),
    ("swap_total_bytes", "swap"),
    ("page_size_bytes", "base pages"),
    ("transparent_huge_pages", "transparent huge pages"),
    ("libc_version", "C library"),
];

/// Makes the table: a row for each thing that is told, a column for each record.
pub fn table(records: &[Record]) -> Table {
    let known = KNOWN.map(|(key, _)| key);
    let keys = |record: &Record| record.environment.keys().cloned().collect::<Vec<_>>();
    let own: Vec<Vec<String>> = records.iter().map(keys).collect();
    let lists = own.iter().map(|keys| {
        let others = keys.iter().map(String::as_str);
        let others = others.filter(|key| !known.contains(key));
        known
            .into_iter()
            .chain(others)
            .collect::<Vec<_>>()
            .into_iter()
    });
    let is_told = |key: &&str| {
        records
            .iter()
            .any(|record| record.environment.contains_key(*key))
    };
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for key in in_order(lists).into_iter().filter(is_told) {
        let name = KNOWN.iter().find(|(known, _)| *known == key);
        let name = name.map_or_else(|| key.replace('_', " "), |(_, name)| (*name).to_owned());
        let values = records
            .iter()
            .map(|record| match record.environment.get(key) {
                Some(value) => Cell::text(value_text(key, value)),
                None => Cell::Missing,
            });
        rows.push([Cell::text(name)].into_iter().chain(values).collect());
    }
    let mut more = |name: &str, of: &dyn Fn(&Record) -> Option<String>| {
        let cells = records
            .iter()
            .map(|record| of(record).map_or(Cell::Missing, Cell::Text));
        rows.push([Cell::text(name)].into_iter().chain(cells).collect());
    };
    more("seed", &|record| record.seed.map(|seed| seed.to_string()));
    more("command", &|record| record.command.clone());
    let labels = records.iter().map(|record| record.label.clone());
    Table {
        header: [String::new()].into_iter().chain(labels).collect(),
        rows: rows
            .into_iter()
            .map(|cells| Row {
                cells,
                ..Row::default()
            })
            .collect(),
    }
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
        Value::Array(values) => {
            let texts: Vec<String> = values.iter().map(|value| value_text(key, value)).collect();
            texts.join(", ")
        }
        Value::Object(values) => {
            let text = |(name, value): (&String, &Value)| {
                format!("{}: {}", name.replace('_', " "), value_text(name, value))
            };
            // What does not concern the machine says nothing about its figures.
            let concerns = |(_, value): &(&String, &Value)| **value != "Not affected";
            let texts: Vec<String> = values.iter().filter(concerns).map(text).collect();
            texts.join("; ")
        }
        Value::Number(number) => number.to_string(),
    }
}
