//! What the data say about freeing lazily.

use super::{
    super::experiment::{CaseResult, WayResult},
    DONT_NEED, FREE,
};
use crate::text::ratio_text;

/// What tenure is to reach beside [`DONT_NEED`] without pressure, ...
const TARGET_WITHOUT: f64 = 1.7;
/// ... and under the heaviest, ...
const TARGET_HEAVIEST: f64 = 0.95;
/// ... where it is to be as fast as [`FREE`], too.
const TARGET_FREE: f64 = 1.0;

/// How many times the records of MADV_DONTNEED MADV_FREE made in the reference.
const REFERENCE: &str = "1.87, 1.86, 1.74, 1.98, 1.80, 1.78, 1.75, 1.44, 1.16";

/// Says it where there is a limit: without pressure, under the heaviest, and how
/// it goes from one to the other.
pub fn under_a_limit(cases: &[CaseResult]) -> String {
    let heaviest = cases.last().filter(|_| cases.len() > 1);
    let heaviest = heaviest.and_then(|case| {
        Some(format!(
            "Under the heaviest pressure ({}) tenure makes {} and {}.",
            case.name,
            beside(case, DONT_NEED, TARGET_HEAVIEST)?,
            beside(case, FREE, TARGET_FREE)?
        ))
    });
    let sentences = [without_pressure(cases), heaviest, grid(cases)];
    let sentences: Vec<String> = sentences.into_iter().flatten().collect();
    sentences.join(" ")
}

/// Says it where there is none, and so nothing of the other cases.
pub fn without_a_limit(cases: &[CaseResult]) -> String {
    let sentences = [without_pressure(cases), grid(cases)];
    let sentences: Vec<String> = sentences.into_iter().flatten().collect();
    sentences.join(" ")
}

fn without_pressure(cases: &[CaseResult]) -> Option<String> {
    let case = cases.first()?;
    Some(format!(
        "Without pressure ({}) tenure makes {}.",
        case.name,
        beside(case, DONT_NEED, TARGET_WITHOUT)?
    ))
}

fn beside(case: &CaseResult, way: &str, target: f64) -> Option<String> {
    let ratio = case.way(way)?.tenure_times_as_good.as_ref()?.median;
    let verdict = if ratio >= target { "met" } else { "missed" };
    Some(format!(
        "{} times the records of {way} (target {}: {verdict})",
        ratio_text(ratio),
        ratio_text(target)
    ))
}

/// The ratios of all cases, where there is more to see than their ends.
fn grid(cases: &[CaseResult]) -> Option<String> {
    let (first, last) = (cases.first()?, cases.last()?);
    let ratios = |is_wanted: fn(&&WayResult) -> bool| {
        let of_case = |case: &CaseResult| {
            let ratio = case.ways.iter().find(is_wanted)?.times_as_good.as_ref()?;
            Some(ratio_text(ratio.median))
        };
        let ratios: Option<Vec<String>> = cases.iter().map(of_case).collect();
        Some(ratios?.join(", "))
    };
    let free = ratios(|way| way.name == FREE)?;
    let tenure = ratios(|way| way.is_tenure)?;
    (cases.len() > 2).then(|| {
        format!(
            "Times the records of {DONT_NEED}, from {} to {}: {FREE} {free} (the reference: \
             {REFERENCE}); tenure {tenure}.",
            first.name, last.name
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::statistics::{Better, Series};

    fn case(name: &str, [dont_need, free, tenure]: [f64; 3]) -> CaseResult {
        let series = |records| Series::new(vec![records; 3]).unwrap();
        let ratio = |a, b| series(a).times_as_good(&series(b), Better::More);
        let way = |name, records| WayResult {
            name,
            is_tenure: name == "tenure",
            is_baseline: name == DONT_NEED,
            is_choice: false,
            figures: Vec::new(),
            times_as_good: ratio(records, dont_need),
            tenure_times_as_good: ratio(tenure, records),
        };
        CaseResult {
            table: String::new(),
            name: name.to_owned(),
            rounds: 3,
            compared: "time",
            ways: vec![
                way(DONT_NEED, dont_need),
                way(FREE, free),
                way("tenure", tenure),
            ],
            choice: None,
        }
    }

    #[test]
    fn targets_are_met_or_missed() {
        let met = case("1.1", [100.0, 200.0, 180.0]);
        let partly = case("8.8", [100.0, 120.0, 100.0]);
        assert_eq!(
            under_a_limit(&[met.clone(), partly]),
            "Without pressure (1.1) tenure makes 1.80 times the records of MADV_DONTNEED (target \
             1.70: met). Under the heaviest pressure (8.8) tenure makes 1.00 times the records of \
             MADV_DONTNEED (target 0.95: met) and 0.83 times the records of MADV_FREE (target \
             1.00: missed)."
        );
        assert!(!without_a_limit(&[met]).contains("heaviest"));
    }

    #[test]
    fn the_whole_grid_is_put_beside_the_reference() {
        let cases = ["1.1", "4.4", "8.8"].map(|name| case(name, [100.0, 150.0, 200.0]));
        let text = under_a_limit(&cases);
        assert!(text.contains("from 1.1 to 8.8: MADV_FREE 1.50, 1.50, 1.50 (the reference: 1.87,"));
        assert!(text.ends_with("tenure 2.00, 2.00, 2.00."), "{text}");
    }
}
