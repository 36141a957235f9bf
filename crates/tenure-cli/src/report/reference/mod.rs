//! The published figures that the experiments are held against, and where in a
//! record the same comparison stands. They come from other machines: what can be
//! compared is the ratio, not the time.

mod populate;
mod tables;

use super::{
    document::{Cell, Row, Table},
    record::{Case, Experiment, Figure, better},
};
use crate::bench::{Better, Series, Unit, spread_text};
use crate::text::ratio_text;

/// A published comparison of two ways.
struct Published {
    /// What is compared, and on which machine.
    what: String,
    /// The figure of the older way.
    older: f64,
    /// The figure of the newer one.
    newer: f64,
    /// Their unit.
    unit: Unit,
    /// Where the same stands in a record.
    here: Here,
}

/// Where in a record a published comparison stands.
struct Here {
    /// Finds the case: the last one that has the ways and that this accepts.
    is_case: Box<dyn Fn(&Case) -> bool>,
    /// The figure.
    figure: &'static str,
    /// The older way.
    older: &'static str,
    /// The newer way, where it is not tenure's.
    newer: Option<&'static str>,
    /// Whether tenure's way is to be compared with the older one.
    has_tenure: bool,
}

/// Two ways that were measured here.
struct Pair<'a> {
    older: &'a Figure,
    newer: &'a Figure,
    /// Pair by pair.
    ratio: Option<Series>,
}

/// Makes the table of the experiment `name`, with two columns for each record;
/// and counts the published comparisons that no record has. `None` where nothing
/// was published.
pub fn table(name: &str, records: &[(Option<String>, &Experiment)]) -> Option<(Table, usize)> {
    let published = match name {
        "populate" => populate::published(),
        "lock" => tables::lock(),
        "lazy" => tables::lazy(),
        "volatile" => tables::volatile(),
        "free" => tables::free(),
        _ => return None,
    };
    let mut header = vec![String::new(), "reference".to_owned(), "ratio".to_owned()];
    for (label, _) in records {
        let of = label
            .as_ref()
            .map_or(String::new(), |label| format!(", {label}"));
        let columns = ["here", "ratio", "tenure", "ratio", "measured with"];
        header.extend(columns.map(|column| format!("{column}{of}")));
    }
    let mut rows = Vec::new();
    let mut missing = 0;
    for one in &published {
        let found: Vec<Option<&Case>> = records
            .iter()
            .map(|(_, experiment)| one.here.case(experiment))
            .collect();
        if found.iter().all(Option::is_none) {
            missing += 1;
            continue;
        }
        let mut cells = vec![Cell::text(&one.what), one.change(), one.ratio()];
        for case in found {
            cells.extend(one.here.cells(case));
        }
        rows.push(Row {
            cells,
            ..Row::default()
        });
    }
    let mut table = Table { header, rows };
    table.drop_empty_columns();
    Some((table, missing))
}

impl Published {
    fn change(&self) -> Cell {
        Cell::Text(change_text(self.unit, self.older, self.newer))
    }

    fn ratio(&self) -> Cell {
        let ratio = match better(self.unit) {
            Better::Less => self.older / self.newer,
            Better::More => self.newer / self.older,
        };
        Cell::number(ratio, ratio_text(ratio))
    }
}

impl Here {
    fn case<'a>(&self, experiment: &'a Experiment) -> Option<&'a Case> {
        let has_both = |case: &&Case| {
            let pairs = self.pairs(case);
            (self.is_case)(case) && pairs.iter().any(Option::is_some)
        };
        experiment.cases.iter().rev().find(has_both)
    }

    /// Returns the same ways, and the older one with tenure's.
    fn pairs<'a>(&self, case: &'a Case) -> [Option<Pair<'a>>; 2] {
        let older = || case.way(self.older)?.figure(self.figure);
        let pair = |newer: Option<&'a Figure>| {
            let (older, newer) = (older()?, newer?);
            let ratio = newer.times_as_good(older);
            Some(Pair {
                older,
                newer,
                ratio,
            })
        };
        let same = self.newer.and_then(|name| case.way(name));
        let tenure = self.has_tenure.then(|| case.tenure()).flatten();
        [same, tenure].map(|way| pair(way.and_then(|way| way.figure(self.figure))))
    }

    fn cells(&self, case: Option<&Case>) -> Vec<Cell> {
        let Some(case) = case else {
            return vec![Cell::Missing; 5];
        };
        let name = match case.table.as_str() {
            "" => case.name.clone(),
            table if case.name.is_empty() => table.to_owned(),
            table => format!("{table}: {}", case.name),
        };
        let mut cells = Vec::new();
        for pair in self.pairs(case) {
            cells.extend(match pair {
                None => [Cell::Missing, Cell::Missing],
                Some(pair) => [pair.change(), pair.ratio()],
            });
        }
        cells.push(Cell::text(name));
        cells
    }
}

impl Pair<'_> {
    fn change(&self) -> Cell {
        let (older, newer) = (self.older.series.median, self.newer.series.median);
        Cell::Text(change_text(self.older.unit, older, newer))
    }

    fn ratio(&self) -> Cell {
        match &self.ratio {
            None => Cell::Missing,
            Some(ratio) => Cell::number(
                ratio.median,
                spread_text(Unit::Ratio, ratio.median, ratio.minimum, ratio.maximum),
            ),
        }
    }
}

fn change_text(unit: Unit, older: f64, newer: f64) -> String {
    let text = |value| spread_text(unit, value, value, value);
    // In one line, also where the column is narrow.
    format!("{} → {}", text(older), text(newer)).replace(' ', "\u{a0}")
}

impl Table {
    /// Drops the columns in which nothing stands.
    fn drop_empty_columns(&mut self) {
        let is_empty = |rows: &[Row], column: usize| {
            rows.iter()
                .all(|row| matches!(row.cells[column], Cell::Missing))
        };
        for column in (0..self.header.len()).rev() {
            if is_empty(&self.rows, column) {
                self.header.remove(column);
                for row in &mut self.rows {
                    row.cells.remove(column);
                }
            }
        }
    }
}
