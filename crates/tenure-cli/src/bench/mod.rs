//! `tenure bench`: tenure beside the older ways, alternating in one run.

#[cfg(test)]
mod alone;
mod choice;
mod clock;
mod environment;
mod experiment;
mod fault_handler;
mod files;
mod free;
mod grid;
mod group;
mod heap;
mod kernel;
mod lazy;
mod lock;
mod populate;
mod probe;
mod put_back;
mod raw;
mod report;
mod runner;
mod sizes;
mod spread;
mod statistics;
mod tables;
mod threads;
mod touch;
mod trace;
mod volatile;
mod words;

use std::{
    fs::File,
    io::{BufWriter, Write},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

// A soak has one, too.
pub use self::group::Group;
// What the page that is made from a report reads and writes as well.
pub use self::{
    experiment::Unit,
    spread::spread_text,
    statistics::{Better, Series},
};

use self::{
    clock::{Clock, MonotonicClock},
    environment::Environment,
    experiment::Experiment,
    report::{ExperimentReport, Findings, Outcome, Report},
    runner::Repeats,
    sizes::{Room, Sizes},
};
use crate::cli::{BenchArguments, ExperimentName};

/// Says whether this process was started as a worker of an experiment.
pub fn is_worker() -> bool {
    std::env::args_os()
        .nth(1)
        .is_some_and(|first| first == heap::ARGUMENT)
}

/// Does a worker's work.
///
/// # Errors
///
/// Fails when nobody listens.
pub fn work() -> Result<()> {
    heap::work()
}

/// What an experiment is prepared from.
struct Settings {
    seed: u64,
    sizes: Sizes,
    room: Room,
}

/// Runs the experiments that `arguments` name and writes the report to `out`.
///
/// # Errors
///
/// Fails when `out` cannot be written, and, after all have run, when an
/// experiment has failed.
pub fn run(arguments: &BenchArguments, out: &mut dyn Write) -> Result<()> {
    // To fail for this at the end would be late.
    let record = arguments.record.as_ref().map(|path| {
        let file = File::create(path).with_context(|| format!("writing {}", path.display()))?;
        anyhow::Ok((path, file))
    });
    let record = record.transpose()?;
    let clock = MonotonicClock::start();
    let mut report = Report {
        environment: Environment::now()?,
        command: command_line(),
        method: report::METHOD,
        seed: arguments.seed,
        experiments: Vec::new(),
    };
    if !arguments.json {
        write!(out, "{}", report::heading(&report.environment))?;
        out.flush()?;
    }
    for name in arguments.chosen() {
        let outcome = match run_one(name, arguments, &clock) {
            Ok(findings) => Outcome::Measured(findings),
            Err(error) => Outcome::Failed {
                error: format!("{error:#}"),
            },
        };
        let experiment = ExperimentReport { name, outcome };
        if !arguments.json {
            write!(out, "{}", experiment.text())?;
            out.flush()?;
        }
        report.experiments.push(experiment);
    }
    if let Some((path, mut file)) = record {
        write_json(&report, &mut file).with_context(|| format!("writing {}", path.display()))?;
    }
    if arguments.json {
        write_json(&report, out)?;
    }
    match failures(&report) {
        failures if failures.is_empty() => Ok(()),
        failures => bail!("{}", failures.join("; ")),
    }
}

fn write_json(report: &Report, out: &mut dyn Write) -> Result<()> {
    let mut out = BufWriter::new(out);
    serde_json::to_writer_pretty(&mut out, report).map_err(std::io::Error::from)?;
    writeln!(out)?;
    out.flush()?;
    Ok(())
}

/// The command line as it was given, but for the folder that the program lies in.
fn command_line() -> String {
    let words = std::env::args_os().skip(1);
    let words = words.map(|word| word.to_string_lossy().into_owned());
    let all: Vec<String> = ["tenure".to_owned()].into_iter().chain(words).collect();
    all.join(" ")
}

fn failures(report: &Report) -> Vec<String> {
    let failure = |experiment: &ExperimentReport| match &experiment.outcome {
        Outcome::Failed { error } => Some(format!("{} failed: {error}", experiment.name.as_str())),
        Outcome::Measured(_) => None,
    };
    report.experiments.iter().filter_map(failure).collect()
}

fn run_one(
    name: ExperimentName,
    arguments: &BenchArguments,
    clock: &dyn Clock,
) -> Result<Findings> {
    let sizes = Sizes::of(name, arguments);
    let settings = Settings {
        seed: arguments.seed,
        sizes,
        room: Room::now()?,
    };
    let mut experiment = prepare(name, &settings)?;
    let repeats = repeats(name, sizes, arguments);
    let progress = progress_bar(name, runner::sample_count(&experiment, repeats));
    let measured = runner::measure(&mut experiment, repeats, clock, &mut || progress.inc(1));
    progress.finish_and_clear();
    let cases = measured?;
    Ok(Findings {
        sizes,
        conclusion: (experiment.conclude)(&cases),
        title: experiment.title,
        notes: experiment.notes,
        compared: experiment.compared,
        cases,
    })
}

fn prepare(name: ExperimentName, settings: &Settings) -> Result<Experiment> {
    match name {
        ExperimentName::Populate => populate::experiment(settings),
        ExperimentName::Lock => lock::experiment(settings),
        ExperimentName::Lazy => lazy::experiment(settings),
        ExperimentName::Volatile => volatile::experiment(settings),
        ExperimentName::Free => free::experiment(settings),
        ExperimentName::Heap => heap::experiment(settings),
    }
}

/// Divides the minute that all six may take, or the ten; a slow machine gets fewer
/// rounds. Larger sizes have a time of their own, and long cases, which take most of it.
fn repeats(name: ExperimentName, sizes: Sizes, arguments: &BenchArguments) -> Repeats {
    if let Some(rounds) = arguments.rounds {
        return Repeats {
            rounds,
            at_least: rounds,
            of_long: rounds,
            of_short: rounds,
            within: Duration::ZERO,
        };
    }
    if sizes != Sizes::Quick {
        let is_full = sizes == Sizes::Full;
        return Repeats {
            rounds: 11,
            at_least: 3,
            of_long: match name {
                _ if is_full => 3,
                ExperimentName::Heap => 2,
                _ => 1,
            },
            of_short: 41,
            within: Duration::from_secs(match name {
                ExperimentName::Free => 270,
                ExperimentName::Volatile => 240,
                ExperimentName::Heap if is_full => 600,
                // Ratios near 1 need many rounds.
                ExperimentName::Heap if arguments.experiments.contains(&name) => 300,
                ExperimentName::Heap => 120,
                _ if is_full => 100,
                _ => 60,
            }),
        };
    }
    if !arguments.quick {
        return Repeats {
            rounds: 11,
            at_least: 3,
            of_long: 2,
            of_short: 41,
            within: Duration::from_secs(60),
        };
    }
    let seconds = match name {
        ExperimentName::Populate => 6,
        ExperimentName::Lock => 3,
        ExperimentName::Lazy => 4,
        ExperimentName::Volatile => 4,
        ExperimentName::Free => 8,
        ExperimentName::Heap => 2,
    };
    Repeats {
        rounds: 5,
        // A slow machine is to need no more than the minute, either.
        at_least: 2,
        of_long: 1,
        of_short: 21,
        within: Duration::from_secs(seconds),
    }
}

/// Makes a progress bar on standard error; hidden unless that is a terminal. It
/// only draws between samples: a thread that ticks would disturb them.
fn progress_bar(name: ExperimentName, samples: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(samples), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{msg:9} [{bar:40}] {pos}/{len} samples")
        .expect("the template is valid");
    bar.set_style(style.progress_chars("=> "));
    bar.set_message(name.as_str());
    bar.tick();
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_template_is_valid() {
        progress_bar(ExperimentName::Free, 1).finish_and_clear();
    }

    fn arguments(experiments: &[ExperimentName]) -> BenchArguments {
        BenchArguments {
            experiments: experiments.to_vec(),
            quick: false,
            full: false,
            rounds: None,
            only: Vec::new(),
            json: false,
            record: None,
            seed: 1,
        }
    }

    #[test]
    fn asked_for_rounds_are_exact() {
        let arguments = BenchArguments {
            rounds: Some(7),
            ..arguments(&[])
        };
        let repeats = repeats(ExperimentName::Free, Sizes::Quick, &arguments);
        assert_eq!((repeats.rounds, repeats.at_least), (7, 7));
        assert_eq!((repeats.of_long, repeats.of_short), (7, 7));
    }

    #[test]
    fn sizes_are_those_asked_for_or_depend_on_what_is_named() {
        let all = [
            ExperimentName::Populate,
            ExperimentName::Lock,
            ExperimentName::Volatile,
            ExperimentName::Free,
        ];
        let of = |named: &[ExperimentName], quick, full| {
            let arguments = BenchArguments {
                quick,
                full,
                ..arguments(named)
            };
            all.map(|name| Sizes::of(name, &arguments))
        };
        let (quick, middle, full) = (Sizes::Quick, Sizes::Middle, Sizes::Full);
        assert_eq!(of(&[], false, false), [middle, middle, quick, quick]);
        assert_eq!(of(&all, false, false), [full, middle, middle, middle]);
        for named in [&[], &all[..]] {
            assert_eq!(of(named, true, false), [quick; 4]);
            assert_eq!(of(named, false, true), [full; 4]);
        }
    }

    #[test]
    fn the_time_for_all_is_less_than_a_minute_or_ten() {
        let seconds = |quick| {
            let arguments = BenchArguments {
                quick,
                ..arguments(&[])
            };
            let all = <ExperimentName as clap::ValueEnum>::value_variants();
            let within = |&name| repeats(name, Sizes::of(name, &arguments), &arguments).within;
            all.iter().map(|name| within(name).as_secs()).sum::<u64>()
        };
        // Preparing them, and the long cases, take the rest.
        assert!(seconds(true) <= 40);
        assert!(seconds(false) <= 450);
    }
}
