//! Tables and JSON from made-up figures.

use super::*;
use crate::bench::{
    choice,
    experiment::{FigureResult, Unit, WayResult},
    statistics::Series,
};

fn figure(name: &'static str, unit: Unit, samples: &[f64]) -> FigureResult {
    FigureResult {
        name,
        unit,
        series: Series::new(samples.to_vec()).unwrap(),
    }
}

fn case(name: &str, figures: impl Fn(f64) -> Vec<FigureResult>) -> CaseResult {
    let old = WayResult {
        name: "old way",
        is_tenure: false,
        is_baseline: true,
        is_choice: true,
        figures: figures(2.0),
        times_as_good: None,
        tenure_times_as_good: Series::new(vec![2.0, 2.5, 1.5]),
    };
    let new = WayResult {
        name: "tenure",
        is_tenure: true,
        is_baseline: false,
        is_choice: false,
        figures: figures(1.0),
        times_as_good: Series::new(vec![2.0, 2.5, 1.5]),
        tenure_times_as_good: None,
    };
    let ways = vec![old, new];
    CaseResult {
        table: String::new(),
        name: name.to_owned(),
        rounds: 3,
        compared: "time",
        choice: choice::of(&ways),
        ways,
    }
}

fn findings(cases: Vec<CaseResult>) -> ExperimentReport {
    ExperimentReport {
        name: ExperimentName::Free,
        outcome: Outcome::Measured(Findings {
            sizes: Sizes::Quick,
            title: "give up".to_owned(),
            notes: vec!["Base pages.".to_owned()],
            compared: "time",
            cases,
            conclusion: "It is faster.".to_owned(),
        }),
    }
}

fn time(factor: f64) -> Vec<FigureResult> {
    let samples = [0.3, 0.2, 0.4].map(|seconds| seconds * factor);
    vec![figure("time", Unit::Seconds, &samples)]
}

fn time_and_count(factor: f64) -> Vec<FigureResult> {
    let mut figures = time(factor);
    figures.push(figure("faults", Unit::Count, &[1234.0, 1234.0, 1234.0]));
    figures
}

#[test]
fn one_figure_in_several_cases_makes_a_matrix() {
    let text = findings(vec![case("first", time), case("second", time)]).text();
    let header = text.lines().nth(3).unwrap();
    assert!(
        header.contains("old way") && header.contains("tenure: times as"),
        "{text}"
    );
    let row = text.lines().find(|line| line.contains("second")).unwrap();
    assert!(row.contains("600 (400–800) ms"), "{row}");
    assert!(row.contains("300 (200–400) ms"), "{row}");
    assert!(row.contains("2.00 (1.50–2.50)"), "{row}");
}

#[test]
fn several_figures_make_a_list() {
    let text = findings(vec![case("only", time_and_count)]).text();
    let tenure = text.lines().find(|line| line.contains("tenure")).unwrap();
    assert!(tenure.contains("1,234"), "{tenure}");
    assert!(!text.contains("only"), "a single case needs no name");
    let old = text
        .lines()
        .find(|line| line.contains("old way") && line.contains("ms"));
    assert!(old.unwrap().contains("baseline"));
}

#[test]
fn the_reader_is_told_rounds_notes_and_conclusion() {
    let text = findings(vec![case("only", time_and_count)]).text();
    assert!(text.starts_with("\nfree: give up\n"));
    assert!(text.contains("of 3 rounds. Base pages.\n"));
    assert!(text.ends_with("=> It is faster.\n"));
}

#[test]
fn cases_may_differ_in_their_rounds() {
    let mut cases = vec![case("first", time), case("second", time)];
    cases[1].rounds = 5;
    assert!(findings(cases).text().contains("of 3 to 5 rounds."));
}

#[test]
fn a_failure_stands_in_its_place() {
    let failed = ExperimentReport {
        name: ExperimentName::Lock,
        outcome: Outcome::Failed {
            error: "no room".to_owned(),
        },
    };
    assert_eq!(failed.text(), "\nlock: failed\nno room\n");
    let json = serde_json::to_value(&failed).unwrap();
    assert_eq!(
        json,
        serde_json::json!({"name": "lock", "error": "no room"})
    );
}

#[test]
fn json_has_samples_and_summary() {
    let json = serde_json::to_value(findings(vec![case("only", time)])).unwrap();
    assert_eq!(json["name"], "free");
    let way = &json["cases"][0]["ways"][1];
    assert_eq!(way["is_tenure"], true);
    assert_eq!(way["times_as_good"]["median"], 2.0);
    assert_eq!(json["sizes"], "quick");
    let case = &json["cases"][0];
    assert_eq!(case["ways"][0]["tenure_times_as_good"]["median"], 2.0);
    assert_eq!(case["choice"]["best"], "old way");
    assert_eq!(case["choice"]["tenure_worse_by"], -0.5);
    assert_eq!(case["choice"]["is_within_5_percent"], true);
    assert!(case.get("table").is_none(), "only where there are several");
    assert_eq!(way["figures"][0]["unit"], "seconds");
    assert_eq!(way["figures"][0]["median"], 0.3);
    assert_eq!(way["figures"][0]["samples"].as_array().unwrap().len(), 3);
}

#[test]
fn cases_in_tables_make_a_grid_for_each() {
    let in_table = |table: &str, name: &str| CaseResult {
        table: table.to_owned(),
        ..case(name, time)
    };
    let cases = vec![
        in_table("2 MiB, Read", "private"),
        in_table("2 MiB, Read", "shared"),
        in_table("2 MiB, Write", "private"),
    ];
    let report = findings(cases);
    let text = report.text();
    let titles: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("2 MiB"))
        .collect();
    assert_eq!(titles, ["2 MiB, Read", "2 MiB, Write"]);
    assert!(text.contains("*600 ms ±33%"), "{text}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["cases"][2]["table"], "2 MiB, Write");
}

#[test]
fn memory_is_not_fast() {
    let memory = |factor: f64| vec![figure("time", Unit::Bytes, &[factor * 4096.0; 3])];
    let text = findings(vec![case("only", memory)]).text();
    assert!(text.contains("times as good as"), "{text}");
    let text = findings(vec![case("only", time)]).text();
    assert!(text.contains("times as fast as"), "{text}");
}
