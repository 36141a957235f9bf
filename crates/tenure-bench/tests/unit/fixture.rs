//! Records made up for tests.

use crate::{
    present::finding,
    record::{Case, Choice, Experiment, Figure, Series, Unit, Way},
};

/// Makes a way.
pub fn way(name: &str, figures: &[(&str, Unit, &[f64])]) -> Way {
    let figure = |&(name, unit, samples): &(&str, Unit, &[f64])| Figure {
        name: name.to_owned(),
        unit,
        series: Series::new(samples.to_vec()).unwrap(),
    };
    Way {
        name: name.to_owned(),
        is_tenure: false,
        is_baseline: false,
        is_choice: false,
        figures: figures.iter().map(figure).collect(),
        times_as_good: None,
        tenure_times_as_good: None,
    }
}

/// Makes a case of three rounds, whose first way is the baseline and whose last one
/// is tenure's, which chooses from the others; their first figures are compared.
pub fn case(table: &str, name: &str, mut ways: Vec<Way>) -> Case {
    let [older, own] = [&ways[0], &ways[ways.len() - 1]].map(|way| way.figures[0].clone());
    let last = ways.len() - 1;
    for (index, way) in ways.iter_mut().enumerate() {
        way.is_baseline = index == 0;
        way.is_tenure = index == last;
        way.is_choice = index != last;
        let figure = &way.figures[0];
        way.times_as_good = (index > 0).then(|| figure.times_as_good(&older).unwrap());
        way.tenure_times_as_good = (index < last).then(|| own.times_as_good(figure).unwrap());
    }
    Case {
        table: table.to_owned(),
        name: name.to_owned(),
        rounds: 3,
        compared: Some(older.name),
        choice: Choice::of(&ways),
        ways,
    }
}

/// Makes a case of ways that take so many seconds, always.
pub fn timed(table: &str, name: &str, ways: &[(&str, f64)]) -> Case {
    let way = |&(name, seconds): &(&str, f64)| way(name, &[("time", Unit::Seconds, &[seconds; 3])]);
    case(table, name, ways.iter().map(way).collect())
}

/// Returns what the figures of the cases of an experiment say.
pub fn sentences(name: &str, cases: Vec<Case>) -> String {
    let name = name.to_owned();
    let experiment = Experiment {
        name,
        cases,
        ..Experiment::default()
    };
    finding::sentences(&experiment).join(" ")
}
