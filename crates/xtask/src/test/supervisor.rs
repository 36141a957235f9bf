//! A process between the runner and a command of its, which sees to it that no process of
//! the command outlives the command or the runner.
//!
//! The command's orphans become the supervisor's children (PR_SET_CHILD_SUBREAPER), so it
//! finds them whatever they do with their group, their output and their environment. It
//! reads a pipe that the runner holds open: the kernel closes it however the runner ends.
//! When the supervisor itself is killed, the kernel kills the command, which `setpriv`
//! has asked for (PR_SET_PDEATHSIG).

use std::{
    ffi::OsString,
    io::{self, Read as _, Write as _},
    os::{fd::AsFd as _, unix::process::CommandExt as _},
    path::PathBuf,
    process::{self, Command, Stdio},
    sync::mpsc::{self, Sender},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, getpid, kill_process_group, set_child_subreaper, wait},
};
use serde::{Deserialize, Serialize};

use super::{hang, run_folder};

/// How long the processes that a command has left behind may take to end: some restore a
/// setting of the machine when a test has ended, however it did.
const GRACE: Duration = Duration::from_secs(10);

/// The runner's request to a supervisor. The supervisor's standard input is the pipe; the
/// command writes to its standard error.
#[derive(clap::Args)]
pub struct Arguments {
    /// The run's folder, which is locked as long as the supervisor lives
    folder: PathBuf,
    /// When a command is killed because it hangs
    limit_s: u64,
    /// The command
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// The line that a supervisor writes to its standard output.
#[derive(Serialize, Deserialize)]
pub struct Record {
    /// As `waitpid` reports it; none if the command could not be killed.
    pub status: Option<i32>,
    pub took_ms: u64,
    pub is_hung: bool,
    pub has_left: bool,
}

/// The process or processes that have ended.
enum Ended {
    /// With the status.
    Command(i32),
    All,
    Runner,
}

/// Runs the command to its end.
pub fn run(arguments: &Arguments) -> Result<bool> {
    let _lock = run_folder::lock(&arguments.folder)?;
    set_child_subreaper(Some(getpid())).context("PR_SET_CHILD_SUBREAPER")?;
    let begun = Instant::now();
    let [program, values @ ..] = arguments.command.as_slice() else {
        bail!("no command");
    };
    // By this thread, which lives as long as the process: at its end the kernel kills the
    // command.
    let command = Command::new(program)
        .args(values)
        .stdin(Stdio::null())
        .stdout(io::stderr().as_fd().try_clone_to_owned()?)
        .process_group(0)
        .spawn()
        .with_context(|| format!("starting {}", program.display()))?;
    let command = Pid::from_child(&command);
    let (events, received) = mpsc::channel();
    let from_runner = events.clone();
    thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        from_runner.send(Ended::Runner)
    });
    thread::spawn(move || wait_for_all(command, &events));
    let mut record = Record {
        status: None,
        took_ms: 0,
        is_hung: false,
        has_left: false,
    };
    let mut deadline = begun + Duration::from_secs(arguments.limit_s);
    let mut is_ending = false;
    loop {
        match received.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Ended::All) => break,
            Ok(Ended::Command(status)) => {
                record.status = Some(status);
                record.took_ms = begun.elapsed().as_millis().try_into().unwrap_or(u64::MAX);
                is_ending = true;
            }
            Ok(Ended::Runner) if is_ending => continue,
            Ok(Ended::Runner) => is_ending = kill(command),
            Err(_) if !is_ending => {
                record.is_hung = true;
                show(&hang::show_with_children(command));
                is_ending = kill(command);
            }
            // They withstand SIGKILL.
            Err(_) if record.has_left => break,
            Err(_) => {
                record.has_left = true;
                let shown = hang::show_and_kill_children(getpid());
                show(&format!(
                    "left behind by process {}:\n{shown}",
                    command.as_raw_pid()
                ));
            }
        }
        deadline = Instant::now() + GRACE;
    }
    // Without a runner nobody reads it.
    let _ = writeln!(io::stdout(), "{}", serde_json::to_string(&record)?);
    // The threads still wait.
    process::exit(0);
}

/// Adds to the command's output.
fn show(text: &str) {
    // The command may have filled the disk; its processes are killed all the same.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Kills the group of the command. A process that restores a setting has left the group.
fn kill(command: Pid) -> bool {
    // It may have ended meanwhile.
    let _ = kill_process_group(command, Signal::KILL);
    true
}

/// Waits for the command and all that come from it.
fn wait_for_all(command: Pid, events: &Sender<Ended>) {
    loop {
        let event = match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == command => Ended::Command(status.as_raw()),
            Ok(_) | Err(Errno::INTR) => continue,
            Err(_) => Ended::All,
        };
        let is_last = matches!(event, Ended::All);
        if events.send(event).is_err() || is_last {
            break;
        }
    }
}
