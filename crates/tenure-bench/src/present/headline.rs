//! The headline: one figure for each experiment, and where tenure is slower.

use super::figures::Column;
use super::finding::{self, Finding, Selector};
use super::table::{Cell, Row, Table};
use crate::record::{Case, Experiment, Figure, Series};
use crate::table::in_short_lines;
use crate::text::{median_text, significant};

/// With the header and three rules a terminal has twelve lines.
const MAX_ROWS: usize = 8;
/// How many characters a terminal shows of the figure's description.
const MAX_WIDTH: usize = 40;

/// A figure of tenure's way, and the same of another way.
struct Line<'a> {
    what: String,
    own: &'a Figure,
    older: &'a Figure,
    older_way: &'a str,
    ratio: Option<Series>,
}

impl<'a> Line<'a> {
    fn of_finding(finding: Finding<'a>) -> Self {
        let Selector { what, headline, .. } = finding.selector;
        // A cell of a table, not the beginning of a sentence.
        let cell = what.strip_prefix("To ").unwrap_or(what);
        let ends = [" takes", " is", " are"];
        let cell = ends
            .iter()
            .find_map(|end| cell.strip_suffix(end))
            .unwrap_or(cell);
        let words = headline.as_deref().unwrap_or(cell);
        Self {
            what: finding.what(words),
            own: finding.own,
            older: finding.older,
            older_way: &finding.baseline.name,
            ratio: finding.ratio,
        }
    }

    /// Takes the compared figure of `case`, and that of its baseline.
    fn of_case(experiment: &'a Experiment, case: &'a Case) -> Option<Self> {
        let name = experiment.compared(case);
        let (way, baseline) = (case.tenure()?, case.baseline()?);
        Some(Self {
            what: format!("{}: {name}", case.place()),
            own: way.figure(name)?,
            older: baseline.figure(name)?,
            older_way: &baseline.name,
            ratio: way.times_as_good.clone().filter(|_| case.rounds > 1),
        })
    }

    fn median(&self) -> f64 {
        self.ratio.as_ref().map_or(1.0, |ratio| ratio.median)
    }

    fn row(&self, first: &str, is_tenure: bool) -> Row {
        let ratio = self.ratio.as_ref().map(|ratio| {
            let times = significant(ratio.median);
            let text = format!("{times} times as {}", self.own.unit.good());
            Cell::number(ratio.median, text)
        });
        let cells = vec![
            Cell::text(first),
            Cell::text(&self.what),
            Cell::Text(format!("{}, {}", median_text(self.older), self.older_way)),
            Cell::number(self.own.series.median, median_text(self.own)),
            Cell::or_missing(ratio),
        ];
        Row {
            is_tenure,
            is_first: is_tenure,
            cells,
        }
    }
}

/// Makes the table for a terminal: a line for each experiment, and the worst of those
/// cases in which tenure is slower in every round.
pub fn table(experiments: &[Experiment]) -> Table {
    let named = experiments.iter().map(|one| (one.name.clone(), one));
    let mut table = table_of(named.collect(), MAX_ROWS);
    for row in &mut table.rows {
        let words = in_short_lines(row.cells[1].shown(), MAX_WIDTH);
        let mut lines = words.lines();
        let more = if words.contains('\n') { " …" } else { "" };
        row.cells[1] = Cell::Text(lines.next().unwrap_or_default().to_owned() + more);
    }
    table
}

/// Makes the table for a page: for each record, with the worst case of each experiment.
pub fn page<'a>(columns: impl Iterator<Item = &'a Column<'a>>) -> Table {
    let named = columns.map(|column| {
        (
            column.experiment.name.clone() + &column.suffix(),
            column.experiment,
        )
    });
    table_of(named.collect(), usize::MAX)
}

fn table_of(experiments: Vec<(String, &Experiment)>, max_rows: usize) -> Table {
    let all = experiments.into_iter();
    let lines = all.filter_map(|(name, one)| Some((name, headline(one)?, worst(one))));
    let lines: Vec<_> = lines.collect();
    let worst = lines.iter().filter_map(|(_, _, worst)| worst.as_ref());
    let mut ratios: Vec<f64> = worst.map(Line::median).collect();
    ratios.sort_by(f64::total_cmp);
    let too_much = ratios.get(max_rows.saturating_sub(lines.len()));
    let mut rows = Vec::new();
    for (name, line, worst) in &lines {
        rows.push(line.row(name, true));
        let is_kept = |worst: &&Line<'_>| too_much.is_none_or(|ratio| worst.median() < *ratio);
        let worst = worst.as_ref().filter(is_kept);
        rows.extend(worst.map(|worst| worst.row("at worst", false)));
    }
    let header = ["verb", "measured", "older way", "tenure", "tenure is"];
    let header = header.map(str::to_owned).into();
    Table { header, rows }
}

/// Finds what a selector calls the headline, or else the case with the median ratio.
fn headline(experiment: &Experiment) -> Option<Line<'_>> {
    let selected = findings(experiment, |selector| selector.headline.is_some()).last();
    selected.or_else(|| {
        let mut lines: Vec<_> = cases(experiment).collect();
        lines.sort_by(|a, b| a.median().total_cmp(&b.median()));
        let middle = lines.len() / 2;
        lines.into_iter().nth(middle)
    })
}

/// Finds the least ratio of those that are below 1 in every round.
fn worst(experiment: &Experiment) -> Option<Line<'_>> {
    let found = findings(experiment, |selector| selector.way == "tenure");
    let is_slower = |line: &Line<'_>| line.ratio.as_ref().is_some_and(|ratio| ratio.maximum < 1.0);
    let all = found.chain(cases(experiment)).filter(is_slower);
    all.min_by(|a, b| a.median().total_cmp(&b.median()))
}

fn cases(experiment: &Experiment) -> impl Iterator<Item = Line<'_>> {
    let cases = experiment.cases.iter();
    cases.filter_map(|case| Line::of_case(experiment, case))
}

fn findings(
    experiment: &Experiment,
    is_meant: fn(&Selector) -> bool,
) -> impl Iterator<Item = Line<'_>> {
    let selectors = finding::selectors().iter();
    let own = selectors.filter(move |one| one.experiment == experiment.name && is_meant(one));
    own.flat_map(|one| finding::find(one, experiment))
        .map(Line::of_finding)
}

#[cfg(test)]
#[path = "../../tests/unit/present/headline.rs"]
mod tests;
