//! The figures of some cases as a table, in which records stand side by side.

use super::{
    compose::{Column, in_order},
    document::{Cell, Number, Row, Table},
    record::{Case, Way, better},
};
use crate::bench::{Better, Series, Unit, spread_text};
use crate::text::percent_text;

/// Makes a row for each way of each case; for each figure and for the ratio to the
/// baseline a column for each record, and at the end how the records compare.
pub fn table(columns: &[(&Column<'_>, Vec<&Case>)], has_names: bool) -> Table {
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
    let has_choice = all_cases().any(|case| case.choice.is_some());
    if has_choice {
        header.extend(
            columns
                .iter()
                .map(|(column, _)| of(column, "worse than its best choice")),
        );
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
            if has_choice {
                cells.extend(ways.iter().map(|way| choice_cell(*way)));
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
        all.filter(|(_, case)| case.baseline().is_some())
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

/// How near tenure's way came to the best of those that it chooses from.
fn choice_cell(way: Option<(&Column<'_>, &Case, &Way)>) -> Cell {
    let own = way.filter(|(_, _, way)| way.is_tenure);
    let found =
        own.and_then(|(column, case, way)| Some((column, case, way, case.choice.as_ref()?)));
    found.map_or(Cell::text(""), |(column, case, way, choice)| {
        Cell::Number(Number {
            key: Some(key(column, case, way, "tenure_worse_by")),
            value: choice.tenure_worse_by,
            text: format!("{} ({})", percent_text(choice.tenure_worse_by), choice.best),
        })
    })
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
