use super::*;
use crate::fixture::{timed, way};

fn error(text: &str) -> String {
    format!("{:#}", Record::read("a.json", text).unwrap_err())
}

#[test]
fn text_that_is_no_record_is_an_error() {
    assert!(error(" \n").starts_with("a.json is empty;"));
    assert!(error("tenure 0.1.0").starts_with("a.json is not JSON;"));
    assert!(error("[1]").contains("but not what `tenure bench --json` prints"));
    assert!(error(r#"{"environment": {}}"#).contains("but not what"));
    let none = error(r#"{"environment": {}, "experiments": []}"#);
    assert_eq!(none, "a.json has no experiments in it");
}

#[test]
fn record_of_another_version_is_read_where_possible() {
    let of = |version: &str, experiment: &str| {
        format!(
            r#"{{"environment": {{"tenure_version": "{version}"}}, "experiments": [{experiment}]}}"#
        )
    };
    let readable = r#"{"name": "swap", "error": "no swap", "new": 1}"#;
    let record = Record::read("a.json", &of("9.9.9", readable)).unwrap();
    assert_eq!(
        record.experiment("swap").unwrap().error.as_deref(),
        Some("no swap")
    );
    let strange = r#"{"name": "swap", "cases": 7}"#;
    let message = error(&of("9.9.9", strange));
    assert!(message.contains("made by tenure 9.9.9"), "{message}");
    assert!(message.contains("measure again"), "{message}");
    let message = error(&of(OWN, strange));
    assert!(message.starts_with("a.json cannot be read"), "{message}");
}

#[test]
fn best_choice_is_the_one_that_tenure_beats_least() {
    let of = |tenure| {
        timed(
            "",
            "case",
            &[("Populate", 1.5), ("Touch", 1.0), ("tenure", tenure)],
        )
    };
    let choice = |tenure| of(tenure).choice.unwrap();
    let worse = choice(1.25);
    assert_eq!(worse.best, "Touch");
    assert!((worse.tenure_worse_by - 0.25).abs() < 1e-9);
    assert!((choice(0.8).tenure_worse_by + 0.2).abs() < 1e-9);
    assert_eq!(Choice::of(&[way("older", &[])]), None);
}

#[test]
fn json_of_an_experiment_has_samples_and_summary() {
    let measured = Experiment {
        name: "release".to_owned(),
        cases: vec![timed("", "only", &[("old way", 0.6), ("tenure", 0.3)])],
        ..Experiment::default()
    };
    let json = serde_json::to_value(&measured).unwrap();
    let case = &json["cases"][0];
    assert!(case.get("table").is_none(), "only where there are several");
    assert_eq!(case["choice"]["best"], "old way");
    assert_eq!(case["choice"]["tenure_worse_by"], -0.5);
    assert_eq!(case["ways"][0]["tenure_times_as_good"]["median"], 2.0);
    let way = &case["ways"][1];
    assert_eq!(way["is_tenure"], true);
    assert_eq!(way["times_as_good"]["median"], 2.0);
    let samples = [0.3; 3];
    let figure = serde_json::json!({
        "name": "time", "unit": "seconds", "median": 0.3, "minimum": 0.3, "maximum": 0.3,
        "samples": samples,
    });
    assert_eq!(way["figures"][0], figure);
}

#[test]
fn json_of_a_failed_experiment_has_name_and_error() {
    let failed = Experiment {
        name: "lock".to_owned(),
        error: Some("no headroom".to_owned()),
        ..Experiment::default()
    };
    let json = serde_json::to_value(&failed).unwrap();
    assert_eq!(
        json,
        serde_json::json!({"name": "lock", "error": "no headroom"})
    );
}

fn series(samples: &[f64]) -> Series {
    Series::new(samples.to_vec()).unwrap()
}

#[test]
fn median_of_odd_samples_is_the_middle_one() {
    let series = series(&[5.0, 1.0, 3.0]);
    assert_eq!(
        (series.median, series.minimum, series.maximum),
        (3.0, 1.0, 5.0)
    );
    assert_eq!(series.samples, [5.0, 1.0, 3.0], "rounds stay in order");
}

#[test]
fn median_of_even_samples_is_a_mean() {
    assert_eq!(series(&[4.0, 1.0, 2.0, 100.0]).median, 3.0);
}

#[test]
fn series_of_nothing_or_nonsense_is_none() {
    assert_eq!(Series::new(vec![]), None);
    assert_eq!(Series::new(vec![1.0, f64::NAN]), None);
    assert_eq!(Series::new(vec![1.0, f64::INFINITY]), None);
}

#[test]
fn ratio_is_taken_within_a_round() {
    // Round 2 ran on a machine twice as slow; the ratio does not see it.
    let own = series(&[1.0, 2.0, 1.0]);
    let baseline = series(&[3.0, 6.0, 3.0]);
    let ratio = own.times_as_good(&baseline, Better::Less).unwrap();
    assert_eq!(ratio.samples, [3.0, 3.0, 3.0]);
}

#[test]
fn ratio_of_rates_is_better_when_higher() {
    let ratio = series(&[10.0]).times_as_good(&series(&[4.0]), Better::More);
    assert_eq!(ratio.unwrap().median, 2.5);
}

#[test]
fn ratio_to_a_time_of_zero_is_none() {
    let ratio = series(&[0.0]).times_as_good(&series(&[1.0]), Better::Less);
    assert_eq!(ratio, None);
}
