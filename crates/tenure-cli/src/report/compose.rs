//! Makes the document of some records.

use serde_json::Value;

use super::{
    document::{Cell, Document, Group, Number, Row, Said, Section, Table},
    plot,
    record::{Case, Experiment, OWN, Record, Way, better, other_version},
    reference, sentence,
};
use crate::bench::{Better, Series, Unit, spread_text};
use crate::text::bytes_text;

/// A record's place, what it is called where there are several, and what it says
/// about the experiment at hand.
struct Column<'a> {
    place: usize,
    label: Option<String>,
    experiment: &'a Experiment,
}

/// Makes the document: a section for each experiment, in which the records that
/// have it stand side by side.
pub fn document(records: &[Record]) -> Document {
    let names = in_order(records.iter().map(|record| {
        let experiments = record.experiments.iter();
        experiments.map(|experiment| experiment.name.as_str())
    }));
    let sections = names.iter().map(|name| section(name, records)).collect();
    Document {
        labels: records.iter().map(|record| record.label.clone()).collect(),
        summaries: records
            .iter()
            .map(|record| summary(record, records.len() > 1))
            .collect(),
        machines: machines(records),
        methods: in_order(
            records
                .iter()
                .map(|record| record.method.as_deref().into_iter()),
        )
        .into_iter()
        .map(str::to_owned)
        .collect(),
        warnings: records.iter().flat_map(warnings).collect(),
        sections,
    }
}

/// Returns every name once, each behind the one that it follows in a list.
fn in_order<'a>(lists: impl Iterator<Item = impl Iterator<Item = &'a str>>) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for list in lists {
        let mut place = 0;
        for name in list {
            if let Some(known) = names.iter().position(|&known| known == name) {
                place = known + 1;
            } else {
                names.insert(place, name);
                place += 1;
            }
        }
    }
    names
}

/// Says in a line which kernel and which machine a record is of.
fn summary(record: &Record, has_label: bool) -> String {
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

fn warnings(record: &Record) -> Vec<String> {
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

fn machines(records: &[Record]) -> Table {
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

fn section(name: &str, records: &[Record]) -> Section {
    let columns: Vec<Column<'_>> = records
        .iter()
        .enumerate()
        .filter_map(|(place, record)| {
            Some(Column {
                place,
                label: (records.len() > 1).then(|| record.label.clone()),
                experiment: record.experiment(name)?,
            })
        })
        .collect();
    let said = |sentences: &dyn Fn(&Experiment) -> Vec<String>| -> Vec<Said> {
        let said = columns.iter().map(|column| Said {
            label: column.label.clone(),
            sentences: sentences(column.experiment),
        });
        said.filter(|said| !said.sentences.is_empty()).collect()
    };
    let measured: Vec<&Column<'_>> = columns
        .iter()
        .filter(|column| !column.experiment.cases.is_empty())
        .collect();
    let labelled: Vec<_> = measured
        .iter()
        .map(|column| (column.label.clone(), column.experiment))
        .collect();
    let reference = reference::table(name, &labelled).filter(|_| !labelled.is_empty());
    let (reference, missing) = reference.map_or((None, 0), |(table, missing)| {
        (Some(table).filter(|table| !table.rows.is_empty()), missing)
    });
    let tables = in_order(measured.iter().map(|column| {
        let cases = column.experiment.cases.iter();
        cases.map(|case| case.table.as_str())
    }));
    Section {
        name: name.to_owned(),
        title: measured
            .first()
            .map_or(String::new(), |column| column.experiment.title.clone()),
        sentences: said(&|experiment| vec![sentence::of(experiment)]),
        reference,
        not_measured: (missing > 0).then(|| {
            format!(
                "{missing} more published comparisons were not measured here; \
                 tenure bench {name} --full measures all that this machine has room for."
            )
        }),
        groups: tables.iter().map(|table| group(table, &measured)).collect(),
        findings: said(&|experiment| sentences(&experiment.conclusion)),
        notes: said(&|experiment| notes(experiment)),
    }
}

/// Takes a text apart at the ends of its sentences.
fn sentences(text: &str) -> Vec<String> {
    let parts: Vec<&str> = text.split(". ").filter(|part| !part.is_empty()).collect();
    let whole = |(index, part): (usize, &&str)| {
        let is_last = index + 1 == parts.len();
        if is_last {
            (*part).to_owned()
        } else {
            format!("{part}.")
        }
    };
    parts.iter().enumerate().map(whole).collect()
}

fn notes(experiment: &Experiment) -> Vec<String> {
    let rounds = || experiment.cases.iter().map(|case| case.rounds);
    let (Some(fewest), Some(most)) = (rounds().min(), rounds().max()) else {
        return Vec::new();
    };
    let rounds = match (fewest, most) {
        (1, 1) => "One round: no spread is known.".to_owned(),
        (fewest, most) if fewest == most => {
            format!("Median (smallest–largest) of {most} rounds, in which the ways took turns.")
        }
        (fewest, most) => format!(
            "Median (smallest–largest) of {fewest} to {most} rounds, in which the ways took turns."
        ),
    };
    let ratios = "Ratios are computed round by round, and their median is shown.";
    let sizes = format!("Sizes: {}.", experiment.sizes);
    let sizes = (!experiment.sizes.is_empty()).then_some(sizes);
    [rounds, ratios.to_owned()]
        .into_iter()
        .chain(sizes)
        .chain(experiment.notes.iter().cloned())
        .collect()
}

fn group(title: &str, columns: &[&Column<'_>]) -> Group {
    let is_here = |case: &&Case| case.table == title;
    // A record that has nothing to say here has no column.
    let columns: Vec<(&Column<'_>, Vec<&Case>)> = columns
        .iter()
        .map(|column| {
            let cases = column.experiment.cases.iter().filter(is_here);
            (*column, cases.collect::<Vec<_>>())
        })
        .filter(|(_, cases)| !cases.is_empty())
        .collect();
    let drawn: Vec<_> = columns
        .iter()
        .map(|(column, cases)| (column.label.clone(), column.experiment, cases.clone()))
        .collect();
    Group {
        title: title.to_owned(),
        plots: plot::plots(&drawn),
        table: figures(&columns),
    }
}

/// A row for each way of each case; for each figure and for the ratio to the
/// baseline a column for each record, and at the end how the records compare.
fn figures(columns: &[(&Column<'_>, Vec<&Case>)]) -> Table {
    let all_cases = || columns.iter().flat_map(|(_, cases)| cases.iter().copied());
    let cases = in_order(
        columns
            .iter()
            .map(|(_, cases)| cases.iter().map(|case| case.name.as_str())),
    );
    let names = in_order(all_cases().flat_map(|case| &case.ways).map(|way| {
        let figures = way.figures.iter();
        figures.map(|figure| figure.name.as_str())
    }));
    let ratio = ratio_name(columns);
    let has_ratio = all_cases().any(|case| case.ways.iter().any(|way| way.times_as_good.is_some()));
    let has_names = cases.len() > 1;
    let of = |column: &Column<'_>, name: &str| match &column.label {
        Some(label) => format!("{name}, {label}"),
        None => name.to_owned(),
    };
    let mut header: Vec<String> = has_names.then(|| "case".to_owned()).into_iter().collect();
    header.push("way".to_owned());
    for name in names
        .iter()
        .copied()
        .chain(has_ratio.then_some(ratio.as_str()))
    {
        header.extend(columns.iter().map(|(column, _)| of(column, name)));
    }
    let later = columns.get(1..).unwrap_or_default();
    header.extend(
        later
            .iter()
            .map(|(column, _)| against(column, columns[0].0)),
    );
    let mut rows = Vec::new();
    for case_name in cases {
        let found: Vec<Option<&Case>> = columns
            .iter()
            .map(|(_, cases)| cases.iter().copied().find(|case| case.name == case_name))
            .collect();
        let ways = in_order(found.iter().flatten().map(|case| {
            let ways = case.ways.iter();
            ways.map(|way| way.name.as_str())
        }));
        for (index, way_name) in ways.iter().enumerate() {
            let ways: Vec<Option<(&Column<'_>, &Case, &Way)>> = columns
                .iter()
                .zip(&found)
                .map(|((column, _), case)| {
                    let case = (*case)?;
                    Some((*column, case, case.way(way_name)?))
                })
                .collect();
            let shown = if index == 0 { case_name } else { "" };
            let mut cells: Vec<Cell> = has_names.then(|| Cell::text(shown)).into_iter().collect();
            cells.push(Cell::text(*way_name));
            for name in &names {
                cells.extend(ways.iter().map(|way| figure_cell(*way, name)));
            }
            if has_ratio {
                cells.extend(ways.iter().map(|way| ratio_cell(*way)));
            }
            cells.extend(ways.iter().skip(1).map(|way| change(ways[0], *way)));
            rows.push(Row {
                is_tenure: ways.iter().flatten().any(|(_, _, way)| way.is_tenure),
                is_first: index == 0,
                cells,
            });
        }
    }
    Table { header, rows }
}

fn against(column: &Column<'_>, first: &Column<'_>) -> String {
    let label = |column: &Column<'_>| column.label.clone().unwrap_or_default();
    format!("{}: times as good as {}", label(column), label(first))
}

/// Names the ratio after the baseline where all cases have the same.
fn ratio_name(columns: &[(&Column<'_>, Vec<&Case>)]) -> String {
    let cases = || {
        let all = columns
            .iter()
            .flat_map(|(column, cases)| cases.iter().map(|case| (column.experiment, *case)));
        all.filter(|(_, case)| case.tenure().is_some())
    };
    let units = || {
        cases().filter_map(|(experiment, case)| {
            let name = experiment.compared(case);
            Some(case.ways.iter().find_map(|way| way.figure(name))?.unit)
        })
    };
    let good = if units().all(|unit| good(unit) == "fast") {
        "fast"
    } else {
        "good"
    };
    let mut baselines = cases().map(|(_, case)| case.baseline().map(|way| way.name.as_str()));
    match baselines.next().flatten() {
        Some(name) if baselines.all(|other| other == Some(name)) => {
            format!("times as {good} as {name}")
        }
        _ => format!("times as {good} as the baseline"),
    }
}

/// The word for being better in a figure of that unit.
pub fn good(unit: Unit) -> &'static str {
    match unit {
        Unit::Seconds | Unit::PerSecond | Unit::BytesPerSecond => "fast",
        Unit::Bytes | Unit::Count | Unit::Ratio => "good",
    }
}

fn series_cell(key: String, unit: Unit, series: &Series) -> Cell {
    Cell::Number(Number {
        key: Some(key),
        value: series.median,
        text: spread_text(unit, series.median, series.minimum, series.maximum),
    })
}

fn key(column: &Column<'_>, case: &Case, way: &Way, figure: &str) -> String {
    let place = column.place.to_string();
    let experiment = column.experiment.name.as_str();
    [
        &place,
        experiment,
        &case.table,
        &case.name,
        &way.name,
        figure,
    ]
    .join("|")
}

fn figure_cell(way: Option<(&Column<'_>, &Case, &Way)>, name: &str) -> Cell {
    let found = way.and_then(|(column, case, way)| Some((column, case, way, way.figure(name)?)));
    found.map_or(Cell::Missing, |(column, case, way, figure)| {
        series_cell(key(column, case, way, name), figure.unit, &figure.series)
    })
}

/// The name that the ratio to the baseline has in a record.
const RATIO: &str = "times_as_good";

fn ratio_cell(way: Option<(&Column<'_>, &Case, &Way)>) -> Cell {
    match way {
        Some((_, _, way)) if way.is_baseline => Cell::text("baseline"),
        Some((column, case, way)) => match &way.times_as_good {
            Some(ratio) => series_cell(key(column, case, way, RATIO), Unit::Ratio, ratio),
            None => Cell::Missing,
        },
        None => Cell::Missing,
    }
}

/// How many times as good as in the first record the compared figure is: of the
/// medians, since the records were not made together.
fn change(
    first: Option<(&Column<'_>, &Case, &Way)>,
    later: Option<(&Column<'_>, &Case, &Way)>,
) -> Cell {
    let compared = |way: Option<(&Column<'_>, &Case, &Way)>| {
        let (column, case, way) = way?;
        let figure = way.figure(column.experiment.compared(case))?;
        Some((figure.unit, figure.series.median))
    };
    let ratio = || {
        let ((unit, first), (other, later)) = (compared(first)?, compared(later)?);
        let ratio = match better(unit) {
            Better::Less => first / later,
            Better::More => later / first,
        };
        (unit == other && ratio.is_finite()).then_some(ratio)
    };
    ratio().map_or(Cell::Missing, |ratio| {
        Cell::number(ratio, spread_text(Unit::Ratio, ratio, ratio, ratio))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_the_order_of_all_lists() {
        let lists = [vec!["a", "c"], vec!["a", "b", "c", "d"]];
        let names = in_order(lists.iter().map(|list| list.iter().copied()));
        assert_eq!(names, ["a", "b", "c", "d"]);
    }

    #[test]
    fn a_text_ends_in_whole_sentences() {
        let text = "With 1.04 times it is 1/4,625. Then 2.0 more. End.";
        assert_eq!(
            sentences(text),
            ["With 1.04 times it is 1/4,625.", "Then 2.0 more.", "End."]
        );
        assert!(sentences("").is_empty());
    }
}
