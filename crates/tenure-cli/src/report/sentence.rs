//! One sentence for each experiment that says what the reader sees, from the data.

use super::record::{Case, Experiment, Figure};
use crate::text::{count_text, ratio_text, seconds_text};

/// Returns the sentence of `experiment`.
pub fn of(experiment: &Experiment) -> String {
    if let Some(error) = &experiment.error {
        return format!("It was not measured: {error}.");
    }
    let own = match experiment.name.as_str() {
        "lock" => lock(experiment),
        "lazy" => lazy(experiment),
        "volatile" => volatile(experiment),
        "free" => free(experiment),
        "heap" => heap(experiment),
        _ => None,
    };
    own.or_else(|| any(experiment))
        .unwrap_or_else(|| "No case compares tenure with an older way.".to_owned())
}

/// Says how often tenure's way is the better one, beyond what the pairs spread,
/// and between which ratios. For every experiment.
fn any(experiment: &Experiment) -> Option<String> {
    let mut ratios: Vec<_> = experiment
        .cases
        .iter()
        .filter_map(|case| Some((case, case.tenure()?.times_as_good.as_ref()?)))
        .collect();
    ratios.sort_by(|a, b| a.1.median.total_cmp(&b.1.median));
    let (least, most) = (ratios.first()?, ratios.last()?);
    let good = good(experiment, least.0);
    let name = |case: &Case| match (case.table.as_str(), case.name.as_str()) {
        ("", name) | (name, "") => name.to_owned(),
        (table, name) => format!("{table}: {name}"),
    };
    let baseline = |case: &Case| {
        let way = case.baseline();
        way.map_or_else(|| "the older way".to_owned(), |way| way.name.clone())
    };
    if ratios.len() == 1 {
        return Some(format!(
            "tenure is {} times as {good} as {} ({} to {} in the rounds).",
            ratio_text(least.1.median),
            baseline(least.0),
            ratio_text(least.1.minimum),
            ratio_text(least.1.maximum)
        ));
    }
    let count = |is: &dyn Fn(f64, f64) -> bool| {
        let all = ratios
            .iter()
            .map(|(_, ratio)| (ratio.minimum, ratio.maximum));
        all.filter(|(least, most)| is(*least, *most)).count()
    };
    let better = count(&|least, _| least > 1.0);
    let worse = count(&|_, most| most < 1.0);
    let text = |(case, ratio): &(&Case, &crate::bench::Series)| {
        let (ratio, baseline) = (ratio_text(ratio.median), baseline(case));
        format!("{ratio} times as {good} as {baseline} ({})", name(case))
    };
    Some(format!(
        "tenure is better than the older way in {better} of {} comparisons, worse in {worse}, and \
         within what the rounds spread in {}; the extremes are {} and {}.",
        ratios.len(),
        ratios.len() - better - worse,
        text(least),
        text(most)
    ))
}

/// The word for better in this experiment.
fn good(experiment: &Experiment, case: &Case) -> &'static str {
    let figure = case
        .ways
        .iter()
        .find_map(|way| way.figure(experiment.compared(case)));
    figure.map_or("good", |figure| super::figures::good(figure.unit))
}

fn lock(experiment: &Experiment) -> Option<String> {
    // The first table has the ways that compete, another one all of them.
    let first = experiment.cases.first()?;
    let is_of_all = |case: &&Case| case.table.starts_with("All ways");
    let all = experiment.cases.iter().find(is_of_all)?;
    let set_up = |way| Some(seconds_text(all.way(way)?.figure("set up")?.series.median));
    let reads = |way| first.way(way)?.figure("reads");
    let plain = reads("plain mmap, no lock")?;
    let times = |way| Some(ratio_text(plain.times_as_good(reads(way)?)?.median));
    Some(format!(
        "Lock on fault is set up in {} where mlock of the whole file takes {}; reads then take {} \
         times as long as without any lock, and {} times with the best signal handler ({}).",
        set_up("tenure, lock on fault")?,
        set_up("mlock of the whole")?,
        times("tenure, lock on fault")?,
        times("SIGSEGV handler, 16 pages")?,
        first.table
    ))
}

fn lazy(experiment: &Experiment) -> Option<String> {
    // P.T: the fewest processes and threads press least.
    let load = |case: &&Case| {
        let (processes, threads) = case.name.split_once('.')?;
        Some((processes.parse::<u32>().ok()?, threads.parse::<u32>().ok()?))
    };
    let cases = || experiment.cases.iter().filter(|case| load(case).is_some());
    let (first, last) = (cases().min_by_key(load)?, cases().max_by_key(load)?);
    let baseline = &first.baseline()?.name;
    let tenure = |case: &Case| Some(ratio_text(case.tenure()?.times_as_good.as_ref()?.median));
    let plain = |case: &Case| {
        let ratio = case.way("MADV_FREE")?.times_as_good.as_ref()?.median;
        Some(ratio_text(ratio))
    };
    if first.name == last.name {
        return None;
    }
    Some(format!(
        "Where memory is plentiful ({}) tenure makes {} times the records of {baseline} and \
         MADV_FREE {} times; under the heaviest pressure ({}) it is {} times and {} times.",
        first.name,
        tenure(first)?,
        plain(first)?,
        last.name,
        tenure(last)?,
        plain(last)?
    ))
}

fn volatile(experiment: &Experiment) -> Option<String> {
    let is_loop = |case: &&Case| case.way("memset alone").is_some();
    let case = experiment.cases.iter().rev().find(is_loop)?;
    let figure = |way: &str, name: &str| case.way(way)?.figure(name);
    let alone = figure("memset alone", "time")?;
    let times = |way: &str| {
        Some(ratio_text(
            alone.times_as_good(figure(way, "time")?)?.median,
        ))
    };
    let faults = |way: &str| {
        let faults: &Figure = figure(way, "minor faults")?;
        Some(count_text(faults.series.median))
    };
    Some(format!(
        "With {} the loop takes {} times as long as memset alone with tenure and {} times as long \
         with MADV_DONTNEED, with {} page faults instead of {}.",
        case.name,
        times("tenure")?,
        times("MADV_DONTNEED")?,
        faults("tenure")?,
        faults("MADV_DONTNEED")?
    ))
}

fn free(experiment: &Experiment) -> Option<String> {
    let ratio = |case: &Case| Some(case.tenure()?.times_as_good.as_ref()?.median);
    let is_largest = |case: &&Case| case.name.starts_with("unmap ") && case.way("munmap").is_some();
    let cases = experiment.cases.iter().filter(is_largest);
    let waits = |case: &Case, way: &str| Some(case.way(way)?.figure("caller waits")?.series.median);
    let case = cases
        .filter(|case| waits(case, "tenure").is_some())
        .max_by(|a, b| {
            waits(a, "munmap")
                .unwrap_or(0.0)
                .total_cmp(&waits(b, "munmap").unwrap_or(0.0))
        })?;
    Some(format!(
        "To {} the caller waits {} with tenure instead of {} with munmap: 1/{} of it.",
        case.name,
        seconds_text(waits(case, "tenure")?),
        seconds_text(waits(case, "munmap")?),
        ratio_text(ratio(case)?)
    ))
}

fn heap(experiment: &Experiment) -> Option<String> {
    let of = |table: &'static str| {
        let cases = experiment.cases.iter();
        cases.filter(move |case| case.table.starts_with(table))
    };
    let median = |case: &Case, way, figure| Some(case.way(way)?.figure(figure)?.series.median);
    let (burst, search) = (
        of("Burst and idle").next_back()?,
        of("Copy a chunk").next_back()?,
    );
    let freed = of("free() of one block").next()?;
    let held = |way| Some(ratio_text(median(burst, way, "held / live")?));
    let time = |way| Some(seconds_text(median(freed, way, "time")?));
    let records = search.tenure()?.times_as_good.as_ref()?.median;
    Some(format!(
        "{} a burst tenure holds {} times what is live and glibc {} times; with {} tenure makes {} \
         times the records of glibc; free() of {} takes {} instead of {}.",
        burst.name,
        held("tenure")?,
        held("glibc")?,
        search.name,
        ratio_text(records),
        freed.name,
        time("tenure")?,
        time("glibc")?
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn experiment(name: &str, ratios: &[[f64; 3]]) -> Experiment {
        let series = |[median, minimum, maximum]: [f64; 3]| {
            json!({
                "name": "time", "unit": "seconds", "samples": [median],
                "median": median, "minimum": minimum, "maximum": maximum
            })
        };
        let way = |name: &str, is_tenure: bool, ratio| {
            json!({
                "name": name, "is_tenure": is_tenure, "is_baseline": !is_tenure,
                "figures": [series([1.0; 3])], "times_as_good": ratio
            })
        };
        let case = |(index, ratio): (usize, &[f64; 3])| {
            json!({
                "name": format!("case {index}"), "rounds": 3,
                "ways": [way("old", false, json!(null)), way("new", true, series(*ratio))]
            })
        };
        let cases: Vec<_> = ratios.iter().enumerate().map(case).collect();
        let experiment = json!({"name": name, "compared": "time", "cases": cases});
        serde_json::from_value(experiment).unwrap()
    }

    #[test]
    fn what_spreads_around_one_is_neither_better_nor_worse() {
        let ratios = [[2.0, 1.5, 3.0], [1.1, 0.9, 1.2], [0.5, 0.4, 0.6]];
        let sentence = of(&experiment("swap", &ratios));
        assert!(
            sentence.contains("in 1 of 3 comparisons, worse in 1, and within"),
            "{sentence}"
        );
        assert!(
            sentence.contains("spread in 1; the extremes are 0.50 times as fast as old (case 2)")
        );
    }

    #[test]
    fn the_heap_is_told_by_what_it_holds_makes_and_frees() {
        let series = |name: &str, unit: &str, median: f64| {
            json!({
                "name": name, "unit": unit, "samples": [median],
                "median": median, "minimum": median, "maximum": median
            })
        };
        let case = |table: &str, name: &str, figure: [serde_json::Value; 2]| {
            let [glibc, tenure] = figure;
            json!({
                "table": table, "name": name, "rounds": 3,
                "ways": [
                    {
                        "name": "glibc", "is_tenure": false, "is_baseline": true,
                        "figures": [glibc]
                    },
                    {
                        "name": "tenure", "is_tenure": true, "is_baseline": false,
                        "figures": [tenure], "times_as_good": series("", "ratio", 0.5)
                    }
                ]
            })
        };
        let both = |name, unit, [a, b]: [f64; 2]| [series(name, unit, a), series(name, unit, b)];
        let cases = json!([
            case(
                "Copy a chunk: 9",
                "8 threads",
                both("records", "per_second", [9.0, 8.0])
            ),
            case(
                "Burst and idle: 9",
                "1 s after",
                both("held / live", "ratio", [5.0, 5.0])
            ),
            case(
                "Burst and idle: 9",
                "2 s after",
                both("held / live", "ratio", [5.0, 1.1])
            ),
            case(
                "free() of one block",
                "4 GiB",
                both("time", "seconds", [0.2, 1e-4])
            ),
        ]);
        let heap = json!({"name": "heap", "compared": "time", "cases": cases});
        assert_eq!(
            of(&serde_json::from_value(heap).unwrap()),
            "2 s after a burst tenure holds 1.10 times what is live and glibc 5.00 times; with 8 \
             threads tenure makes 0.50 times the records of glibc; free() of 4 GiB takes 100 µs \
             instead of 200 ms."
        );
    }

    #[test]
    fn a_verb_whose_ways_are_not_there_has_the_general_sentence() {
        for name in ["lock", "lazy", "volatile", "free", "heap"] {
            let sentence = of(&experiment(name, &[[2.0, 1.5, 3.0]]));
            assert_eq!(
                sentence,
                "tenure is 2.00 times as fast as old (1.50 to 3.00 in the rounds)."
            );
        }
        assert!(of(&experiment("free", &[])).starts_with("No case compares"));
    }
}
