//! `tenure bench`: tenure beside the older ways, alternating in one run.

use std::fs::File;
use std::io::{BufWriter, Write};

use anyhow::{Context as _, Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::arguments::{BenchArguments, Name};
use crate::machine::clock::{Clock, MonotonicClock};
use crate::machine::environment;
use crate::measure::{self, Headroom, Settings};
use crate::present::{finding, headline, terminal};
use crate::record::{self, Record};
use crate::{budget, experiments};

/// How all experiments are measured.
const METHOD: &str = "Each case does the same work once in tenure's way and once in each older \
    way. The ways take turns (A B C, A B C, ...) in one run; a round before them is not counted, \
    unless a round takes long. Only the work is timed, with the monotonic clock, and each way \
    checks its own answer. samples has a value for each round, in order; median, minimum and \
    maximum are theirs. A ratio is computed round by round, from the pair of values of that round, \
    and its median is the median of the pairs.";

/// Runs the experiments that `arguments` name and writes the report to `out`.
///
/// # Errors
///
/// Fails when `out` cannot be written, and, after all have run, when an
/// experiment has failed.
pub fn run(arguments: &BenchArguments, out: &mut dyn Write) -> Result<()> {
    // To fail for this at the end would be late.
    let file = match &arguments.record {
        None => None,
        Some(path) => {
            let file = File::create(path).with_context(|| format!("writing {}", path.display()))?;
            Some((path, file))
        }
    };
    let clock = MonotonicClock::start();
    let environment = environment::read()?;
    if !arguments.json {
        write!(out, "{}", terminal::heading(&environment))?;
        out.flush()?;
    }
    let mut record = Record {
        label: String::new(),
        environment,
        command: Some(command_line()),
        method: Some(METHOD.to_owned()),
        seed: Some(arguments.seed),
        experiments: Vec::new(),
    };
    for name in arguments.chosen() {
        let experiment =
            run_one(name, arguments, &clock).unwrap_or_else(|error| record::Experiment {
                name: name.as_str().to_owned(),
                error: Some(format!("{error:#}")),
                ..Default::default()
            });
        if !arguments.json {
            write!(out, "{}", terminal::experiment(&experiment))?;
            out.flush()?;
        }
        record.experiments.push(experiment);
    }
    if !arguments.json && record.experiments.len() > 1 {
        let headline = headline::table(&record.experiments);
        writeln!(out, "\n{}", terminal::table(&headline))?;
    }
    if let Some((path, mut file)) = file {
        write_json(&record, &mut file).with_context(|| format!("writing {}", path.display()))?;
    }
    if arguments.json {
        write_json(&record, out)?;
    }
    let failure =
        |one: &record::Experiment| Some(format!("{} failed: {}", one.name, one.error.as_ref()?));
    let failures: Vec<String> = record.experiments.iter().filter_map(failure).collect();
    match failures.is_empty() {
        true => Ok(()),
        false => bail!("{}", failures.join("; ")),
    }
}

fn write_json(record: &Record, out: &mut dyn Write) -> Result<()> {
    let mut out = BufWriter::new(out);
    serde_json::to_writer_pretty(&mut out, record).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// Returns the command line as it was given, without the folder of the program.
fn command_line() -> String {
    let mut words: Vec<_> = std::env::args_os()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    if let Some(program) = words.first_mut() {
        *program = "tenure".to_owned();
    }
    words.join(" ")
}

fn run_one(
    name: Name,
    arguments: &BenchArguments,
    clock: &dyn Clock,
) -> Result<record::Experiment> {
    let sizes = budget::sizes(name, arguments);
    let settings = Settings {
        seed: arguments.seed,
        sizes,
        is_named: arguments.experiments.contains(&name),
        headroom: Headroom::now()?,
    };
    let mut experiment = experiments::prepare(name, &settings)?;
    let repeats = budget::repeats(name, sizes, arguments);
    let progress = progress_bar(name, measure::sample_count(&experiment, repeats));
    let measured = measure::measure(&mut experiment, repeats, clock, &mut || progress.inc(1));
    progress.finish_and_clear();
    let mut measured = record::Experiment {
        name: name.as_str().to_owned(),
        sizes: sizes.as_str().to_owned(),
        cases: measured?,
        title: experiment.title,
        notes: experiment.notes,
        compared: experiment.compared.to_owned(),
        ..Default::default()
    };
    measured.conclusion = finding::sentences(&measured).join(" ");
    Ok(measured)
}

/// Makes a progress bar on standard error; hidden unless that is a terminal. It
/// only draws between samples: a thread that ticks would disturb them.
fn progress_bar(name: Name, samples: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(samples), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{msg:9} [{bar:40}] {pos}/{len} samples")
        .expect("the template is valid");
    bar.set_style(style.progress_chars("=> "));
    bar.set_message(name.as_str());
    bar.tick();
    bar
}

#[cfg(test)]
#[path = "../tests/unit/run.rs"]
mod tests;
