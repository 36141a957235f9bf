//! An experiment as people read it on a terminal.

use serde_json::{Map, Value};

use super::figures::{self, Column};
use super::finding;
use super::table::{Cell, Table};
use crate::record::{Case, Experiment};
use crate::table::{in_short_lines, number, table_with};
use crate::text::bytes_text;

/// Notes are broken into lines of so many characters.
const WIDTH: usize = 100;

/// The lines above all experiments, with the names that the environment has in a record.
const HEADING: &str = "\
tenure {tenure_version}, {build_profile} build
Linux {kernel}, {architecture}{hypervisor}
{cpu_model}, {cpus_allowed} CPUs allowed
{memory_total_bytes} of memory, {memory_available_bytes} available; base pages of \
{page_size_bytes}, transparent huge pages: {transparent_huge_pages}
";

/// Returns the lines that stand above all experiments.
pub fn heading(environment: &Map<String, Value>) -> String {
    let fill = |text: String, (key, value): (&String, &Value)| {
        let value = match value {
            Value::String(text) => text.clone(),
            Value::Bool(true) => ", in a virtual machine".to_owned(),
            Value::Bool(false) => String::new(),
            Value::Number(bytes) if key.ends_with("_bytes") => {
                bytes_text(bytes.as_f64().unwrap_or(f64::NAN))
            }
            value => value.to_string(),
        };
        text.replace(&format!("{{{key}}}"), &value)
    };
    environment.iter().fold(HEADING.to_owned(), fill)
}

/// Returns the title, the tables, the notes and what the figures say.
pub fn experiment(experiment: &Experiment) -> String {
    let name = &experiment.name;
    if let Some(error) = &experiment.error {
        return format!("\n{name}: failed\n{error}\n");
    }
    let parts = experiment.cases.chunk_by(|a, b| a.table == b.table);
    let tables: Vec<String> = parts.map(|cases| part(experiment, cases)).collect();
    let notes = [rounds(&experiment.cases)]
        .into_iter()
        .chain(experiment.notes.clone());
    let notes = in_short_lines(&notes.collect::<Vec<_>>().join(" "), WIDTH);
    let sentences = finding::sentences(experiment);
    let (title, tables) = (&experiment.title, tables.join("\n"));
    format!(
        "\n{name}: {title}\n{tables}\n{notes}\n=> {}\n",
        sentences.join("\n=> ")
    )
}

fn part(experiment: &Experiment, cases: &[Case]) -> String {
    let title = cases.first().map_or("", |case| &case.table);
    let cases: Vec<&Case> = cases.iter().collect();
    let mut ways = cases.iter().flat_map(|case| &case.ways);
    if !title.is_empty() && ways.all(|way| way.figures.len() == 1) {
        return format!("\n{title}\n{}", table(&figures::grid(&cases)));
    }
    let has_names = cases.len() > 1;
    let column = Column {
        place: 0,
        label: None,
        experiment,
        cases,
    };
    let list = table(&figures::table(&[column], has_names));
    match title {
        "" => list,
        title => format!("\n{title}\n{list}"),
    }
}

/// Returns the table with lines instead of frames.
pub fn table(table: &Table) -> String {
    // Narrow headers where there are many columns.
    let width = if table.header.len() > 6 { 13 } else { 18 };
    let mut shown = table_with(&table.header, width);
    for row in &table.rows {
        shown.add_row(row.cells.iter().map(|cell| match cell {
            Cell::Text(text) => comfy_table::Cell::new(text),
            _ => number(cell.shown().to_owned()),
        }));
    }
    shown.trim_fmt()
}

fn rounds(cases: &[Case]) -> String {
    let rounds = || cases.iter().map(|case| case.rounds);
    let spread = match cases.iter().all(|case| case.table.is_empty()) {
        true => "(smallest–largest)",
        false => "(smallest–largest, or ± half of what lies between)",
    };
    match (rounds().min().unwrap_or(0), rounds().max().unwrap_or(0)) {
        (1, 1) => "One round.".to_owned(),
        (fewest, most) if fewest == most => format!("Median {spread} of {most} rounds."),
        (fewest, most) => format!("Median {spread} of {fewest} to {most} rounds."),
    }
}

#[cfg(test)]
#[path = "../../tests/unit/present/terminal.rs"]
mod tests;
