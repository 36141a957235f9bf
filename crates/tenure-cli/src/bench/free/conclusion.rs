//! What the data say about giving memory up.

use super::{
    super::{
        experiment::{CaseResult, WayResult},
        statistics::{Better, Series},
    },
    ways::{CALLER, FREED, LARGER, OTHERS, SMALLER},
};
use crate::text::{ratio_text, seconds_text};

/// Says it in sentences: one for each case and for each thing compared in it.
pub fn conclude(cases: &[CaseResult]) -> String {
    let sentences = cases.iter().flat_map(|case| {
        let of_case = [caller(case), others(case), by_size(case)];
        of_case.into_iter().flatten()
    });
    sentences.collect::<Vec<_>>().join(" ")
}

fn caller(case: &CaseResult) -> Option<String> {
    let waits = compare(case, CALLER)?;
    let freed = |way| series(way, FREED);
    // How many times as long is how many times as fast the other one is.
    let as_long = freed(baseline(case)?)?.times_as_good(freed(tenure(case)?)?, Better::Less)?;
    Some(format!(
        "{}: the caller waits {waits}; until all is freed it takes {} times as long.",
        case.name,
        ratio_text(as_long.median)
    ))
}

fn others(case: &CaseResult) -> Option<String> {
    let waits = compare(case, OTHERS)?;
    let name = &case.name;
    Some(format!("{name}: another thread waits at most {waits}."))
}

fn by_size(case: &CaseResult) -> Option<String> {
    let of = |way| series(case.way(way)?, CALLER);
    let as_long = of(SMALLER)?.times_as_good(of(LARGER)?, Better::Less)?;
    Some(format!(
        "{}: for the larger the caller waits {} times as long.",
        case.name,
        ratio_text(as_long.median)
    ))
}

/// Compares a figure of tenure's way with the baseline's.
fn compare(case: &CaseResult, figure: &str) -> Option<String> {
    let (new, old) = (tenure(case)?, baseline(case)?);
    let (own, older) = (series(new, figure)?, series(old, figure)?);
    Some(format!(
        "{} ({}) instead of {} ({}): {}",
        seconds_text(own.median),
        new.name,
        seconds_text(older.median),
        old.name,
        part_text(own.times_as_good(older, Better::Less)?.median)
    ))
}

/// A part as one divided by a number, as long as it is less than the whole.
fn part_text(times_as_good: f64) -> String {
    if times_as_good >= 1.0 {
        format!("1/{}", ratio_text(times_as_good))
    } else {
        format!("{} times as long", ratio_text(1.0 / times_as_good))
    }
}

fn tenure(case: &CaseResult) -> Option<&WayResult> {
    case.ways.iter().find(|way| way.is_tenure)
}

fn baseline(case: &CaseResult) -> Option<&WayResult> {
    case.ways.iter().find(|way| way.is_baseline)
}

fn series<'a>(way: &'a WayResult, figure: &str) -> Option<&'a Series> {
    Some(&way.figure(figure)?.series)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
        experiment::{FigureResult, Unit},
        free::ways::{MUNMAP, TENURE},
    };

    fn way(name: &'static str, figures: &[(&'static str, [f64; 3])]) -> WayResult {
        let figure = |&(name, samples): &(&'static str, [f64; 3])| FigureResult {
            name,
            unit: Unit::Seconds,
            series: Series::new(samples.to_vec()).unwrap(),
        };
        WayResult {
            name,
            is_tenure: name == TENURE,
            is_baseline: name == MUNMAP || name == SMALLER,
            is_choice: false,
            figures: figures.iter().map(figure).collect(),
            times_as_good: None,
            tenure_times_as_good: None,
        }
    }

    fn case(name: &str, ways: Vec<WayResult>) -> CaseResult {
        CaseResult {
            table: String::new(),
            name: name.to_owned(),
            rounds: 3,
            compared: "time",
            ways,
            choice: None,
        }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // Round 2 ran on a machine twice as slow; the ratios do not see it.
        let old = [0.4, 0.8, 0.4];
        let ways = vec![
            way(MUNMAP, &[(CALLER, old), (FREED, old)]),
            way(
                TENURE,
                &[(CALLER, [1e-4, 2e-4, 1e-4]), (FREED, [0.44, 0.88, 0.44])],
            ),
        ];
        assert_eq!(
            conclude(&[case("unmap 4 GiB", ways)]),
            "unmap 4 GiB: the caller waits 100 µs (tenure) instead of 400 ms (munmap): 1/4,000; \
             until all is freed it takes 1.10 times as long."
        );
    }

    #[test]
    fn what_another_thread_waits_is_told() {
        let ways = vec![
            way(MUNMAP, &[(OTHERS, [0.3; 3])]),
            way(TENURE, &[(OTHERS, [0.003; 3])]),
        ];
        assert_eq!(
            conclude(&[case("unmap 4 GiB", ways)]),
            "unmap 4 GiB: another thread waits at most 3.00 ms (tenure) instead of 300 ms (munmap): \
             1/100."
        );
    }

    #[test]
    fn the_larger_is_compared_with_the_smaller() {
        let ways = vec![
            way(SMALLER, &[(CALLER, [4e-5; 3]), (FREED, [0.1; 3])]),
            way(LARGER, &[(CALLER, [5e-5; 3]), (FREED, [0.8; 3])]),
        ];
        assert_eq!(
            conclude(&[case("unmap 8 GiB and 1 GiB", ways)]),
            "unmap 8 GiB and 1 GiB: for the larger the caller waits 1.25 times as long."
        );
    }

    #[test]
    fn worse_is_not_made_to_look_better() {
        assert_eq!(part_text(0.5), "2.00 times as long");
        assert_eq!(part_text(2.0), "1/2.00");
    }
}
