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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A case with munmap and tenure in it, which take so many seconds.
    fn case(name: &str, seconds: [f64; 2]) -> serde_json::Value {
        let way = |name: &str, seconds: f64| {
            let figure = json!({
                "name": "caller waits", "unit": "seconds", "samples": [seconds],
                "median": seconds, "minimum": seconds, "maximum": seconds
            });
            let is_tenure = name == "tenure";
            json!({"name": name, "is_tenure": is_tenure, "is_baseline": !is_tenure, "figures": [figure]})
        };
        let ways = [way("munmap", seconds[0]), way("tenure", seconds[1])];
        json!({"name": name, "rounds": 1, "ways": ways})
    }

    #[test]
    fn the_largest_in_base_pages_stands_beside_the_reference() {
        let cases = [
            case("unmap 16 blocks of 64 MiB", [9.0, 9.0]),
            case("unmap 1 GiB", [2.0, 1.0]),
            case("unmap 8 GiB", [8.0, 2.0]),
            case("unmap 4 GiB, huge pages", [9.0, 9.0]),
        ];
        let experiment = json!({"name": "free", "compared": "caller waits", "cases": cases});
        let experiment: Experiment = serde_json::from_value(experiment).unwrap();
        let (table, missing) = table("free", &[(None, &experiment)]).unwrap();
        // Nobody measured until all is freed, nor numbers of workers.
        assert_eq!((table.rows.len(), missing), (1, 7));
        assert_eq!(
            table.header,
            ["", "reference", "ratio", "tenure", "ratio", "measured with"]
        );
        let shown: Vec<&str> = table.rows[0].cells[2..].iter().map(Cell::shown).collect();
        assert_eq!(
            shown,
            [
                "1.86",
                "8.00\u{a0}s\u{a0}→\u{a0}2.00\u{a0}s",
                "4.00",
                "unmap 8 GiB"
            ]
        );
    }

    #[test]
    fn nothing_was_published_about_other_experiments() {
        assert!(table("heap", &[]).is_none());
    }

    #[test]
    fn the_published_figures_are_all_there() {
        let counts = [
            populate::published(),
            tables::lock(),
            tables::lazy(),
            tables::volatile(),
            tables::free(),
        ];
        assert_eq!(counts.map(|published| published.len()), [70, 6, 9, 2, 8]);
        let lazy = tables::lazy();
        let ratios: Vec<String> = lazy
            .iter()
            .map(|one| one.ratio().shown().to_owned())
            .collect();
        // As they were published.
        let published = [
            "1.87", "1.86", "1.74", "1.98", "1.80", "1.78", "1.75", "1.44", "1.16",
        ];
        assert_eq!(ratios, published);
    }
}
