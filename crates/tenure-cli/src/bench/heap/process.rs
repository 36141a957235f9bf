//! A worker as its parent sees it: this program run again, with another malloc.

use std::{
    env,
    ffi::CString,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::{
        ffi::OsStrExt as _,
        process::{CommandExt as _, ExitStatusExt as _},
    },
    process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
};

use anyhow::{Context as _, Result, bail};
use rustix::{
    fs::{Mode, OFlags},
    process::{Signal, set_parent_process_death_signal},
};

use super::{
    super::group::Group,
    allocators::Allocator,
    job::{Done, Job, Said, Served},
};

/// The argument that makes this program a worker.
pub const ARGUMENT: &str = "heap-bench-worker";

/// How a worker ended.
#[derive(Clone, Copy, Debug)]
pub enum Ending {
    /// It has done its work.
    Done(Done),
    /// It was killed, for want of memory.
    Killed,
}

/// A process that works, killed when this is dropped.
pub struct Worker {
    child: Child,
    /// Its end is the child's end: it does not outlive us.
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts a worker in the cgroup, if there is one.
    pub fn start(allocator: &Allocator, job: &Job, group: Option<&Group>) -> Result<Self> {
        let mut worker = Self::spawn(allocator, group, Stdio::inherit())?;
        worker.say(&serde_json::to_string(job)?)?;
        Ok(worker)
    }

    /// Asks what serves malloc in a program with that allocator.
    pub fn tell(allocator: &Allocator, library: Option<&str>) -> Result<Served> {
        // The loader says there what it does not find.
        let mut worker = Self::spawn(allocator, None, Stdio::null())?;
        let library = library.map(str::to_owned);
        worker.say(&serde_json::to_string(&Job::Tell { library })?)?;
        match worker.hear()? {
            Some(Said::Served(served)) => Ok(served),
            said => bail!("a worker with {}: {said:?}", allocator.name),
        }
    }

    fn spawn(allocator: &Allocator, group: Option<&Group>, errors: Stdio) -> Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command
            .arg(ARGUMENT)
            .env_clear()
            .envs(allocator.environment())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors);
        let processes = group.map(|group| group.path().join("cgroup.procs"));
        let processes = processes.map(|file| CString::new(file.as_os_str().as_bytes()));
        let processes = processes.transpose()?;
        let prepare = move || {
            // A killed parent reads no results.
            set_parent_process_death_signal(Some(Signal::KILL))?;
            if let Some(processes) = &processes {
                let file = rustix::fs::open(processes, OFlags::WRONLY, Mode::empty())?;
                rustix::io::write(&file, b"0")?;
            }
            Ok(())
        };
        // SAFETY: the child of a process with threads may do little before exec:
        // this makes system calls, and neither allocates nor takes locks. The
        // library is loaded in the cgroup, to see that one's limit.
        let mut child = unsafe { command.pre_exec(prepare) }
            .spawn()
            .context("starting a worker")?;
        Ok(Self {
            input: child.stdin.take().context("a worker without input")?,
            output: BufReader::new(child.stdout.take().context("a worker without output")?),
            child,
        })
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has prepared itself. Says whether it lives.
    pub fn lives_and_waits(&mut self) -> Result<bool> {
        match self.hear()? {
            Some(Said::Waits) => Ok(true),
            Some(Said::Failed(why)) => bail!("{why}"),
            Some(said) => bail!("a worker said {said:?} before it was told to go on"),
            None => self.killed().map(|()| false),
        }
    }

    /// Waits until it has prepared itself.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        match self.lives_and_waits()? {
            true => Ok(()),
            false => bail!("a worker was killed: there was too little memory for it"),
        }
    }

    /// Tells it to go on.
    pub fn go_on(&mut self) -> Result<()> {
        self.say("")
    }

    /// Waits until it has done its work, or was killed.
    pub fn ending(&mut self) -> Result<Ending> {
        match self.hear()? {
            Some(Said::Done(done)) => Ok(Ending::Done(done)),
            Some(Said::Failed(why)) => bail!("{why}"),
            Some(said) => bail!("a worker said {said:?} instead of what it has done"),
            None => self.killed().map(|()| Ending::Killed),
        }
    }

    /// Waits until it has done its work.
    pub fn done(&mut self) -> Result<Done> {
        match self.ending()? {
            Ending::Done(done) => Ok(done),
            Ending::Killed => bail!("a worker was killed: there was too little memory for it"),
        }
    }

    /// Kills it and waits for its end.
    pub fn kill_and_wait(&mut self) -> Result<ExitStatus> {
        self.child.kill().context("kill")?;
        self.child.wait().context("wait")
    }

    /// Fails when it has ended otherwise than by SIGKILL.
    fn killed(&mut self) -> Result<()> {
        let status = self.child.wait().context("wait")?;
        match status.signal() {
            Some(signal) if signal == Signal::KILL.as_raw() => Ok(()),
            _ => bail!("a worker ended early: {status}"),
        }
    }

    fn say(&mut self, line: &str) -> Result<()> {
        match writeln!(self.input, "{line}") {
            // How it ended is told when it is listened to.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            done => done.context("telling a worker"),
        }
    }

    /// Returns what it says next; `None` when it has ended.
    fn hear(&mut self) -> Result<Option<Said>> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.is_empty() {
            return Ok(None);
        }
        let said = serde_json::from_str(&line);
        said.map(Some)
            .with_context(|| format!("a worker said {line:?}"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It can only fail when it has been waited for already.
        let _ = self.kill_and_wait();
    }
}
