//! The published figures that the experiments repeat, and where in a record the same
//! comparison stands. They come from other machines, so that only the ratios can be
//! compared, not the times.

use std::{collections::BTreeMap, sync::OnceLock};

use serde::Deserialize;

use super::block::Block;
use crate::present::figures::Column;
use crate::present::table::{Cell, Row, Table};
use crate::record::{Case, Experiment, Figure, Series, Unit};
use crate::text::{median_text, spread_text};

/// Returns the published figures of an experiment, by its name.
fn reference(experiment: &str) -> Option<&'static Reference> {
    static ALL: OnceLock<BTreeMap<String, Reference>> = OnceLock::new();
    let text = include_str!("../../data/reference.json");
    let all = ALL.get_or_init(|| serde_json::from_str(text).expect("the reference is valid JSON"));
    all.get(experiment)
}

#[derive(Deserialize)]
struct Reference {
    /// The kernel and the machine.
    source: String,
    unit: Unit,
    published: Vec<Published>,
}

/// Comparisons of two ways. A name that ends in `*` is a prefix.
#[derive(Deserialize)]
struct Published {
    /// The compared ways, with `{case}` in it.
    what: String,
    /// The tables of a record that are the same or the nearest; empty for all.
    #[serde(default)]
    table: Vec<String>,
    /// Parts that the name of the case must not have.
    #[serde(default)]
    without: Vec<String>,
    /// The name of the case begins with a number of threads that is at most this.
    max_threads: Option<u32>,
    figure: String,
    older_way: String,
    /// The newer way, where it is not tenure's.
    newer_way: Option<String>,
    /// Whether tenure's way stands beside it as well.
    #[serde(default = "yes")]
    is_beside_tenure: bool,
    /// The name of the case, empty for all, and the figures of the older and the newer way.
    rows: Vec<(String, f64, f64)>,
}

fn yes() -> bool {
    true
}

/// The figures of an older and a newer way that were measured here.
type Pair<'a> = (&'a Figure, &'a Figure);

impl Published {
    /// Finds the last case with this comparison: the published ways, and the older
    /// one with tenure's.
    fn find<'a>(
        &self,
        name: &str,
        experiment: &'a Experiment,
    ) -> Option<(&'a Case, [Option<Pair<'a>>; 2])> {
        let cases = experiment.cases.iter().rev();
        cases
            .filter(|case| self.is_in(name, case))
            .find_map(|case| {
                let older = case.way(&self.older_way)?.figure(&self.figure)?;
                let same = self.newer_way.as_ref().and_then(|name| case.way(name));
                let tenure = case.tenure().filter(|_| self.is_beside_tenure);
                let pairs = [same, tenure].map(|way| Some((older, way?.figure(&self.figure)?)));
                pairs.iter().any(Option::is_some).then_some((case, pairs))
            })
    }

    fn is_in(&self, name: &str, case: &Case) -> bool {
        let is = |pattern: &str, text: &str| match pattern.strip_suffix('*') {
            Some(start) => text.starts_with(start),
            // The quick sizes have base pages only, and do not say so.
            None => text == pattern || pattern.strip_suffix(" 4 KiB") == Some(text),
        };
        let threads = || case.name.split(' ').next()?.parse().ok();
        let has_threads = |max| threads().is_some_and(|threads: u32| threads <= max);
        (self.table.is_empty() || self.table.iter().any(|table| is(table, &case.table)))
            && (name.is_empty() || is(name, &case.name))
            && !self.without.iter().any(|part| case.name.contains(part))
            && self.max_threads.is_none_or(has_threads)
    }
}

/// Makes the table of the experiment `name`, and a note on where the published
/// figures come from and how many no record has. Empty where nothing was published.
pub fn blocks(name: &str, columns: &[Column<'_>]) -> Vec<Block<'static>> {
    let Some(reference) = reference(name).filter(|_| !columns.is_empty()) else {
        return Vec::new();
    };
    let mut header = ["", "reference", "ratio"].map(str::to_owned).to_vec();
    for column in columns {
        let label = column.suffix();
        let names = ["here", "ratio", "tenure", "ratio", "measured with"];
        header.extend(names.map(|name| format!("{name}{label}")));
    }
    let (mut rows, mut missing) = (Vec::new(), 0);
    for one in &reference.published {
        for (name, older, newer) in &one.rows {
            let found = columns
                .iter()
                .map(|column| one.find(name, column.experiment));
            let found: Vec<_> = found.collect();
            if found.iter().all(Option::is_none) {
                missing += 1;
                continue;
            }
            let published = [older, newer].map(|&value| figure(reference.unit, value));
            let mut cells = vec![Cell::Text(one.what.replace("{case}", name))];
            cells.extend(pair_cells(Some((&published[0], &published[1]))));
            for found in found {
                let pairs = found.map_or([None; 2], |(_, pairs)| pairs);
                cells.extend(pairs.into_iter().flat_map(pair_cells));
                cells.push(found.map_or(Cell::Missing, |(case, _)| Cell::Text(case.place())));
            }
            rows.push(Row::of(cells));
        }
    }
    let mut note = format!(
        "Reference: {}. a → b: from the older way to the newer one; the ratio says how many times \
         as good the newer one is.",
        reference.source
    );
    if missing > 0 {
        note += &format!(
            " {missing} more published comparisons were not measured here; tenure bench {name} \
             --full measures all that the headroom allows."
        );
    }
    let heading = Block::heading(3, "Published figures beside those measured here");
    let table = (!rows.is_empty()).then(|| without_empty_columns(header, rows));
    let table = table.map(|table| Block::Table("reference", table));
    let all = [Some(heading), table, Some(Block::note(note))];
    all.into_iter().flatten().collect()
}

fn figure(unit: Unit, value: f64) -> Figure {
    Figure {
        name: String::new(),
        unit,
        series: Series::new(vec![value]).expect("published figures are finite"),
    }
}

/// From the older figure to the newer one, and how many times as good that is.
fn pair_cells(pair: Option<Pair<'_>>) -> [Cell; 2] {
    let Some((older, newer)) = pair else {
        return [Cell::Missing, Cell::Missing];
    };
    let change = [older, newer].map(median_text);
    let ratio = newer.times_as_good(older).map(|ratio| {
        let text = spread_text(Unit::Ratio, ratio.median, ratio.minimum, ratio.maximum);
        Cell::number(ratio.median, text)
    });
    // In one line, also where the column is narrow.
    let change = change.join(" → ").replace(' ', "\u{a0}");
    [Cell::Text(change), Cell::or_missing(ratio)]
}

fn without_empty_columns(mut header: Vec<String>, mut rows: Vec<Row>) -> Table {
    for column in (0..header.len()).rev() {
        let is_missing = |row: &Row| matches!(row.cells[column], Cell::Missing);
        if rows.iter().all(is_missing) {
            header.remove(column);
            for row in &mut rows {
                row.cells.remove(column);
            }
        }
    }
    Table { header, rows }
}

#[cfg(test)]
#[path = "../../tests/unit/report/reference.rs"]
mod tests;
