//! What the data say about freeing lazily.

use super::{super::experiment::CaseResult, DONT_NEED, FREE};
use crate::text::ratio_text;

/// Says it for the first and the last case: without pressure, and with the most.
pub fn conclude(cases: &[CaseResult]) -> String {
    let (Some(first), Some(last)) = (cases.first(), cases.last()) else {
        return String::new();
    };
    let of_case = |case: &CaseResult| {
        Some(format!(
            "With {}, tenure makes {} times the records of {DONT_NEED} and {} times those of {FREE}.",
            case.name,
            ratio_text(against(case, DONT_NEED)?),
            ratio_text(against(case, FREE)?),
        ))
    };
    let sentences = [first, last].into_iter().filter_map(of_case);
    sentences.collect::<Vec<_>>().join(" ")
}

fn against(case: &CaseResult, way: &str) -> Option<f64> {
    Some(case.way(way)?.tenure_times_as_good.as_ref()?.median)
}
