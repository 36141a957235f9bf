//! Processes that do the work, begin at the same moment and tell what they did.

use std::{
    fs,
    io::{self, PipeReader, PipeWriter, Read as _, Write as _},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process, set_parent_process_death_signal, waitpid,
};

use super::{
    super::clock::{Clock as _, MonotonicClock},
    work::Done,
};

/// What a process says when it is ready to begin; no error begins with it.
const READY: u8 = b'\n';

/// The work of a process, told by its number, which prepares itself and then
/// waits for the others.
pub type Work = dyn Fn(usize, &mut Start) -> Result<Done>;

/// Processes that wait to begin. Killed when this is dropped.
pub struct Crew {
    processes: Vec<Process>,
    /// Tells each when to begin.
    begin: PipeWriter,
    clock: MonotonicClock,
}

impl Crew {
    /// Starts `count` copies of this process, in the cgroup if there is one, and
    /// waits until each is prepared.
    pub fn start(count: usize, group: Option<&Path>, work: &Work) -> Result<Self> {
        let (start, begin) = io::pipe().context("making a pipe")?;
        let clock = MonotonicClock::start();
        let mut processes: Vec<Process> = Vec::new();
        for number in 0..count {
            let (from_child, to_parent) = io::pipe().context("making a pipe")?;
            // SAFETY: the child has this thread alone, and locks as they were. It
            // uses malloc and tenure, which both have theirs put right at fork,
            // and it never returns from here.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                drop((begin, from_child));
                let start = Start {
                    begin: start,
                    to_parent,
                    clock,
                };
                let done = live(number, group, start, work);
                // SAFETY: ends this process, without running what its parent has
                // left to be run at the end.
                unsafe { libc::_exit(i32::from(done.is_err())) }
            }
            let pid = Pid::from_raw(pid).filter(|_| pid > 0);
            let pid = pid.ok_or_else(io::Error::last_os_error).context("fork")?;
            processes.push(Process {
                pid: Some(pid),
                from_child,
            });
        }
        for process in &mut processes {
            process.wait_until_ready()?;
        }
        Ok(Self {
            processes,
            begin,
            clock,
        })
    }

    /// Lets them begin, and returns what all have done.
    pub fn run(mut self) -> Result<Done> {
        let now = self.clock.now().as_nanos() as u64;
        for _ in &self.processes {
            // Each reads as much as this, whole.
            self.begin.write_all(&now.to_ne_bytes())?;
        }
        self.processes.into_iter().map(Process::finish).sum()
    }
}

/// The moment at which all begin.
pub struct Start {
    begin: PipeReader,
    to_parent: PipeWriter,
    clock: MonotonicClock,
}

impl Start {
    /// Says that this process is prepared, and waits until all are. Returns the
    /// time at which they begin, which is the same for all, as is the clock.
    pub fn wait(&mut self) -> Result<(Duration, &MonotonicClock)> {
        self.to_parent.write_all(&[READY])?;
        let mut now = [0; size_of::<u64>()];
        self.begin.read_exact(&mut now)?;
        Ok((Duration::from_nanos(u64::from_ne_bytes(now)), &self.clock))
    }
}

fn live(number: usize, group: Option<&Path>, mut start: Start, work: &Work) -> Result<()> {
    let mut enter_and_work = || {
        // A killed parent reads no results.
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if let Some(group) = group {
            fs::write(group.join("cgroup.procs"), "0").context("entering the cgroup")?;
        }
        work(number, &mut start)
    };
    match enter_and_work() {
        Ok(Done { records, wrong }) => write!(start.to_parent, "{records} {wrong}")?,
        Err(error) => {
            write!(start.to_parent, "{error:#}")?;
            return Err(error);
        }
    }
    Ok(())
}

struct Process {
    pid: Option<Pid>,
    from_child: PipeReader,
}

impl Process {
    fn wait_until_ready(&mut self) -> Result<()> {
        let mut said = [0];
        match self.from_child.read_exact(&mut said) {
            Ok(()) if said == [READY] => Ok(()),
            Ok(()) => bail!("{}{}", String::from_utf8_lossy(&said), self.rest()?),
            Err(_) => bail!("a process of the loop ended early: {:?}", self.end()?),
        }
    }

    fn finish(mut self) -> Result<Done> {
        let said = self.rest()?;
        let status = self.end()?;
        let done = said.split_once(' ').and_then(|(records, wrong)| {
            let (records, wrong) = (records.parse().ok()?, wrong.parse().ok()?);
            Some(Done { records, wrong })
        });
        match done {
            Some(done) if status.exit_status() == Some(0) => Ok(done),
            _ if status.terminating_signal() == Some(Signal::KILL.as_raw()) => {
                bail!("a process of the loop was killed: there was too little memory for it")
            }
            _ => bail!("a process of the loop failed: {said} ({status:?})"),
        }
    }

    fn rest(&mut self) -> Result<String> {
        let mut said = String::new();
        self.from_child.read_to_string(&mut said)?;
        Ok(said)
    }

    fn end(&mut self) -> Result<WaitStatus> {
        let pid = self.pid.take().context("waited for already")?;
        let ended = waitpid(Some(pid), WaitOptions::empty()).context("waitpid")?;
        let (ended, status) = ended.context("waitpid returned without a child")?;
        ensure!(ended == pid, "waitpid returned another child");
        Ok(status)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(pid) = self.pid {
            // It can only fail when somebody else has waited for our child.
            let _ = kill_process(pid, Signal::KILL);
            let _ = self.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::alone::alone;

    fn start(count: usize, work: &Work) -> Result<Crew> {
        Crew::start(count, None, work)
    }

    #[test]
    fn what_all_have_done_is_added_up() {
        alone(
            "bench::lazy::crew::tests::what_all_have_done_is_added_up",
            || {
                let work = |number: usize, start: &mut Start| {
                    start.wait()?;
                    let (records, wrong) = (100 + number as u64, 1);
                    Ok(Done { records, wrong })
                };
                let done = start(3, &work).unwrap().run().unwrap();
                let (records, wrong) = (303, 3);
                assert_eq!(done, Done { records, wrong });
            },
        );
    }

    #[test]
    fn what_went_wrong_is_told() {
        alone("bench::lazy::crew::tests::what_went_wrong_is_told", || {
            let at_first = start(2, &|_, _| bail!("no blocks")).err().unwrap();
            assert!(at_first.to_string().contains("no blocks"), "{at_first}");
            let later = |_: usize, start: &mut Start| {
                start.wait()?;
                bail!("no memory")
            };
            let error = start(2, &later).unwrap().run().unwrap_err();
            assert!(error.to_string().contains("no memory"), "{error}");
        });
    }

    #[test]
    fn a_killed_process_is_an_error() {
        alone(
            "bench::lazy::crew::tests::a_killed_process_is_an_error",
            || {
                let work = |_: usize, start: &mut Start| {
                    start.wait()?;
                    kill_process(rustix::process::getpid(), Signal::KILL)?;
                    Ok(Done::default())
                };
                let error = start(1, &work).unwrap().run().unwrap_err();
                assert!(error.to_string().contains("killed"), "{error}");
            },
        );
    }
}
