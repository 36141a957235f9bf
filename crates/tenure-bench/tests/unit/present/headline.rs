use super::*;
use crate::fixture::timed;

fn experiment(name: &str, cases: Vec<Case>) -> Experiment {
    Experiment {
        name: name.to_owned(),
        compared: "time".to_owned(),
        cases,
        ..Experiment::default()
    }
}

/// Three cases of time, in which tenure is so many times as fast, twice as fast, and
/// so many times as fast.
fn three_cases(name: &str, [first, last]: [f64; 2]) -> Experiment {
    let case = |name, times: f64| timed("", name, &[("old", 1.0), ("new", 1.0 / times)]);
    experiment(
        name,
        vec![case("a", first), case("b", 2.0), case("c", last)],
    )
}

fn shown(table: &Table) -> Vec<Vec<&str>> {
    let rows = table.rows.iter().map(|row| row.cells.iter());
    rows.map(|cells| cells.map(Cell::shown).collect()).collect()
}

#[test]
fn headline_of_an_unknown_experiment_is_its_median_and_its_worst_case() {
    let table = table(&[three_cases("swap", [4.0, 0.5])]);
    assert_eq!(
        shown(&table),
        [
            [
                "swap",
                "b: time",
                "1.00 s, old",
                "500 ms",
                "2.00 times as fast"
            ],
            [
                "at worst",
                "c: time",
                "1.00 s, old",
                "2.00 s",
                "0.50 times as fast"
            ],
        ]
    );
    assert!(table.rows[0].is_tenure && !table.rows[1].is_tenure);
}

#[test]
fn headline_without_a_slower_case_has_one_row() {
    assert_eq!(table(&[three_cases("swap", [4.0, 3.0])]).rows.len(), 1);
}

#[test]
fn headline_of_seven_experiments_keeps_the_worst_case_of_all() {
    let experiments =
        (1u8..=7).map(|one| three_cases(&one.to_string(), [4.0, 1.0 / f64::from(one + 1)]));
    let experiments: Vec<_> = experiments.collect();
    let table = table(&experiments);
    assert_eq!(table.rows.len(), MAX_ROWS);
    assert_eq!(table.rows[7].cells[4].shown(), "0.12 times as fast");
}

#[test]
fn headline_of_one_round_has_no_ratio() {
    let mut one = three_cases("swap", [4.0, 0.5]);
    for case in &mut one.cases {
        case.rounds = 1;
    }
    let table = table(&[one]);
    assert_eq!(table.rows.len(), 1);
    assert_eq!(table.rows[0].cells[4].shown(), "–");
}

#[test]
fn headline_of_free_is_the_largest_that_is_unmapped() {
    let mut cases = Vec::new();
    for (name, seconds) in [("unmap 8 GiB", 8.0), ("unmap 1 GiB", 1.0)] {
        let mut case = timed("", name, &[("munmap", seconds), ("tenure", 0.5)]);
        for figure in case.ways.iter_mut().flat_map(|way| &mut way.figures) {
            figure.name = "caller waits".to_owned();
        }
        case.compared = Some("caller waits".to_owned());
        cases.push(case);
    }
    let row = [
        "release",
        "unmap 8 GiB: the caller waits",
        "8.00 s, munmap",
        "500 ms",
        "16.0 times as fast",
    ];
    assert_eq!(shown(&table(&[experiment("release", cases)])), [row]);
}
