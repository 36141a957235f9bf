//! A plot of the compared figure of each way, case by case.

use super::axis::Axis;
use crate::present::figures::Column;
use crate::record::{Better, Case, Experiment, Figure, Unit, Way};

/// With more marks than this, only the baseline, tenure's way and the best of the
/// others are drawn.
const MAX_MARKS: usize = 28;

/// A plot of one figure of one record.
pub struct Plot<'a> {
    /// The label of the record, where there are several.
    pub label: Option<String>,
    pub figure: &'a str,
    pub better: Better,
    pub axis: Axis,
    /// Whether some ways were left out.
    pub is_selection: bool,
    /// Whether the names of the cases say more than the title.
    pub has_names: bool,
    /// From top to bottom, with a mark for each way.
    pub cases: Vec<(&'a Case, Vec<Mark<'a>>)>,
}

pub type Mark<'a> = (&'a Way, &'a Figure);

/// Makes, for each figure that is compared in the cases of `columns`, a plot for
/// each record, all with the same axis.
pub fn plots<'a>(columns: &[Column<'a>], has_names: bool) -> Vec<Plot<'a>> {
    let mut figures: Vec<(&str, Unit)> = Vec::new();
    for column in columns {
        let cases = column.cases.iter();
        for figure in cases.filter_map(|case| compared(column.experiment, case)) {
            if !figures.contains(&figure) {
                figures.push(figure);
            }
        }
    }
    let of_figure = |&figure: &_| of_figure(columns, figure, has_names);
    figures.iter().flat_map(of_figure).collect()
}

fn compared<'a>(experiment: &'a Experiment, case: &'a Case) -> Option<(&'a str, Unit)> {
    let name = experiment.compared(case);
    let figure = case.ways.iter().find_map(|way| way.figure(name))?;
    Some((name, figure.unit))
}

fn of_figure<'a>(
    columns: &[Column<'a>],
    figure: (&'a str, Unit),
    has_names: bool,
) -> Vec<Plot<'a>> {
    let better = figure.1.better();
    let of_column = |column: &Column<'a>| -> Vec<(&'a Case, Vec<Mark<'a>>)> {
        let cases = column.cases.iter().copied();
        let cases = cases.filter(|case| compared(column.experiment, case) == Some(figure));
        let mark = |way: &'a Way| Some((way, way.figure(figure.0)?));
        cases
            .map(|case| (case, case.ways.iter().filter_map(mark).collect()))
            .collect()
    };
    let mut drawn: Vec<_> = columns.iter().map(of_column).collect();
    let count = |cases: &Vec<(_, Vec<_>)>| cases.iter().map(|case| case.1.len()).sum::<usize>();
    let is_selection = drawn.iter().any(|cases| count(cases) > MAX_MARKS);
    if is_selection {
        for (_, marks) in drawn.iter_mut().flatten() {
            keep_few(marks, better);
        }
    }
    let series = || {
        let marks = drawn.iter().flatten().flat_map(|(_, marks)| marks);
        marks.map(|(_, figure)| &figure.series)
    };
    let min = series().map(|series| series.minimum).reduce(f64::min);
    let max = series().map(|series| series.maximum).reduce(f64::max);
    let (Some(min), Some(max)) = (min, max) else {
        return Vec::new();
    };
    let axis = Axis::new(figure.1, min, max);
    let plot = |(column, cases): (&Column<'a>, _)| Plot {
        label: column.label.clone(),
        figure: figure.0,
        better,
        axis: axis.clone(),
        is_selection,
        has_names,
        cases,
    };
    let all = columns.iter().zip(drawn).map(plot);
    all.filter(|plot| !plot.cases.is_empty()).collect()
}

/// Keeps tenure's way, the baseline and the best of the others.
fn keep_few(marks: &mut Vec<Mark<'_>>, better: Better) {
    let is_other = |way: &Way| !way.is_tenure && !way.is_baseline;
    let others = marks.iter().filter(|(way, _)| is_other(way));
    let by_median = |a: &&Mark<'_>, b: &&Mark<'_>| a.1.series.median.total_cmp(&b.1.series.median);
    let best = match better {
        Better::More => others.max_by(by_median),
        Better::Less => others.min_by(by_median),
    };
    let best = best.map(|(way, _)| way.name.as_str());
    marks.retain(|(way, _)| !is_other(way) || Some(way.name.as_str()) == best);
}

#[cfg(test)]
#[path = "../../tests/unit/report/plot.rs"]
mod tests;
