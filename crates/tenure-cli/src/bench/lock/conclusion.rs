//! What the data say about lock on fault.

use super::{
    super::{
        experiment::CaseResult,
        statistics::{Better, Series},
    },
    stream,
    ways::{HANDLERS, PLAIN, READS, SET_UP, TENURE, WHOLE},
};
use crate::text::{ratio_text, seconds_text};

/// Says it in sentences: one for each state of the page cache, and one about
/// memory that is not locked.
pub fn conclude(cases: &[CaseResult]) -> String {
    let sentences = cases.iter().filter_map(of_case);
    sentences
        .chain(stream::conclude(cases))
        .collect::<Vec<_>>()
        .join(" ")
}

fn of_case(case: &CaseResult) -> Option<String> {
    let set_up = |way| Some(seconds_text(series(case, way, SET_UP)?.median));
    let whole = set_up(WHOLE).map(|set_up| format!(" (mlock of the whole in {set_up})"));
    let start = format!(
        "{}: lock on fault is set up in {}{}",
        case.table,
        set_up(TENURE)?,
        whole.unwrap_or_default()
    );
    // A single round tells how long the disk took and little more.
    let ratios = (case.rounds > 1).then(|| ratios(case)).flatten();
    Some(format!("{start}{}.", ratios.unwrap_or_default()))
}

fn ratios(case: &CaseResult) -> Option<String> {
    let own = series(case, TENURE, READS)?;
    let plain = series(case, PLAIN, READS)?;
    // How many times as long is how many times as fast the other one is.
    let as_long = plain.times_as_good(own, Better::Less)?;
    let text = format!(
        "; reads take {} times as long as with plain mmap",
        ratio_text(as_long.median)
    );
    let handlers = HANDLERS.iter().filter_map(|&(name, _)| {
        let ratio = own.times_as_good(series(case, name, READS)?, Better::Less)?;
        Some((name, ratio.median))
    });
    let Some((name, ratio)) = handlers.min_by(|a, b| a.1.total_cmp(&b.1)) else {
        return Some(text);
    };
    let ratio = ratio_text(ratio);
    Some(format!(
        "{text} and are {ratio} times as fast as with the best handler ({name})"
    ))
}

fn series<'a>(case: &'a CaseResult, way: &str, figure: &str) -> Option<&'a Series> {
    Some(&case.way(way)?.figure(figure)?.series)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::experiment::{FigureResult, Unit, WayResult};

    fn way(name: &'static str, set_up: f64, reads: [f64; 3]) -> WayResult {
        let figure = |name, samples: &[f64]| FigureResult {
            name,
            unit: Unit::Seconds,
            series: Series::new(samples.to_vec()).unwrap(),
        };
        WayResult {
            name,
            is_tenure: name == TENURE,
            is_baseline: name == PLAIN,
            is_choice: false,
            figures: vec![figure(SET_UP, &[set_up; 3]), figure(READS, &reads)],
            times_as_good: None,
            tenure_times_as_good: None,
        }
    }

    fn case(ways: Vec<WayResult>) -> CaseResult {
        CaseResult {
            table: "9 reads".to_owned(),
            name: "warm".to_owned(),
            rounds: 3,
            compared: "time",
            ways,
            choice: None,
        }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // Round 2 ran on a machine twice as slow; the ratios do not see it.
        let mut ways = vec![
            way(PLAIN, 1e-5, [0.1, 0.2, 0.1]),
            way(WHOLE, 0.5, [0.1, 0.2, 0.1]),
            way(HANDLERS[1].0, 1e-5, [0.6, 1.2, 0.6]),
            way(HANDLERS[2].0, 1e-5, [0.3, 0.6, 0.3]),
            way(TENURE, 1e-4, [0.12, 0.24, 0.12]),
        ];
        let with_handlers = "9 reads: lock on fault is set up in 100 µs (mlock of the whole \
                             in 500 ms); reads take 1.20 times as long as with plain mmap and are \
                             2.50 times as fast as with the best handler (SIGSEGV handler, 16 \
                             pages).";
        assert_eq!(conclude(&[case(ways.clone())]), with_handlers);
        ways.retain(|way| [PLAIN, TENURE].contains(&way.name));
        let alone = "9 reads: lock on fault is set up in 100 µs; reads take 1.20 times as \
                     long as with plain mmap.";
        let mut case = case(ways);
        assert_eq!(conclude(std::slice::from_ref(&case)), alone);
        case.rounds = 1;
        assert_eq!(
            conclude(&[case]),
            "9 reads: lock on fault is set up in 100 µs."
        );
    }

    #[test]
    fn nothing_is_said_about_what_was_not_measured() {
        assert_eq!(conclude(&[case(vec![way(PLAIN, 1.0, [1.0; 3])])]), "");
    }
}
