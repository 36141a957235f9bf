//! The figures of an experiment as tables.

use comfy_table::{Cell, Table};

use super::{
    experiment::{CaseResult, FigureResult, Unit, WayResult},
    grid,
    spread::spread_text,
    statistics::Series,
};
use crate::table::{number, table_with};

const HEADER_WIDTH: usize = 18;

/// Returns all figures: one table, or one below the other where the cases stand
/// in tables of their own.
pub fn text(cases: &[CaseResult]) -> String {
    let parts = cases.chunk_by(|a, b| a.table == b.table);
    let tables: Vec<String> = parts.map(part_text).collect();
    tables.join("\n")
}

fn part_text(cases: &[CaseResult]) -> String {
    let one_figure = has_one_figure(cases);
    match cases.first().map_or("", |case| &case.table) {
        "" if one_figure && cases.len() > 1 => matrix(cases).trim_fmt(),
        "" => list(cases).trim_fmt(),
        title if one_figure => format!("\n{title}\n{}", grid::text(cases)),
        title => format!("\n{title}\n{}", list(cases).trim_fmt()),
    }
}

/// Says whether one figure for each way of each case says it all.
fn has_one_figure(cases: &[CaseResult]) -> bool {
    let mut ways = cases.iter().flat_map(|case| &case.ways);
    ways.all(|way| way.figures.len() == 1)
}

/// A row for each case, a column for each way, and tenure's ratio.
fn matrix(cases: &[CaseResult]) -> Table {
    let mut names: Vec<&str> = Vec::new();
    for way in cases.iter().flat_map(|case| &case.ways) {
        if !names.contains(&way.name) {
            names.push(way.name);
        }
    }
    let ratio = format!("tenure: {}", ratio_name(cases));
    let header = [""].into_iter().chain(names.iter().copied());
    let mut table = table_with(header.chain([ratio.as_str()]), HEADER_WIDTH);
    for case in cases {
        let mut row = vec![Cell::new(&case.name)];
        for name in &names {
            let figure = case.way(name).and_then(|way| way.figures.first());
            row.push(number(figure.map_or("–".to_owned(), figure_text)));
        }
        row.push(number(case.tenure().map_or("–".to_owned(), series_text)));
        table.add_row(row);
    }
    table
}

/// A row for each way of each case, a column for each figure.
fn list(cases: &[CaseResult]) -> Table {
    let has_cases = cases.len() > 1;
    let ratio = ratio_name(cases);
    let mut header: Vec<&str> = Vec::new();
    header.extend(has_cases.then_some(""));
    header.push("way");
    let first_way = cases.iter().flat_map(|case| &case.ways).next();
    header.extend(
        first_way
            .iter()
            .flat_map(|way| &way.figures)
            .map(|figure| figure.name),
    );
    header.push(&ratio);
    let mut table = table_with(header, HEADER_WIDTH);
    for case in cases {
        for (index, way) in case.ways.iter().enumerate() {
            let mut row: Vec<Cell> = Vec::new();
            let case_name = if index == 0 { case.name.as_str() } else { "" };
            row.extend(has_cases.then(|| Cell::new(case_name)));
            row.push(Cell::new(way.name));
            row.extend(way.figures.iter().map(|figure| number(figure_text(figure))));
            row.push(number(ratio_cell(way)));
            table.add_row(row);
        }
    }
    table
}

/// Names the ratio after the baseline where all cases have the same.
fn ratio_name(cases: &[CaseResult]) -> String {
    let baseline = |case: &CaseResult| {
        let way = case.ways.iter().find(|way| way.is_baseline)?;
        Some(way.name)
    };
    let good = if cases.iter().all(is_about_time) {
        "fast"
    } else {
        "good"
    };
    let mut baselines = cases.iter().map(baseline);
    match baselines.next().flatten() {
        Some(name) if baselines.all(|other| other == Some(name)) => {
            format!("times as {good} as {name}")
        }
        _ => format!("times as {good} as the baseline"),
    }
}

/// Says whether times or rates are compared.
fn is_about_time(case: &CaseResult) -> bool {
    let compared = case.ways.iter().filter_map(|way| way.figure(case.compared));
    let mut units = compared.map(|figure| figure.unit);
    units.all(|unit| matches!(unit, Unit::Seconds | Unit::PerSecond | Unit::BytesPerSecond))
}

fn figure_text(figure: &FigureResult) -> String {
    let Series {
        median,
        minimum,
        maximum,
        ..
    } = figure.series;
    spread_text(figure.unit, median, minimum, maximum)
}

fn series_text(ratio: &Series) -> String {
    spread_text(Unit::Ratio, ratio.median, ratio.minimum, ratio.maximum)
}

fn ratio_cell(way: &WayResult) -> String {
    match &way.times_as_good {
        _ if way.is_baseline => "baseline".to_owned(),
        Some(ratio) => series_text(ratio),
        None => "–".to_owned(),
    }
}
