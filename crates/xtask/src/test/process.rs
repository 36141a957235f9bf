//! One process that runs a test, or several that are grouped.

use std::{
    io::{Read as _, Seek as _, SeekFrom},
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    path::Path,
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result};

use super::{
    clean,
    outcomes::outcomes,
    privileges::User,
    program::{Job, Program},
    report::Outcome,
    run_folder::{RunFolder, THIS_PROGRAM},
    supervisor::Record,
    tsan::{self, Tsan},
};

/// Several times what the longest test takes on a loaded machine.
const LIMIT: Duration = Duration::from_secs(600);

/// The setting that all tests of a pass share.
pub struct Setting<'a> {
    pub user: &'a User,
    pub folder: &'a RunFolder,
    pub without: Option<&'a str>,
    pub tsan: Option<&'a Tsan>,
}

impl Setting<'_> {
    /// The command that runs a program as the tests' user.
    pub fn command(&self, program: &Program) -> Command {
        let mut command = self.user.command(&program.file);
        command.current_dir(&program.folder);
        command.envs(self.without.map(|features| ("TENURE_WITHOUT", features)));
        command
    }

    /// Runs a command to its end, in a new folder for temporary files.
    pub fn run(&self, mut command: Command, limit: Duration) -> Result<Ended> {
        let folder = self.folder.for_test()?;
        self.user.give(folder.path())?;
        command.env("TMPDIR", folder.path());
        if self.user.is_other() {
            command.env("HOME", folder.path());
        }
        command.envs(self.tsan.map(|tsan| tsan.run_variable(folder.path())));
        let mut ended = supervised(&command, self.folder.path(), limit);
        if let (Some(_), Ok(ended)) = (self.tsan, &mut ended) {
            ended.output.push_str(&tsan::reports(folder.path()));
        }
        // Also what the test has closed.
        clean::remove(&folder.keep());
        ended
    }
}

/// How a command has ended.
pub struct Ended {
    pub status: ExitStatus,
    pub took: Duration,
    pub output: String,
    /// A problem that neither the status nor the output shows.
    pub problem: Option<String>,
}

/// The result of a job: each test's outcome, and the output of the process.
pub struct Done {
    pub outcomes: Vec<(String, Outcome)>,
    pub took: Duration,
    pub output: String,
}

/// Runs a job to its end.
pub fn run(job: &Job, setting: &Setting<'_>) -> Result<Done> {
    let mut command = setting.command(&job.program);
    command.arg("--exact");
    match job.tests.as_slice() {
        [test] => command.arg(&test.name),
        _ => command.args(job.others.iter().flat_map(|name| ["--skip", name])),
    };
    let ended = setting.run(command, LIMIT)?;
    let mut outcomes = outcomes(job, &ended);
    if setting.tsan.is_some() {
        tsan::judge(&mut outcomes, &ended.output);
    }
    Ok(Done {
        outcomes,
        took: ended.took,
        output: ended.output,
    })
}

/// Runs a command, with a supervisor, to its end.
fn supervised(command: &Command, folder: &Path, limit: Duration) -> Result<Ended> {
    let mut output_file = tempfile::tempfile().context("making a file for a test's output")?;
    let mut supervisor = Command::new(THIS_PROGRAM);
    supervisor.arg("supervise").arg(folder);
    supervisor.arg(limit.as_secs().to_string()).arg("--");
    supervisor
        .arg(command.get_program())
        .args(command.get_args());
    let variables = command.get_envs();
    supervisor.envs(variables.filter_map(|(name, value)| Some((name, value?))));
    if let Some(folder) = command.get_current_dir() {
        supervisor.current_dir(folder);
    }
    let mut supervisor = supervisor
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(output_file.try_clone()?)
        // A group of its own: it outlives an interrupt from the terminal.
        .process_group(0)
        .spawn()
        .context("starting a test's supervisor")?;
    // Closing this tells the supervisor that this process has ended.
    let _alive = supervisor.stdin.take();
    let supervised = supervisor
        .wait_with_output()
        .context("waiting for a test")?;
    output_file.seek(SeekFrom::Start(0))?;
    let mut output = Vec::new();
    output_file.read_to_end(&mut output)?;
    let output = String::from_utf8_lossy(&output).into_owned();
    let record: Option<Record> = serde_json::from_slice(&supervised.stdout).ok();
    let problem = match &record {
        None => Some(format!("the supervisor has ended: {}", supervised.status)),
        Some(record) if record.is_hung => Some(format!("hung for {} s", limit.as_secs())),
        Some(record) if record.has_left => Some("left a process behind".to_owned()),
        Some(_) => None,
    };
    let status = record.as_ref().and_then(|record| record.status);
    Ok(Ended {
        status: status.map_or(supervised.status, ExitStatus::from_raw),
        took: Duration::from_millis(record.map_or(0, |record| record.took_ms)),
        output,
        problem,
    })
}
