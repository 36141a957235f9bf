//! Which job runs when: several side by side, the longest first; then the exclusive ones.

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    path::PathBuf,
    sync::{Mutex, mpsc},
    thread,
    time::Duration,
};

use anyhow::Result;

use super::{
    process::{self, Done, Setting},
    program::{Job, Program},
    report::{REPEATS, Report},
};

/// More failures than these have one cause, and repeating them would take long.
const MAX_REPEATED: usize = 10;

/// How long each job took in an earlier run, in milliseconds: a hint, kept beside what
/// cargo builds.
pub struct Durations {
    file: Option<PathBuf>,
    of: BTreeMap<String, u64>,
}

impl Durations {
    /// Reads what an earlier run has left; nothing if there is none.
    pub fn read(programs: &[Program]) -> Self {
        let folder = programs.first().and_then(|program| program.file.parent());
        let file = folder.map(|folder| folder.join("tenure-test-durations.json"));
        let text = file.as_ref().and_then(|file| fs::read_to_string(file).ok());
        let of = text.and_then(|text| serde_json::from_str(&text).ok());
        Self {
            file,
            of: of.unwrap_or_default(),
        }
    }

    /// Adds what this run has measured.
    pub fn write(&self, report: &Report) {
        let mut of = self.of.clone();
        of.extend(report.durations());
        let text = serde_json::to_string(&of).unwrap_or_default();
        // It is a hint: without it the next run begins in another order.
        let _ = self.file.as_ref().map(|file| fs::write(file, text));
    }

    /// Jobs that nobody has timed yet come first.
    fn of(&self, job: &Job) -> u64 {
        self.of.get(&job.key()).copied().unwrap_or(u64::MAX)
    }
}

/// Runs all jobs. Returns those with failed tests, and the tests' names.
pub fn run(
    jobs: Vec<Job>,
    side_by_side: Option<usize>,
    setting: &Setting<'_>,
    durations: &Durations,
    report: &mut Report,
) -> Result<Vec<(Job, Vec<String>)>> {
    let cpus = thread::available_parallelism().map_or(1, Into::into);
    let (exclusive, mut shared): (Vec<_>, Vec<_>) =
        jobs.into_iter().partition(|job| job.is_exclusive);
    shared.sort_by_key(|job| std::cmp::Reverse(durations.of(job)));
    let mut failed = run_side_by_side(shared, side_by_side.unwrap_or(cpus + 1), setting, report)?;
    failed.extend(run_side_by_side(exclusive, 1, setting, report)?);
    Ok(failed)
}

/// Runs the jobs with failed tests again, one after the other. A test that passes each time
/// is reported as unstable, and does not fail the pass.
pub fn repeat(
    failed: &[(Job, Vec<String>)],
    setting: &Setting<'_>,
    report: &mut Report,
) -> Result<()> {
    if report.failed() > MAX_REPEATED {
        return Ok(());
    }
    for (job, names) in failed {
        let mut stable = names.clone();
        for _ in 0..REPEATS {
            let done = process::run(job, setting)?;
            let passed = |name: &String| {
                let outcome = done.outcomes.iter().find(|(it, _)| it == name);
                outcome.is_some_and(|(_, outcome)| !outcome.is_failed())
            };
            stable.retain(passed);
            if stable.is_empty() {
                break;
            }
        }
        stable.iter().for_each(|name| report.mark_unstable(name));
    }
    Ok(())
}

fn run_side_by_side(
    jobs: Vec<Job>,
    count: usize,
    setting: &Setting<'_>,
    report: &mut Report,
) -> Result<Vec<(Job, Vec<String>)>> {
    let mut all_failed = Vec::new();
    let queue = Mutex::new(VecDeque::from(jobs));
    let next = || queue.lock().ok()?.pop_front();
    let (done, all) = mpsc::channel::<(Job, Result<Done>)>();
    thread::scope(|scope| {
        for _ in 0..count.max(1) {
            let done = done.clone();
            scope.spawn(move || {
                while let Some(job) = next() {
                    let result = process::run(&job, setting);
                    if done.send((job, result)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(done);
        for (job, result) in all {
            let result = result?;
            let share = result.took / u32::try_from(result.outcomes.len()).unwrap_or(1).max(1);
            let mut output = result.output.as_str();
            let mut failed = Vec::new();
            for (name, outcome) in result.outcomes {
                let is_failed = outcome.is_failed();
                report.add(name.clone(), outcome, share, output);
                if is_failed {
                    output = "(its output is above)\n";
                    failed.push(name);
                }
            }
            report.timed(job.key(), result.took);
            if !failed.is_empty() {
                all_failed.push((job, failed));
            }
        }
        Ok(all_failed)
    })
}

/// Whole milliseconds.
pub fn milliseconds(took: Duration) -> u64 {
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}
