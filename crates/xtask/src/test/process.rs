//! One process that runs a test, or several that are grouped.

use std::{
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom},
    os::unix::process::CommandExt as _,
    process::{Command, ExitStatus, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use super::{
    hang,
    privileges::User,
    program::{Job, Program, Test},
    report::{self, Outcome},
};

/// Several times what the longest test takes on a loaded machine.
const LIMIT: Duration = Duration::from_secs(600);

/// How long a process that a test has left behind may take to end: some restore a
/// setting of the machine when the test has ended.
const GRACE: Duration = Duration::from_secs(10);

/// The setting that all tests of a pass share.
pub struct Setting<'a> {
    pub user: &'a User,
    pub without: Option<&'a str>,
}

impl Setting<'_> {
    /// The command that runs a program as the tests' user.
    pub fn command(&self, program: &Program) -> Command {
        let mut command = self.user.command(&program.file);
        command.current_dir(&program.folder).stdin(Stdio::null());
        command.envs(self.without.map(|features| ("TENURE_WITHOUT", features)));
        command
    }
}

/// The result of a job: each test's outcome, and the output of the process.
pub struct Done {
    pub outcomes: Vec<(String, Outcome)>,
    pub took: Duration,
    pub output: String,
}

/// Runs a job to its end.
pub fn run(job: &Job, setting: &Setting<'_>) -> Result<Done> {
    let folder = setting.user.temporary_folder()?;
    let mut file = tempfile::tempfile().context("making a file for a test's output")?;
    let mut command = setting.command(&job.program);
    command.env("TMPDIR", folder.path());
    if setting.user.is_other() {
        command.env("HOME", folder.path());
    }
    command.arg("--exact");
    match job.tests.as_slice() {
        [test] => command.arg(&test.name),
        _ => command.args(job.others.iter().flat_map(|name| ["--skip", name])),
    };
    // A group of its own, so that a signal to the tests does not reach this process.
    command.process_group(0);
    command.stdout(file.try_clone()?).stderr(file.try_clone()?);
    let begun = Instant::now();
    let mut child = command
        .spawn()
        .with_context(|| format!("starting {}", job.program.file.display()))?;
    let (ended, watched) = mpsc::channel::<()>();
    let pid = child.id();
    let watcher = thread::spawn(move || {
        let is_late = watched.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout);
        is_late.then(|| hang::show_and_kill(pid))
    });
    let status = child.wait().context("waiting for a test")?;
    let took = begun.elapsed();
    drop(ended);
    let shown = watcher.join().ok().flatten();
    let left = left_behind(&file, pid);
    file.seek(SeekFrom::Start(0))?;
    let mut output = Vec::new();
    file.read_to_end(&mut output)?;
    let mut output = String::from_utf8_lossy(&output).into_owned();
    let is_hung = shown.is_some();
    output.extend(shown);
    output.extend(left.clone());
    remove(folder);
    let outcomes = outcomes(job, &output, status, is_hung, left.is_some());
    Ok(Done {
        outcomes,
        took,
        output,
    })
}

/// Waits for processes that still hold the output of a test that has ended; kills and
/// describes those that do not end.
fn left_behind(file: &File, test: u32) -> Option<String> {
    let name = hang::name_of(file).ok()?;
    let begun = Instant::now();
    while !hang::holders(&name).is_empty() {
        if begun.elapsed() > GRACE {
            let shown: String = hang::holders(&name)
                .into_iter()
                .map(hang::show_and_kill)
                .collect();
            return Some(format!("left behind by process {test}:\n{shown}"));
        }
        thread::sleep(Duration::from_millis(10));
    }
    None
}

/// The outcome of each test of the job. The status decides for a single test, whatever it
/// prints; the output decides for several, of which an unmentioned one ended the process.
fn outcomes(
    job: &Job,
    output: &str,
    status: ExitStatus,
    is_hung: bool,
    has_left: bool,
) -> Vec<(String, Outcome)> {
    let told = report::outcomes(output);
    let is_alone = job.tests.len() == 1;
    let has_told_of_failure = told.iter().any(|(_, outcome)| outcome.is_failed());
    let how = match (is_hung, has_left) {
        (true, _) => Some(format!("hung for {} s", LIMIT.as_secs())),
        (_, true) => Some("left a process behind".to_owned()),
        _ if !status.success() && (is_alone || !has_told_of_failure) => {
            Some(format!("ended early: {status}"))
        }
        _ => None,
    };
    let of = |test: &Test| {
        // The last, because a test may run itself again in a child.
        let told = told.iter().rfind(|(name, _)| *name == test.name);
        match (told.map(|(_, outcome)| outcome.clone()), &how) {
            (Some(outcome), None) => outcome,
            (Some(outcome), Some(_)) if !is_alone && !has_left => outcome,
            (_, Some(how)) => Outcome::Failed(how.clone()),
            (None, None) if is_alone && output.contains("test result: ok. 1 passed") => {
                Outcome::Passed
            }
            (None, None) => Outcome::Failed("did not run".to_owned()),
        }
    };
    let all = job.tests.iter();
    all.map(|test| (test.full_name(&job.program), of(test)))
        .collect()
}

/// Removes a test's folder, also what the test has closed to others.
fn remove(folder: TempDir) {
    let path = folder.path().to_owned();
    if folder.close().is_err() {
        let _ = Command::new("chmod")
            .args(["-R", "u+rwX"])
            .arg(&path)
            .status();
        let _ = fs::remove_dir_all(path);
    }
}
