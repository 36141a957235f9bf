//! What the data say about volatile memory, and about what it is to reach.

use super::{
    super::{
        experiment::CaseResult,
        statistics::{Better, Series},
    },
    TIME,
    reference::{self, DONT_NEED, FAULTS, MEMSET},
    take_back::{self, TAKE_BACK},
    transition::{self, HANDLE, HANDLES, RANGE},
};
use crate::text::{count_text, ratio_text, seconds_text};

/// How many times as long as memset alone the loop may take.
const MOST_OF_MEMSET: f64 = 1.08;
/// How many times as long as with MADV_DONTNEED.
const MOST_OF_DONT_NEED: f64 = 0.4;
/// How long a transition through a handle may take, in seconds.
const MOST_BY_HANDLE: f64 = 50e-9;
/// And through a raw range, beside so many others.
const MOST_BY_RANGE: f64 = 400e-9;
const BESIDE: usize = 10_000;

/// Says it in sentences.
pub fn conclude(cases: &[CaseResult]) -> String {
    let of_loop = cases.iter().filter_map(of_loop);
    let others = [by_handle(cases), by_range(cases), taking_back(cases)];
    let sentences: Vec<String> = of_loop.chain(others.into_iter().flatten()).collect();
    sentences.join(" ")
}

fn of_loop(case: &CaseResult) -> Option<String> {
    let own = series(case, reference::TENURE, TIME)?;
    // How many times as long is how many times as fast the other one is.
    let as_long = |way| series(case, way, TIME)?.times_as_good(own, Better::Less);
    let faults = |way| Some(count_text(series(case, way, FAULTS)?.median));
    let (memset, dont_need) = (as_long(MEMSET)?.median, as_long(DONT_NEED)?.median);
    Some(format!(
        "With {} the loop takes {} times as long as memset alone ({}) and {} times as long as \
         with MADV_DONTNEED ({}), with {} page faults instead of {}.",
        case.name,
        ratio_text(memset),
        judged(memset, MOST_OF_MEMSET, ratio_text),
        ratio_text(dont_need),
        judged(dont_need, MOST_OF_DONT_NEED, ratio_text),
        faults(reference::TENURE)?,
        faults(DONT_NEED)?,
    ))
}

fn by_handle(cases: &[CaseResult]) -> Option<String> {
    let both = cases
        .iter()
        .flat_map(|case| [(case, HANDLE), (case, HANDLES)]);
    let medians = both.filter_map(|(case, way)| Some(series(case, way, TIME)?.median));
    let most = medians.max_by(f64::total_cmp)?;
    Some(format!(
        "A transition through a handle takes at most {}, however many others are volatile ({}).",
        seconds_text(most),
        judged(most, MOST_BY_HANDLE, seconds_text)
    ))
}

fn by_range(cases: &[CaseResult]) -> Option<String> {
    let name = transition::name(BESIDE);
    let case = cases.iter().find(|case| case.name == name)?;
    let both = [RANGE, transition::RANGES].map(|way| series(case, way, TIME));
    let [one, in_turn] = both.map(|series| series.map(|series| series.median));
    let most = one?.max(in_turn?);
    Some(format!(
        "Through a raw range it takes {} beside {name} ({}).",
        seconds_text(most),
        judged(most, MOST_BY_RANGE, seconds_text)
    ))
}

fn taking_back(cases: &[CaseResult]) -> Option<String> {
    let case = cases.iter().rev().find(|case| case.table == TAKE_BACK)?;
    let time = |way| Some(seconds_text(series(case, way, TIME)?.median));
    let some = time(take_back::SCATTERED);
    Some(format!(
        "Taking {} back that was offered takes {} when nothing was purged{} and {} when all was; \
         to have it again after MADV_DONTNEED takes {}.",
        case.name,
        time(take_back::NOTHING)?,
        some.map_or(String::new(), |some| format!(
            ", {some} when each 8th page was"
        )),
        time(take_back::ALL)?,
        time(take_back::DONT_NEED)?,
    ))
}

fn judged(value: f64, most: f64, text: fn(f64) -> String) -> String {
    let verdict = if value <= most { "met" } else { "missed" };
    format!("asked: at most {}; {verdict}", text(most))
}

fn series<'a>(case: &'a CaseResult, way: &str, figure: &str) -> Option<&'a Series> {
    Some(&case.way(way)?.figure(figure)?.series)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::experiment::{FigureResult, Unit, WayResult};

    fn way(name: &'static str, seconds: [f64; 3], faults: f64) -> WayResult {
        let figure = |name, unit, samples: [f64; 3]| FigureResult {
            name,
            unit,
            series: Series::new(samples.to_vec()).unwrap(),
        };
        WayResult {
            name,
            is_tenure: false,
            is_baseline: false,
            is_choice: false,
            figures: vec![
                figure(TIME, Unit::Seconds, seconds),
                figure(FAULTS, Unit::Count, [faults; 3]),
            ],
            times_as_good: None,
            tenure_times_as_good: None,
        }
    }

    fn case(table: &str, name: &str, ways: Vec<WayResult>) -> CaseResult {
        CaseResult {
            table: table.to_owned(),
            name: name.to_owned(),
            rounds: 3,
            compared: "time",
            ways,
            choice: None,
        }
    }

    #[test]
    fn the_loop_is_judged_within_a_round() {
        // Round 2 ran on a machine twice as slow; the ratios do not see it.
        let ways = |own: f64| {
            vec![
                way(DONT_NEED, [4.0, 8.0, 4.0], 20_480.0),
                way(reference::TENURE, [own, 2.0 * own, own], 3.0),
                way(MEMSET, [1.0, 2.0, 1.0], 0.0),
            ]
        };
        assert_eq!(
            conclude(&[case("loop", "1 thread", ways(1.05))]),
            "With 1 thread the loop takes 1.05 times as long as memset alone (asked: at most 1.08; \
             met) and 0.26 times as long as with MADV_DONTNEED (asked: at most 0.40; met), with 3 \
             page faults instead of 20,480."
        );
        let text = conclude(&[case("loop", "1 thread", ways(2.0))]);
        assert_eq!(text.matches("missed").count(), 2, "{text}");
    }

    #[test]
    fn the_worst_case_of_a_transition_counts() {
        let ways = |handle: f64, range: f64| {
            vec![
                way(HANDLE, [20e-9; 3], 0.0),
                way(HANDLES, [handle; 3], 0.0),
                way(RANGE, [100e-9; 3], 0.0),
                way(transition::RANGES, [range; 3], 0.0),
            ]
        };
        let alone = case("", &transition::name(0), ways(30e-9, 1.0));
        let beside = case("", &transition::name(BESIDE), ways(60e-9, 300e-9));
        assert_eq!(
            conclude(&[alone, beside]),
            "A transition through a handle takes at most 60.0 ns, however many others are volatile \
             (asked: at most 50.0 ns; missed). Through a raw range it takes 300 ns beside 10,000 \
             others (asked: at most 400 ns; met)."
        );
    }

    #[test]
    fn the_largest_that_is_taken_back_is_told() {
        let ways = vec![
            way(take_back::DONT_NEED, [0.3; 3], 0.0),
            way(take_back::NOTHING, [0.1; 3], 0.0),
            way(take_back::SCATTERED, [0.12; 3], 0.0),
            way(take_back::ALL, [0.2; 3], 0.0),
        ];
        let cases = [
            case(TAKE_BACK, "4 KiB", Vec::new()),
            case(TAKE_BACK, "1 GiB", ways),
        ];
        assert_eq!(
            conclude(&cases),
            "Taking 1 GiB back that was offered takes 100 ms when nothing was purged, 120 ms when \
             each 8th page was and 200 ms when all was; to have it again after MADV_DONTNEED takes \
             300 ms."
        );
    }

    #[test]
    fn nothing_is_said_about_what_was_not_measured() {
        assert_eq!(conclude(&[case("", "1 thread", Vec::new())]), "");
    }
}
