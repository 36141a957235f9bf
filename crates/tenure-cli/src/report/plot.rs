//! What a plot shows: the compared figure of each way, case by case.

use super::{
    record::{Case, Experiment, better},
    scale::Scale,
};
use crate::bench::{Better, Unit, spread_text};

/// With more marks than this only the baseline, the best of the others and
/// tenure's way are drawn.
const MOST_MARKS: usize = 28;

/// A plot of one figure.
pub struct Plot {
    /// Which record, where there are several.
    pub label: Option<String>,
    /// The figure.
    pub figure: String,
    /// Whether more of it is better.
    pub more_is_better: bool,
    /// The axis.
    pub scale: Scale,
    /// Whether some ways were left out.
    pub is_selection: bool,
    /// Whether the names of the cases say more than the title.
    pub has_names: bool,
    /// What is drawn, from top to bottom.
    pub cases: Vec<PlotCase>,
}

/// The marks of a case.
pub struct PlotCase {
    /// Its name.
    pub name: String,
    /// A mark for each way.
    pub marks: Vec<Mark>,
}

/// What a way is in its case.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// Tenure's way.
    Tenure,
    /// The way that the others are compared with.
    Baseline,
    /// Another one.
    Other,
}

/// A median and the extremes.
pub struct Mark {
    /// The name of the way.
    pub way: String,
    /// What it is.
    pub role: Role,
    /// The middle sample.
    pub median: f64,
    /// The smallest.
    pub minimum: f64,
    /// The largest.
    pub maximum: f64,
    /// All three, as people read them.
    pub text: String,
}

/// The compared figure and its unit: what has to be the same in a plot.
type Compared = (String, Unit);

/// Makes the plots of some cases of several records: for each figure that is
/// compared in them one for each record, with the same axis.
pub fn plots(records: &[(Option<String>, &Experiment, Vec<&Case>)]) -> Vec<Plot> {
    let mut all: Vec<Compared> = Vec::new();
    for (_, experiment, cases) in records {
        for compared in cases.iter().filter_map(|case| compared(experiment, case)) {
            if !all.contains(&compared) {
                all.push(compared);
            }
        }
    }
    all.iter()
        .flat_map(|compared| of_figure(records, compared))
        .collect()
}

fn compared(experiment: &Experiment, case: &Case) -> Option<Compared> {
    let name = experiment.compared(case);
    let figure = case.ways.iter().find_map(|way| way.figure(name))?;
    Some((name.to_owned(), figure.unit))
}

fn of_figure(
    records: &[(Option<String>, &Experiment, Vec<&Case>)],
    figure: &Compared,
) -> Vec<Plot> {
    let more_is_better = better(figure.1) == Better::More;
    let of_record = |experiment: &Experiment, all: &[&Case]| -> Vec<PlotCase> {
        let wanted = |case: &&&Case| compared(experiment, case).as_ref() == Some(figure);
        let cases = all.iter().filter(wanted).map(|case| PlotCase {
            name: case.name.clone(),
            marks: marks(case, &figure.0),
        });
        cases.collect()
    };
    let mut drawn: Vec<(Option<String>, Vec<PlotCase>)> = records
        .iter()
        .map(|(label, experiment, cases)| (label.clone(), of_record(experiment, cases)))
        .filter(|(_, cases)| !cases.is_empty())
        .collect();
    let count = |cases: &[PlotCase]| cases.iter().map(|case| case.marks.len()).sum::<usize>();
    let is_selection = drawn.iter().any(|(_, cases)| count(cases) > MOST_MARKS);
    if is_selection {
        for case in drawn.iter_mut().flat_map(|(_, cases)| cases) {
            keep_few(&mut case.marks, more_is_better);
        }
    }
    let marks = || {
        let cases = drawn.iter().flat_map(|(_, cases)| cases);
        cases.flat_map(|case| &case.marks)
    };
    let least = marks().map(|mark| mark.minimum).reduce(f64::min);
    let most = marks().map(|mark| mark.maximum).reduce(f64::max);
    let (Some(least), Some(most)) = (least, most) else {
        return Vec::new();
    };
    let scale = Scale::new(figure.1, least, most);
    let plot = |(label, cases)| Plot {
        label,
        figure: figure.0.clone(),
        more_is_better,
        scale: scale.clone(),
        is_selection,
        has_names: true,
        cases,
    };
    drawn.into_iter().map(plot).collect()
}

fn marks(case: &Case, name: &str) -> Vec<Mark> {
    let mark = |way: &super::record::Way| {
        let figure = way.figure(name)?;
        let series = &figure.series;
        Some(Mark {
            way: way.name.clone(),
            role: match way {
                _ if way.is_tenure => Role::Tenure,
                _ if way.is_baseline => Role::Baseline,
                _ => Role::Other,
            },
            median: series.median,
            minimum: series.minimum,
            maximum: series.maximum,
            text: spread_text(figure.unit, series.median, series.minimum, series.maximum),
        })
    };
    case.ways.iter().filter_map(mark).collect()
}

/// Keeps tenure's way, the baseline and the best of the others.
fn keep_few(marks: &mut Vec<Mark>, more_is_better: bool) {
    let others = marks.iter().filter(|mark| mark.role == Role::Other);
    let in_order = |a: &&Mark, b: &&Mark| a.median.total_cmp(&b.median);
    let best = if more_is_better {
        others.max_by(in_order)
    } else {
        others.min_by(in_order)
    };
    let best = best.map(|mark| mark.way.clone());
    marks.retain(|mark| mark.role != Role::Other || Some(&mark.way) == best.as_ref());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(way: &str, role: Role, median: f64) -> Mark {
        Mark {
            way: way.to_owned(),
            role,
            median,
            minimum: median,
            maximum: median,
            text: String::new(),
        }
    }

    #[test]
    fn few_are_the_baseline_the_best_other_and_tenure() {
        let kept = |more_is_better| {
            let mut marks = vec![
                mark("old", Role::Baseline, 9.0),
                mark("high", Role::Other, 3.0),
                mark("low", Role::Other, 1.0),
                mark("tenure", Role::Tenure, 2.0),
            ];
            keep_few(&mut marks, more_is_better);
            marks.into_iter().map(|mark| mark.way).collect::<Vec<_>>()
        };
        assert_eq!(kept(false), ["old", "low", "tenure"]);
        assert_eq!(kept(true), ["old", "high", "tenure"]);
    }
}
