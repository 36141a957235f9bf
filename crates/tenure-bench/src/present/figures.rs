//! The figures of some cases as a table.

use super::table::{Cell, Number, Row, Table, in_order};
use crate::record::{Better, Case, Experiment, Series, Unit, Way};
use crate::text::{percent_text, short_spread_text, significant, spread_text};

/// A record, and those of its cases that stand in a table.
pub struct Column<'a> {
    /// The record's place among all.
    pub place: usize,
    /// The record's name, where there are several.
    pub label: Option<String>,
    pub experiment: &'a Experiment,
    pub cases: Vec<&'a Case>,
}

/// A way of a case in a record.
#[derive(Clone, Copy)]
struct At<'a> {
    column: &'a Column<'a>,
    case: &'a Case,
    way: &'a Way,
}

/// The name that the ratio to the baseline has in a record, ...
const RATIO: &str = "times_as_good";
/// ... and how near tenure's way came to the best of those that it chooses from.
const CHOICE: &str = "tenure_worse_by";

/// Makes a row for each way of each case; for each figure and for the ratio to the
/// baseline a column for each record, and at the end how the records compare.
pub fn table(columns: &[Column<'_>], has_names: bool) -> Table {
    let cases = || columns.iter().flat_map(|column| &column.cases);
    let ways = || cases().flat_map(|case| &case.ways);
    let figures = ways().map(|way| way.figures.iter().map(|figure| &*figure.name));
    let figures = in_order(figures).into_iter();
    let mut shown: Vec<_> = figures.map(|name| (name, name.to_owned())).collect();
    if ways().any(|way| way.times_as_good.is_some()) {
        shown.push((RATIO, ratio_name(columns)));
    }
    if cases().any(|case| case.choice.is_some()) {
        shown.push((CHOICE, "worse than its best choice".to_owned()));
    }
    let mut header = vec!["way".to_owned()];
    for (_, name) in &shown {
        header.extend(columns.iter().map(|column| match &column.label {
            Some(label) => format!("{name}, {label}"),
            None => name.clone(),
        }));
    }
    let labels: Vec<_> = columns.iter().flat_map(|column| &column.label).collect();
    let later = labels.iter().skip(1);
    header.extend(later.map(|label| format!("{label}: times as good as {}", labels[0])));
    let names = columns
        .iter()
        .map(|column| column.cases.iter().map(|case| &*case.name));
    let mut rows = Vec::new();
    for name in in_order(names) {
        let found: Vec<_> = columns.iter().map(|column| column.case(name)).collect();
        for (index, way) in way_names(found.iter().flatten()).into_iter().enumerate() {
            let at = |(column, case): (_, &Option<_>)| At::find(column, (*case)?, way);
            let ways: Vec<Option<At<'_>>> = columns.iter().zip(&found).map(at).collect();
            let mut cells = vec![Cell::text(way)];
            for (name, _) in &shown {
                cells.extend(
                    ways.iter()
                        .map(|at| Cell::or_missing(at.and_then(|at| at.cell(name)))),
                );
            }
            let later = ways.iter().skip(1);
            cells.extend(later.map(|at| Cell::or_missing(change(ways[0], *at))));
            if has_names {
                cells.insert(0, Cell::text(if index == 0 { name } else { "" }));
            }
            rows.push(Row {
                is_tenure: ways.iter().flatten().any(|at| at.way.is_tenure),
                is_first: index == 0,
                cells,
            });
        }
    }
    if has_names {
        header.insert(0, "case".to_owned());
    }
    Table { header, rows }
}

fn way_names<'a>(cases: impl Iterator<Item = &'a &'a Case>) -> Vec<&'a str> {
    in_order(cases.map(|case| case.ways.iter().map(|way| &*way.name)))
}

impl<'a> Column<'a> {
    /// Returns the record's name as it stands behind a heading.
    pub fn suffix(&self) -> String {
        let label = self.label.as_ref();
        label.map_or(String::new(), |label| format!(", {label}"))
    }

    fn case(&self, name: &str) -> Option<&'a Case> {
        self.cases.iter().copied().find(|case| case.name == name)
    }
}

impl<'a> At<'a> {
    fn find(column: &'a Column<'a>, case: &'a Case, way: &str) -> Option<Self> {
        let way = case.way(way)?;
        Some(Self { column, case, way })
    }

    fn cell(self, name: &str) -> Option<Cell> {
        let Self { column, case, way } = self;
        let spread = |unit, one: &Series| spread_text(unit, one.median, one.minimum, one.maximum);
        let (value, text) = match name {
            RATIO if way.is_baseline => return Some(Cell::text("baseline")),
            RATIO => {
                let ratio = way.times_as_good.as_ref()?;
                (ratio.median, spread(Unit::Ratio, ratio))
            }
            CHOICE => match &case.choice {
                Some(choice) if way.is_tenure => {
                    let percent = percent_text(choice.tenure_worse_by);
                    (
                        choice.tenure_worse_by,
                        format!("{percent} ({})", choice.best),
                    )
                }
                _ => return Some(Cell::text("")),
            },
            name => {
                let figure = way.figure(name)?;
                (figure.series.median, spread(figure.unit, &figure.series))
            }
        };
        let place = column.place.to_string();
        let key = [
            &place,
            &column.experiment.name,
            &case.table,
            &case.name,
            &way.name,
            name,
        ];
        let key = Some(key.join("|"));
        Some(Cell::Number(Number { key, value, text }))
    }
}

/// Compares the compared figures of two records: their medians, since the records
/// were not made together.
fn change(first: Option<At<'_>>, later: Option<At<'_>>) -> Option<Cell> {
    let compared = |at: At<'_>| {
        let figure = at.way.figure(at.column.experiment.compared(at.case))?;
        Some((figure.unit, figure.series.median))
    };
    let ((unit, first), (other, later)) = (compared(first?)?, compared(later?)?);
    let ratio = match unit.better() {
        Better::Less => first / later,
        Better::More => later / first,
    };
    (unit == other && ratio.is_finite()).then(|| Cell::number(ratio, significant(ratio)))
}

/// Names the ratio after the baseline where all cases have the same.
fn ratio_name(columns: &[Column<'_>]) -> String {
    let (mut good, mut baselines) = ("fast", Vec::new());
    for column in columns {
        for case in &column.cases {
            let Some(baseline) = case.baseline() else {
                continue;
            };
            baselines.push(&baseline.name);
            let name = column.experiment.compared(case);
            let figure = case.ways.iter().find_map(|way| way.figure(name));
            if figure.is_some_and(|figure| figure.unit.good() != good) {
                good = "good";
            }
        }
    }
    baselines.dedup();
    match baselines[..] {
        [name] => format!("times as {good} as {name}"),
        _ => format!("times as {good} as the baseline"),
    }
}

/// Makes a row for each way and a column for each case, of the first figure: many
/// ways of doing the same to a few things. A star marks the best of the ways that
/// tenure chooses from, and the last row says how near tenure's way came to it.
pub fn grid(cases: &[&Case]) -> Table {
    let row = |name: String, cell: &dyn Fn(&Case) -> Option<Cell>| {
        let cells = cases.iter().map(|case| Cell::or_missing(cell(case)));
        Row::of([Cell::Text(name)].into_iter().chain(cells).collect())
    };
    let ways = way_names(cases.iter()).into_iter();
    let mut rows: Vec<Row> = ways
        .map(|name| row(name.to_owned(), &|case| grid_cell(case, name)))
        .collect();
    let chosen = cases.iter().find(|case| case.choice.is_some());
    if let Some(tenure) = chosen.and_then(|case| case.tenure()) {
        rows.push(row(format!("{} against *", tenure.name), &|case| {
            let worse_by = case.choice.as_ref()?.tenure_worse_by;
            Some(Cell::number(worse_by, percent_text(worse_by)))
        }));
    }
    let names = cases.iter().map(|case| case.name.clone());
    let header = [String::new()].into_iter().chain(names).collect();
    Table { header, rows }
}

fn grid_cell(case: &Case, way: &str) -> Option<Cell> {
    let figure = case.way(way)?.figures.first()?;
    let is_best = case
        .choice
        .as_ref()
        .is_some_and(|choice| choice.best == way);
    let star = if is_best { "*" } else { "" };
    let text = format!("{star}{}", short_spread_text(figure));
    Some(Cell::number(figure.series.median, text))
}
