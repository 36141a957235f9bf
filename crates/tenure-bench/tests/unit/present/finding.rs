use super::*;
use crate::{
    fixture::{case, timed, way},
    record::Unit,
};

fn experiment(name: &str, cases: Vec<Case>) -> Experiment {
    Experiment {
        name: name.to_owned(),
        compared: "time".to_owned(),
        cases,
        ..Experiment::default()
    }
}

/// Returns the sentences but for the last, which is about all cases.
fn found(name: &str, cases: Vec<Case>) -> Vec<String> {
    let mut sentences = sentences(&experiment(name, cases));
    sentences.pop();
    sentences
}

#[test]
fn every_selector_is_valid_and_each_experiment_has_one_headline() {
    for name in [
        "populate",
        "lock",
        "lazy_free",
        "volatile",
        "release",
        "heap",
    ] {
        let own = selectors().iter().filter(|one| one.experiment == name);
        assert_eq!(
            own.filter(|one| one.headline.is_some()).count(),
            1,
            "{name}"
        );
    }
}

#[test]
fn ratio_is_taken_within_a_round() {
    // Round 2 ran on a machine twice as slow; the ratio does not see it.
    let waits = |name, samples: &[f64]| way(name, &[("caller waits", Unit::Seconds, samples)]);
    let ways = vec![
        waits("munmap", &[0.4, 0.8, 0.4]),
        waits("tenure", &[1e-4, 2e-4, 1e-4]),
    ];
    assert_eq!(
        found("release", vec![case("", "unmap 4 GiB", ways)]),
        [
            "To unmap 4 GiB the caller waits 100 µs with tenure and 400 ms with munmap: tenure is \
          4,000 times as fast."
        ]
    );
}

#[test]
fn ratio_that_contradicts_the_medians_is_told_as_one_of_rounds() {
    // In two of three rounds tenure is faster, and the medians say that it is slower.
    let waits = |name, samples: &[f64]| way(name, &[("caller waits", Unit::Seconds, samples)]);
    let ways = vec![
        waits("munmap", &[0.1, 0.3, 0.4]),
        waits("tenure", &[0.35, 0.2, 0.39]),
    ];
    assert_eq!(
        found("release", vec![case("", "unmap 4 GiB", ways)]),
        [
            "To unmap 4 GiB the caller waits 350 ms with tenure and 300 ms with munmap, within what \
          the rounds spread (round by round tenure is 1.03 times as fast)."
        ]
    );
}

#[test]
fn largest_is_chosen_by_the_baseline_and_exclusions_hold() {
    let waits = |name, seconds: f64| way(name, &[("caller waits", Unit::Seconds, &[seconds; 3])]);
    let of = |name: &str, older| {
        case(
            "",
            name,
            vec![waits("munmap", older), waits("tenure", 1e-3)],
        )
    };
    let cases = vec![
        of("unmap 8 GiB", 0.8),
        of("unmap 1 GiB", 0.1),
        of("unmap 4 GiB, huge pages", 9.0),
        of("unmap 16 blocks of 64 MiB", 9.0),
    ];
    let found = found("release", cases);
    assert_eq!(found.len(), 1);
    assert!(
        found[0].starts_with("To unmap 8 GiB the caller waits 1.00 ms"),
        "{found:?}"
    );
}

#[test]
fn one_round_has_no_ratio() {
    let mut alone = timed("Large arrays", "sum", &[("glibc", 2.0), ("tenure", 1.0)]);
    alone.rounds = 1;
    assert_eq!(
        found("heap", vec![alone]),
        ["To work with large arrays (sum) takes 1.00 s with tenure and 2.00 s with glibc."]
    );
}

#[test]
fn best_other_is_the_one_that_tenure_beats_least() {
    let ways = [
        ("glibc", 2.0),
        ("jemalloc", 1.5),
        ("mimalloc", 1.8),
        ("tenure", 3.0),
    ];
    assert_eq!(
        found("heap", vec![timed("Large arrays", "sum", &ways)]),
        [
            "To work with large arrays (sum) takes 3.00 s with tenure and 1.50 s with jemalloc: tenure is 0.50 times as fast."
        ]
    );
}

#[test]
fn memory_is_told_as_a_part() {
    let held = |name, ratio: f64| way(name, &[("held / live", Unit::Ratio, &[ratio; 3])]);
    let of = |tenure| {
        let ways = vec![held("glibc", 4.4), held("tenure", tenure)];
        found(
            "heap",
            vec![case("Burst and idle: 9", "2.00 s after", ways)],
        )[0]
        .clone()
    };
    assert!(of(1.1).ends_with("1.10 with tenure and 4.40 with glibc: tenure has 1/4.00 of it."));
    assert!(of(8.8).ends_with(": tenure has 2.00 times as much."));
}

#[test]
fn ratios_around_one_are_neither_better_nor_worse() {
    let times = |name, samples: &[f64]| way(name, &[("time", Unit::Seconds, samples)]);
    let of = |name: &str, own: [f64; 3]| {
        case("", name, vec![times("old", &[1.0; 3]), times("new", &own)])
    };
    let cases = vec![
        of("fast", [0.5, 0.4, 0.6]),
        of("even", [0.9, 1.1, 1.0]),
        of("slow", [2.0, 1.9, 2.1]),
    ];
    let text = overview(&experiment("swap", cases));
    assert!(
        text.contains("in 1 of 3 comparisons, worse in 1, and within"),
        "{text}"
    );
    assert!(
        text.contains("spread in 1; the extremes are 0.50 times as fast as old (slow)"),
        "{text}"
    );
}

#[test]
fn experiment_without_selected_cases_has_the_overview() {
    for name in ["lock", "volatile", "release", "heap", "swap"] {
        let one = timed("", "case 0", &[("old", 2.0), ("new", 1.0)]);
        let sentences = sentences(&experiment(name, vec![one]));
        let expected = "tenure is 2.00 times as fast as old.";
        assert_eq!(sentences, [expected]);
    }
    assert!(overview(&experiment("release", Vec::new())).starts_with("No case of several rounds"));
}
