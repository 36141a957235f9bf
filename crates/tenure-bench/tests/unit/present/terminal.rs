use super::*;
use crate::{
    fixture::{case, timed, way},
    record::Unit,
};

fn measured(cases: Vec<Case>) -> Experiment {
    Experiment {
        name: "swap".to_owned(),
        title: "give up".to_owned(),
        notes: vec!["Base pages.".to_owned()],
        compared: "time".to_owned(),
        cases,
        ..Experiment::default()
    }
}

fn text(cases: Vec<Case>) -> String {
    experiment(&measured(cases))
}

/// A case of two ways with a time, and a number of faults where there is one.
fn only(name: &str, faults: Option<f64>) -> Case {
    let of = |name: &str, factor: f64| {
        let seconds = [0.3, 0.2, 0.4].map(|seconds| seconds * factor);
        let faults = faults.map(|faults| [faults; 3]);
        let mut figures: Vec<(&str, Unit, &[f64])> = vec![("time", Unit::Seconds, &seconds)];
        figures.extend(
            faults
                .iter()
                .map(|faults| ("faults", Unit::Count, &faults[..])),
        );
        way(name, &figures)
    };
    case("", name, vec![of("old way", 2.0), of("tenure", 1.0)])
}

#[test]
fn cases_without_a_table_make_a_list() {
    let text = text(vec![only("first", None), only("second", None)]);
    let header = text.lines().nth(3).unwrap();
    assert!(
        header.contains("way") && header.contains("times as fast"),
        "{text}"
    );
    let mut rows = text.lines().skip_while(|line| !line.contains("second"));
    let (old, new) = (rows.next().unwrap(), rows.next().unwrap());
    assert!(
        old.contains("600 (400–800) ms") && old.contains("baseline"),
        "{old}"
    );
    assert!(
        new.contains("300 (200–400) ms") && new.contains("2.00"),
        "{new}"
    );
}

#[test]
fn several_figures_make_a_list() {
    let text = text(vec![only("alone", Some(1234.0))]);
    let tenure = text.lines().find(|line| line.contains("tenure")).unwrap();
    assert!(tenure.contains("1,234"), "{tenure}");
    assert!(!text.contains("alone"), "a single case needs no name");
    let is_old = |line: &&str| line.contains("old way") && line.contains("ms");
    assert!(text.lines().find(is_old).unwrap().contains("baseline"));
}

#[test]
fn rounds_notes_and_findings_follow_the_tables() {
    let text = text(vec![only("only", Some(1.0))]);
    assert!(text.starts_with("\nswap: give up\n"));
    assert!(text.contains("of 3 rounds. Base pages.\n"), "{text}");
    assert!(text.ends_with("\n=> tenure is 2.00 times as fast as old way.\n"));
}

#[test]
fn cases_may_differ_in_their_rounds() {
    let mut cases = vec![only("first", None), only("second", None)];
    cases[1].rounds = 5;
    assert!(text(cases).contains("of 3 to 5 rounds."));
}

#[test]
fn failed_experiment_is_told_with_its_error() {
    let failed = Experiment {
        name: "lock".to_owned(),
        error: Some("no headroom".to_owned()),
        ..Experiment::default()
    };
    assert_eq!(experiment(&failed), "\nlock: failed\nno headroom\n");
}

#[test]
fn cases_in_tables_make_a_grid_for_each() {
    let ways = [("old way", 0.6), ("tenure", 0.3)];
    let text = text(vec![
        timed("2 MiB, Read", "private", &ways),
        timed("2 MiB, Read", "shared", &ways),
        timed("2 MiB, Write", "private", &ways),
    ]);
    let titles: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("2 MiB"))
        .collect();
    assert_eq!(titles, ["2 MiB, Read", "2 MiB, Write"]);
    assert!(text.contains("*600 ms"), "{text}");
}

#[test]
fn grid_marks_the_best_choice_and_says_how_near_tenure_came() {
    let few = timed("grid", "few", &[("Populate", 2.0), ("Auto", 2.5)]);
    let many = timed(
        "grid",
        "many",
        &[("Populate", 2.0), ("Touch", 3.0), ("Auto", 2.02)],
    );
    let text = text(vec![few, many]);
    let line = |name: &str| {
        let mut lines = text.lines();
        lines.find(|line| line.trim().starts_with(name)).unwrap()
    };
    assert_eq!(line("Populate").matches("*2.00 s").count(), 2, "{text}");
    assert!(line("Touch").contains("–"), "{text}");
    let against = line("Auto against *");
    assert!(
        against.contains("+1.0 %") && against.contains("+25 %"),
        "{text}"
    );
}

#[test]
fn memory_is_not_called_fast() {
    let of = |name, bytes: f64| way(name, &[("memory", Unit::Bytes, &[bytes; 3])]);
    let memory = case(
        "",
        "only",
        vec![of("old way", 8192.0), of("tenure", 4096.0)],
    );
    assert!(text(vec![memory]).contains("times as good as"));
    assert!(text(vec![only("only", None)]).contains("times as fast as"));
}
