//! What the data say about the allocators, and about what tenure's is to reach.

use super::{
    super::{
        experiment::{CaseResult, WayResult},
        statistics::Series,
    },
    allocators::{GLIBC, MMAP_ALWAYS},
    arrays, burst, large, search,
    ways::{KILLED, TIME},
};
use crate::text::{ratio_text, seconds_text};

/// The best of the other ways: the one compared with which tenure's is worst.
struct Best<'a> {
    name: &'a str,
    tenure_times_as_good: f64,
}

/// How many times the records of the best other one tenure's heap is to make, ...
const OF_THE_BEST: f64 = 0.97;
/// ... and of the C library's when it maps each block.
const OF_MMAP_ALWAYS: f64 = 8.0;
/// How many times as much as is live may be held.
const MOST_HELD: f64 = 1.2;
/// How many times as fast free() is to be, ...
const FREE_TIMES: f64 = 1000.0;
/// ... and the wait for a killed process, ...
const KILL_TIMES: f64 = 20.0;
/// ... both with so many GiB or more.
const JUDGED_GIB: f64 = 4.0;

/// Says it in sentences.
pub fn conclude(cases: &[CaseResult]) -> String {
    let searches = cases.iter().filter_map(searched);
    let others = [
        held(cases),
        worked_on_arrays(cases),
        freed(cases),
        killed(cases),
        limited(cases),
    ];
    let sentences: Vec<String> = searches.chain(others.into_iter().flatten()).collect();
    sentences.join(" ")
}

fn searched(case: &CaseResult) -> Option<String> {
    let of = if case.table.starts_with(search::SAME_SIZE) {
        "With"
    } else if case.table.starts_with(search::RANDOM_SIZES) {
        "With random sizes and"
    } else {
        return None;
    };
    let best = best_other(case)?;
    let ratio = best.tenure_times_as_good;
    let mapping = times_as_good_as(case, MMAP_ALWAYS)?;
    Some(format!(
        "{of} {} tenure makes {} times the records of the best other, {} ({}), and {} times those \
         of {MMAP_ALWAYS} ({}).",
        case.name,
        ratio_text(ratio),
        best.name,
        at_least(ratio, OF_THE_BEST),
        ratio_text(mapping),
        at_least(mapping, OF_MMAP_ALWAYS)
    ))
}

fn held(cases: &[CaseResult]) -> Option<String> {
    let judged = burst::name(burst::JUDGED);
    let is_it = |case: &&CaseResult| case.table.starts_with(burst::TABLE) && case.name == judged;
    let case = cases.iter().find(is_it)?;
    let held = |way: &WayResult| Some(way.figure(burst::HELD)?.series.median);
    let own = held(tenure(case)?)?;
    let others = case.ways.iter().filter(|way| !way.is_tenure);
    let others = others.filter_map(|way| Some(format!("{} {}", way.name, ratio_text(held(way)?))));
    Some(format!(
        "{judged} a burst tenure holds {} times what is live (asked: at most {}; {}), {}.",
        ratio_text(own),
        ratio_text(MOST_HELD),
        verdict(own <= MOST_HELD),
        others.collect::<Vec<_>>().join(", ")
    ))
}

fn worked_on_arrays(cases: &[CaseResult]) -> Option<String> {
    let of_case = |case: &CaseResult| {
        let best = best_other(case)?;
        Some(format!(
            "{}: {} times as fast as {GLIBC}, {} times as {}, the best other",
            case.name,
            ratio_text(times_as_good_as(case, GLIBC)?),
            ratio_text(best.tenure_times_as_good),
            best.name
        ))
    };
    let on_arrays = cases.iter().filter(|case| case.table == arrays::TABLE);
    let all: Vec<String> = on_arrays.filter_map(of_case).collect();
    (!all.is_empty()).then(|| format!("With large arrays tenure is: {}.", all.join("; ")))
}

fn freed(cases: &[CaseResult]) -> Option<String> {
    let case = cases.iter().find(|case| case.table == large::FREE)?;
    let text = compared(case, GLIBC, FREE_TIMES)?;
    Some(format!("free() of {} takes {text}.", case.name))
}

fn killed(cases: &[CaseResult]) -> Option<String> {
    let case = cases.iter().find(|case| case.table == large::KILL)?;
    let text = compared(case, large::PLAIN, KILL_TIMES)?;
    Some(format!(
        "A killed process with {} in memory is waited for in {text}.",
        case.name
    ))
}

/// Puts tenure's time beside that of another way, which it is to be so many times
/// as fast as.
fn compared(case: &CaseResult, other: &str, asked: f64) -> Option<String> {
    let time = |way: &WayResult| Some(seconds_text(series(way, TIME)?.median));
    let ratio = times_as_good_as(case, other)?;
    let verdict = match gib(case) {
        Some(gib) if gib >= JUDGED_GIB => verdict(ratio >= asked),
        _ => "with 4 GiB or more",
    };
    Some(format!(
        "{} instead of {} ({other}), 1/{} of it (asked: at most 1/{}; {verdict})",
        time(tenure(case)?)?,
        time(case.way(other)?)?,
        ratio_text(ratio),
        ratio_text(asked)
    ))
}

/// The size that a case is named after, if it is that large.
fn gib(case: &CaseResult) -> Option<f64> {
    case.name.strip_suffix(" GiB")?.parse().ok()
}

fn limited(cases: &[CaseResult]) -> Option<String> {
    let is_limited = |case: &&CaseResult| case.table.starts_with(search::LIMITED);
    let of_case = |case: &CaseResult| {
        let is_killed = |way: &&WayResult| {
            let killed = series(way, KILLED);
            killed.is_some_and(|killed| killed.maximum > 0.0)
        };
        let killed: Vec<&str> = case
            .ways
            .iter()
            .filter(is_killed)
            .map(|way| way.name)
            .collect();
        let who = match killed.as_slice() {
            [] => "nobody".to_owned(),
            some => some.join(", "),
        };
        let best = best_other(case).map(|best| {
            format!(
                "tenure makes {} times the records of the best other, {}",
                ratio_text(best.tenure_times_as_good),
                best.name
            )
        });
        let best = best.map_or(String::new(), |best| format!("; {best}"));
        format!("{}: killed: {who}{best}", case.name)
    };
    let all: Vec<String> = cases.iter().filter(is_limited).map(of_case).collect();
    (!all.is_empty()).then(|| format!("Under the limit: {}.", all.join(". ")))
}

fn best_other(case: &CaseResult) -> Option<Best<'_>> {
    let others = case.ways.iter().filter_map(|way| {
        Some(Best {
            name: way.name,
            tenure_times_as_good: way.tenure_times_as_good.as_ref()?.median,
        })
    });
    others.min_by(|a, b| a.tenure_times_as_good.total_cmp(&b.tenure_times_as_good))
}

fn times_as_good_as(case: &CaseResult, other: &str) -> Option<f64> {
    Some(case.way(other)?.tenure_times_as_good.as_ref()?.median)
}

fn tenure(case: &CaseResult) -> Option<&WayResult> {
    case.ways.iter().find(|way| way.is_tenure)
}

fn series<'a>(way: &'a WayResult, figure: &str) -> Option<&'a Series> {
    Some(&way.figure(figure)?.series)
}

fn at_least(ratio: f64, asked: f64) -> String {
    let verdict = verdict(ratio >= asked);
    format!("asked: at least {}; {verdict}", ratio_text(asked))
}

fn verdict(is_met: bool) -> &'static str {
    if is_met { "met" } else { "missed" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
        experiment::{FigureResult, Unit},
        heap::allocators::TENURE,
        statistics::Better,
    };

    type Samples = [f64; 3];

    /// A case in which `figure` was measured in those ways.
    fn case(
        table: &str,
        name: &str,
        (figure, better): (&'static str, Better),
        ways: &[(&'static str, Samples)],
    ) -> CaseResult {
        let is_tenure = |name: &str| name == TENURE || name == large::BACKGROUND;
        let series = |samples: Samples| Series::new(samples.to_vec()).unwrap();
        let own = ways.iter().find(|(name, _)| is_tenure(name)).unwrap().1;
        let result = |&(name, samples): &(&'static str, Samples)| WayResult {
            name,
            is_tenure: is_tenure(name),
            is_baseline: name == GLIBC,
            is_choice: false,
            figures: vec![FigureResult {
                name: figure,
                unit: Unit::Ratio,
                series: series(samples),
            }],
            times_as_good: None,
            tenure_times_as_good: match is_tenure(name) {
                true => None,
                false => series(own).times_as_good(&series(samples), better),
            },
        };
        CaseResult {
            table: table.to_owned(),
            name: name.to_owned(),
            rounds: 3,
            compared: figure,
            ways: ways.iter().map(result).collect(),
            choice: None,
        }
    }

    #[test]
    fn the_best_other_is_the_one_that_tenure_beats_least() {
        let records = ("records", Better::More);
        let ways = |own: f64| {
            // Round 2 ran on a machine half as fast; the ratios do not see it.
            let at = |rate: f64| [rate, rate / 2.0, rate];
            [
                (GLIBC, at(90.0)),
                (MMAP_ALWAYS, at(10.0)),
                ("jemalloc", at(100.0)),
                (TENURE, at(own)),
            ]
        };
        let of = |table, own| conclude(&[case(table, "4 threads", records, &ways(own))]);
        assert_eq!(
            of(search::SAME_SIZE, 98.0),
            "With 4 threads tenure makes 0.98 times the records of the best other, jemalloc \
             (asked: at least 0.97; met), and 9.80 times those of glibc, mmap always (asked: at \
             least 8.00; met)."
        );
        let slow = of(search::RANDOM_SIZES, 70.0);
        assert!(slow.starts_with("With random sizes and 4 threads tenure"));
        assert_eq!(slow.matches("; missed)").count(), 2, "{slow}");
    }

    #[test]
    fn what_is_held_is_judged_after_two_seconds() {
        let held = (burst::HELD, Better::Less);
        let ways = |own: f64| {
            [
                (GLIBC, [4.9; 3]),
                ("jemalloc", [2.4; 3]),
                (TENURE, [own; 3]),
            ]
        };
        let of = |name: &str, own| conclude(&[case(burst::TABLE, name, held, &ways(own))]);
        let judged = burst::name(burst::JUDGED);
        assert_eq!(
            of(&judged, 1.1),
            "2.00 s after a burst tenure holds 1.10 times what is live (asked: at most 1.20; met), \
             glibc 4.90, jemalloc 2.40."
        );
        assert!(of(&judged, 1.3).contains("missed"));
        assert_eq!(of("100 ms after", 1.3), "");
    }

    #[test]
    fn times_are_judged_with_4_gib() {
        let time = (TIME, Better::Less);
        let free = |name: &str| {
            let ways = [(GLIBC, [0.4; 3]), (TENURE, [1e-4; 3])];
            case(large::FREE, name, time, &ways)
        };
        let kill = |name: &str, own: f64| {
            let ways = [(large::PLAIN, [0.3; 3]), (large::BACKGROUND, [own; 3])];
            case(large::KILL, name, time, &ways)
        };
        assert_eq!(
            conclude(&[free("4 GiB"), kill("4 GiB", 0.003)]),
            "free() of 4 GiB takes 100 µs instead of 400 ms (glibc), 1/4,000 of it (asked: at most \
             1/1,000; met). A killed process with 4 GiB in memory is waited for in 3.00 ms instead \
             of 300 ms (plain), 1/100 of it (asked: at most 1/20.0; met)."
        );
        assert!(conclude(&[kill("8 GiB", 0.1)]).ends_with("1/20.0; missed)."));
        for small in ["1.5 GiB", "512 MiB"] {
            let text = conclude(&[free(small)]);
            assert!(text.ends_with("1/1,000; with 4 GiB or more)."), "{text}");
        }
    }

    #[test]
    fn who_was_killed_is_told() {
        let killed = (KILLED, Better::Less);
        let ways = [
            (GLIBC, [0.0; 3]),
            ("tcmalloc", [0.0, 1.0, 1.0]),
            (TENURE, [0.0; 3]),
        ];
        let text = conclude(&[case(search::LIMITED, "waves", killed, &ways)]);
        assert!(
            text.starts_with("Under the limit: waves: killed: tcmalloc"),
            "{text}"
        );
    }

    #[test]
    fn nothing_is_said_without_tenure() {
        let time = (TIME, Better::Less);
        let ways = [(GLIBC, [0.4; 3]), (TENURE, [1e-4; 3])];
        let mut free = case(large::FREE, "4 GiB", time, &ways);
        free.ways.retain(|way| way.name == GLIBC);
        free.ways[0].tenure_times_as_good = None;
        assert_eq!(conclude(&[free]), "");
    }
}
