//! A table with a row for each way and a column for each case: many ways of
//! doing the same to a few things.

use comfy_table::{Cell, Table};

use super::{
    experiment::{CaseResult, WayResult},
    spread::short_spread_text,
};
use crate::table::{number, table_with};
use crate::text::percent_text;

/// What stands before the best of the ways that tenure chooses from.
const BEST: &str = "*";

/// Returns the first figure of all ways of all cases, and how near tenure's way
/// came to the best of its choices.
pub fn text(cases: &[CaseResult]) -> String {
    let mut text = table(cases).trim_fmt();
    for case in cases {
        if let Some(line) = missed(case) {
            text = format!("{text}\n{line}");
        }
    }
    text
}

fn table(cases: &[CaseResult]) -> Table {
    const HEADER_WIDTH: usize = 13;
    let names = cases.iter().map(|case| case.name.as_str());
    let mut table = table_with([""].into_iter().chain(names), HEADER_WIDTH);
    for way in way_names(cases) {
        let cells = cases.iter().map(|case| number(cell(case, way)));
        table.add_row([Cell::new(way)].into_iter().chain(cells));
    }
    if let Some(tenure) = cases.iter().find_map(tenure_against_choices) {
        let worse_by = |case: &CaseResult| {
            let choice = case.choice.as_ref();
            number(choice.map_or("–".to_owned(), |choice| {
                percent_text(choice.tenure_worse_by)
            }))
        };
        let label = Cell::new(format!("{} against {BEST}", tenure.name));
        table.add_row([label].into_iter().chain(cases.iter().map(worse_by)));
    }
    table
}

fn tenure_against_choices(case: &CaseResult) -> Option<&WayResult> {
    case.choice.as_ref()?;
    case.ways.iter().find(|way| way.is_tenure)
}

/// Returns the names of all ways, each behind the one that it follows in a case.
fn way_names(cases: &[CaseResult]) -> Vec<&'static str> {
    let mut names: Vec<&str> = Vec::new();
    for case in cases {
        let mut place = 0;
        for way in &case.ways {
            if let Some(known) = names.iter().position(|&name| name == way.name) {
                place = known + 1;
            } else {
                names.insert(place, way.name);
                place += 1;
            }
        }
    }
    names
}

fn cell(case: &CaseResult, way: &str) -> String {
    let Some(figure) = case.way(way).and_then(|way| way.figures.first()) else {
        return "–".to_owned();
    };
    let text = short_spread_text(figure.unit, &figure.series);
    match &case.choice {
        Some(choice) if choice.best == way => format!("{BEST}{text}"),
        _ => text,
    }
}

/// Says by how much tenure chose wrong, where that is too much.
fn missed(case: &CaseResult) -> Option<String> {
    let choice = case
        .choice
        .as_ref()
        .filter(|choice| !choice.is_within_5_percent)?;
    let tenure = case.ways.iter().find(|way| way.is_tenure)?;
    let samples = |way: &str| Some(&case.way(way)?.figures.first()?.series);
    let (own, best) = (samples(tenure.name)?, samples(choice.best)?);
    let why = if case.rounds == 1 {
        "one round, no spread known"
    } else if own.minimum <= best.maximum && best.minimum <= own.maximum {
        "no more than the samples spread"
    } else {
        "more than the samples spread"
    };
    Some(format!(
        "Not within 5 %: {}: best: {}, {} {} ({why}).",
        case.name,
        choice.best,
        tenure.name,
        percent_text(choice.tenure_worse_by)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
        choice,
        experiment::{FigureResult, Unit},
        statistics::{Better, Series},
    };

    /// A case whose last way is tenure's and whose others are its choices.
    fn case(name: &str, ways: &[(&'static str, f64)]) -> CaseResult {
        let series = |seconds: f64| Series::new(vec![seconds; 3]).unwrap();
        let tenure = series(ways.last().unwrap().1);
        let result = |&(name, seconds): &(&'static str, f64)| WayResult {
            name,
            is_tenure: name == "Auto",
            is_baseline: false,
            is_choice: name != "Auto",
            figures: vec![FigureResult {
                name: "time",
                unit: Unit::Seconds,
                series: series(seconds),
            }],
            times_as_good: None,
            tenure_times_as_good: tenure.times_as_good(&series(seconds), Better::Less),
        };
        let ways: Vec<_> = ways.iter().map(result).collect();
        CaseResult {
            table: "table".to_owned(),
            name: name.to_owned(),
            rounds: 3,
            compared: "time",
            choice: choice::of(&ways),
            ways,
        }
    }

    #[test]
    fn ways_keep_their_order_also_where_a_case_lacks_some() {
        let few = case("few", &[("Populate", 2.0), ("Auto", 2.0)]);
        let many = case("many", &[("Populate", 2.0), ("Touch", 3.0), ("Auto", 2.0)]);
        assert_eq!(way_names(&[few, many]), ["Populate", "Touch", "Auto"]);
    }

    #[test]
    fn the_best_is_marked_and_a_wrong_choice_is_named() {
        let right = case(
            "right",
            &[("Populate", 2.0), ("Touch", 3.0), ("Auto", 2.02)],
        );
        let wrong = case("wrong", &[("Populate", 2.0), ("Auto", 2.5)]);
        let text = text(&[right, wrong]);
        let line = |name: &str| {
            text.lines()
                .find(|line| line.trim().starts_with(name))
                .unwrap()
        };
        assert_eq!(line("Populate").matches("*2.00 s").count(), 2, "{text}");
        assert!(line("Touch").contains("–"), "{text}");
        let against = line("Auto against *");
        assert!(
            against.contains("+1.0 %") && against.contains("+25 %"),
            "{text}"
        );
        assert!(
            text.contains("\nNot within 5 %: wrong: best: Populate, Auto +25 % ("),
            "{text}"
        );
        assert_eq!(text.matches("Not within").count(), 1, "{text}");
    }
}
