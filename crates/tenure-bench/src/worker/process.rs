//! A worker as its parent sees it.

use std::env;
use std::ffi::{CString, OsString};
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::Serialize;

use super::job::{Done, Job, Said, Served};
use crate::machine::group::Group;

/// The argument that makes this program a worker.
pub const ARGUMENT: &str = "heap-bench-worker";
/// The program of a unit test is a test harness, in which one of the tests is the worker.
const ARGUMENTS: &str = match cfg!(test) {
    false => ARGUMENT,
    true => "--exact worker::tests::entry --nocapture --skip heap-bench-worker",
};
/// Stands before each answer (RFC 7464): whatever else a worker prints is skipped.
pub const RECORD_SEPARATOR: u8 = 0x1e;
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
const KILLED: &str = "a worker was killed: there was too little memory for it";

/// Says whether this process was started as a worker.
pub fn is_worker() -> bool {
    env::args_os().nth(1).is_some_and(|first| first == ARGUMENT)
}

/// The environment of a worker, which inherits nothing but LD_LIBRARY_PATH.
pub type Environment = Vec<(&'static str, OsString)>;

/// A worker process, killed when this is dropped.
pub struct Worker {
    child: Child,
    /// The worker ends when this is closed: it does not outlive its parent.
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts a worker, in the cgroup if there is one, and tells it its job.
    pub fn start(environment: &Environment, job: &Job, group: Option<&Group>) -> Result<Self> {
        let errors = match job {
            // The loader says on standard error what it does not find.
            Job::Tell => Stdio::null(),
            _ => Stdio::inherit(),
        };
        let mut command = Command::new(env::current_exe()?);
        command
            .args(ARGUMENTS.split(' '))
            .env_clear()
            .envs(env::var_os(LIBRARY_PATH).map(|folders| (LIBRARY_PATH, folders)))
            .envs(environment.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors);
        let path = |group: &Group| group.path().join("cgroup.procs").into_os_string();
        let processes = group.map(|group| CString::new(path(group).into_vec()));
        let processes = processes.transpose()?;
        let prepare = move || {
            // A killed parent closes nothing before its threads have ended.
            set_parent_process_death_signal(Some(Signal::KILL))?;
            if let Some(processes) = &processes {
                let file = rustix::fs::open(processes, OFlags::WRONLY, Mode::empty())?;
                rustix::io::write(&file, b"0")?;
            }
            Ok(())
        };
        // SAFETY: `prepare` only makes system calls: it neither allocates nor takes locks,
        // which the child of a process with threads must not do. It runs before exec, so
        // that a preloaded library sees the cgroup's limit.
        let spawned = unsafe { command.pre_exec(prepare) }.spawn();
        let mut child = spawned.context("starting a worker")?;
        let mut worker = Self {
            input: child.stdin.take().context("a worker without input")?,
            output: BufReader::new(child.stdout.take().context("a worker without output")?),
            child,
        };
        worker.tell(job)?;
        Ok(worker)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks a worker with that environment what serves malloc.
    pub fn served(environment: &Environment) -> Result<Served> {
        match Self::start(environment, &Job::Tell, None)?.hear()? {
            Some(Said::Served(served)) => Ok(served),
            said => bail!("a worker said {said:?} instead of what serves malloc"),
        }
    }

    /// Waits until the worker is prepared; `false` if it was killed before.
    pub fn is_ready(&mut self) -> Result<bool> {
        match self.hear()? {
            Some(Said::Ready) => Ok(true),
            Some(said) => bail!("a worker said {said:?} before it was told to go on"),
            None => Ok(false),
        }
    }

    pub fn wait_until_ready(&mut self) -> Result<()> {
        ensure!(self.is_ready()?, KILLED);
        Ok(())
    }

    /// Tells the worker to go on.
    pub fn go_on(&mut self) -> Result<()> {
        self.tell(&None::<Duration>)
    }

    /// Tells the worker that its job began at `when` of the clock that processes share.
    pub fn begin_at(&mut self, when: Duration) -> Result<()> {
        self.tell(&Some(when))
    }

    /// Waits until the worker has done its work or was killed.
    pub fn ending(&mut self) -> Result<Done> {
        match self.hear()? {
            Some(Said::Done(done)) => Ok(done),
            Some(said) => bail!("a worker said {said:?} instead of what it has done"),
            None => Ok(Done {
                is_killed: true,
                ..Done::default()
            }),
        }
    }

    pub fn done(&mut self) -> Result<Done> {
        let done = self.ending()?;
        ensure!(!done.is_killed, KILLED);
        Ok(done)
    }

    /// Kills the worker and waits for its end.
    pub fn kill_and_wait(&mut self) -> Result<ExitStatus> {
        self.child.kill().context("kill")?;
        self.child.wait().context("wait")
    }

    fn tell(&mut self, what: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(what)?;
        match writeln!(self.input, "{line}") {
            // `hear` reports how the worker ended.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            told => told.context("telling a worker"),
        }
    }

    /// Returns the worker's next answer; `None` if it was killed.
    fn hear(&mut self) -> Result<Option<Said>> {
        let mut line = String::new();
        self.output.skip_until(RECORD_SEPARATOR)?;
        self.output.read_line(&mut line)?;
        if line.is_empty() {
            let status = self.child.wait().context("wait")?;
            let is_killed = status.signal() == Some(Signal::KILL.as_raw());
            ensure!(is_killed, "a worker ended early: {status}");
            return Ok(None);
        }
        match serde_json::from_str(&line).with_context(|| format!("a worker said {line:?}"))? {
            Said::Failed(why) => bail!("{why}"),
            said => Ok(Some(said)),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It only fails when the worker has been waited for already.
        let _ = self.kill_and_wait();
    }
}
