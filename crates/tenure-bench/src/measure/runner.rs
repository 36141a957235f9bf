//! Runs an experiment: the ways of a case take turns, and every sample is kept.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::experiment::{Case, Experiment, Figure, Pace};
use crate::machine::clock::Clock;
use crate::record::{self, Choice, Series};

/// How often an experiment is repeated.
#[derive(Clone, Copy, Debug)]
pub struct Repeats {
    /// Rounds wanted.
    pub rounds: u32,
    /// Rounds measured however long they take.
    pub at_least: u32,
    /// Rounds of long cases.
    pub of_long: u32,
    /// Rounds wanted of short cases.
    pub of_short: u32,
    /// No further round is begun that would likely end after this time.
    pub within: Duration,
}

impl Repeats {
    /// As many rounds of everything, however long they take.
    pub const fn exactly(rounds: u32) -> Self {
        Self {
            rounds,
            at_least: rounds,
            of_long: rounds,
            of_short: rounds,
            within: Duration::ZERO,
        }
    }

    fn wanted(self, pace: Pace) -> u32 {
        match pace {
            Pace::Long => self.of_long,
            Pace::Usual => self.rounds,
            Pace::Short => self.of_short,
        }
    }
}

/// Returns how many samples `experiment` takes at most, the warm-up included.
pub fn sample_count(experiment: &Experiment, repeats: Repeats) -> u64 {
    let of_case = |case: &Case| {
        let warm_up = u32::from(case.pace != Pace::Long);
        case.ways.len() as u64 * u64::from(repeats.wanted(case.pace) + warm_up)
    };
    experiment.cases.iter().map(of_case).sum()
}

/// Runs `experiment`: one round of the cases that is not counted, so that memory
/// has been touched once (a virtual machine's memory is only backed by its host
/// when it is first used), then case by case the rounds that are. Long cases get
/// no such round and a fixed number of rounds; the others share the time.
/// `after_sample` is called after each sample.
pub fn measure(
    experiment: &mut Experiment,
    repeats: Repeats,
    clock: &dyn Clock,
    after_sample: &mut dyn FnMut(),
) -> Result<Vec<record::Case>> {
    let mut end = clock.now() + repeats.within;
    let mut costs = Vec::new();
    for case in &mut experiment.cases {
        let before = clock.now();
        if case.pace != Pace::Long {
            take_round(case, clock, after_sample)?;
        }
        costs.push((clock.now() - before) * repeats.wanted(case.pace));
    }
    let mut results = Vec::new();
    for (index, case) in experiment.cases.iter_mut().enumerate() {
        let before = clock.now();
        let repeats = Repeats {
            rounds: repeats.wanted(case.pace),
            within: share(end.saturating_sub(before), &costs[index..]),
            ..repeats
        };
        let rounds = take_rounds(case, repeats, clock, after_sample)?;
        if case.pace == Pace::Long {
            end += clock.now() - before;
        }
        let compared = case.compared.unwrap_or(experiment.compared);
        results.push(summarise(case, &rounds, compared)?);
    }
    Ok(results)
}

/// Measures one round, for tests of the answers.
#[cfg(test)]
pub fn once(experiment: &mut Experiment) -> Vec<record::Case> {
    let clock = crate::machine::clock::MonotonicClock::start();
    measure(experiment, Repeats::exactly(1), &clock, &mut || ()).unwrap()
}

/// Returns how much of the time `left` the first of the remaining cases gets:
/// as much as its part of what all the rounds wanted cost, to judge by the warm-up.
fn share(left: Duration, costs: &[Duration]) -> Duration {
    let all: Duration = costs.iter().sum();
    if all.is_zero() {
        return left;
    }
    left.mul_f64(costs[0].as_secs_f64() / all.as_secs_f64())
}

/// The figures of all ways in one round.
type Round = Vec<Vec<Figure>>;

fn take_rounds(
    case: &mut Case,
    repeats: Repeats,
    clock: &dyn Clock,
    after_sample: &mut dyn FnMut(),
) -> Result<Vec<Round>> {
    let start = clock.now();
    let mut rounds = Vec::new();
    for round in 1..=repeats.rounds {
        let before = clock.now();
        rounds.push(take_round(case, clock, after_sample)?);
        let now = clock.now();
        let next_end = now + (now - before);
        if round >= repeats.at_least && next_end - start > repeats.within {
            break;
        }
    }
    Ok(rounds)
}

fn take_round(case: &mut Case, clock: &dyn Clock, after_sample: &mut dyn FnMut()) -> Result<Round> {
    let mut round = Vec::new();
    for way in &mut case.ways {
        let figures = way.take_sample(clock);
        round.push(figures.with_context(|| format!("{}, {}", case.name, way.name))?);
        after_sample();
    }
    Ok(round)
}

fn summarise(case: &Case, rounds: &[Round], name: &str) -> Result<record::Case> {
    let mut ways = Vec::new();
    for (index, way) in case.ways.iter().enumerate() {
        let samples: Vec<&[Figure]> = rounds.iter().map(|round| &round[index][..]).collect();
        ways.push(record::Way {
            name: way.name.clone(),
            is_tenure: way.is_tenure,
            is_baseline: way.is_baseline,
            is_choice: way.is_choice,
            figures: series(&samples).with_context(|| format!("{}, {}", case.name, way.name))?,
            times_as_good: None,
            tenure_times_as_good: None,
        });
    }
    let compared = |way: &record::Way| way.figure(name).cloned();
    let ratio = |own: &Option<record::Figure>, older: &Option<record::Figure>| {
        let (own, older) = (own.as_ref()?, older.as_ref()?);
        own.series.times_as_good(&older.series, own.unit.better())
    };
    let baseline = ways.iter().find(|way| way.is_baseline).and_then(compared);
    let tenure = ways.iter().find(|way| way.is_tenure).and_then(compared);
    for way in &mut ways {
        let own = compared(way);
        if !way.is_tenure {
            way.tenure_times_as_good = ratio(&tenure, &own);
        }
        if !way.is_baseline {
            way.times_as_good = ratio(&own, &baseline);
        }
    }
    Ok(record::Case {
        table: case.table.clone(),
        name: case.name.clone(),
        rounds: rounds.len() as u32,
        compared: Some(name.to_owned()),
        choice: Choice::of(&ways),
        ways,
    })
}

/// Turns samples of several figures into several figures of samples.
fn series(samples: &[&[Figure]]) -> Result<Vec<record::Figure>> {
    let first = samples.first().context("no round was measured")?;
    let names = |sample: &[Figure]| -> Vec<&str> { sample.iter().map(|figure| figure.0).collect() };
    ensure!(
        samples.iter().all(|sample| names(sample) == names(first)),
        "not every round recorded the same figures"
    );
    let of_index = |(index, &(name, unit, _)): (usize, &Figure)| {
        let values = samples.iter().map(|sample| sample[index].2).collect();
        let series = Series::new(values).with_context(|| format!("{name} is not a number"))?;
        let name = name.to_owned();
        Ok(record::Figure { name, unit, series })
    };
    first.iter().enumerate().map(of_index).collect()
}

#[cfg(test)]
#[path = "../../tests/unit/measure/runner.rs"]
mod tests;
