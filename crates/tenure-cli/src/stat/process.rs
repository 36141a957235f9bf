//! The processes that the command line names.

use std::path::PathBuf;

use procfs::process::{Process, Stat};
use serde::{Serialize, Serializer};
use tenure::{
    Error, Residency,
    pressure::{self, Level},
};

use super::{
    counters::Counters,
    preload::Preload,
    report::{Report, Target},
};

/// The figures of a process.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessReport {
    pub pid: u32,
    /// The name of its program (`comm`), 15 bytes at most.
    pub name: String,
    /// Without the reserved addresses.
    pub mapped_bytes: usize,
    /// Addresses without any access (PROT_NONE), which use no memory.
    pub reserved_bytes: usize,
    pub resident_bytes: usize,
    pub lazily_free_bytes: Option<usize>,
    pub resident_without_lazily_free_bytes: Option<usize>,
    pub proportional_bytes: Option<usize>,
    pub swapped_bytes: Option<usize>,
    pub locked_bytes: usize,
    pub huge_page_bytes: Option<usize>,
    pub hugetlb_bytes: usize,
    /// The level of memory pressure in its cgroups; null where they may not be read.
    #[serde(serialize_with = "as_text")]
    pub pressure: Option<Level>,
    /// The preloaded library and its options.
    pub preload: Preload,
    /// The counters that tenure keeps in it.
    pub tenure: Counters,
}

pub fn as_text<S: Serializer>(level: &Option<Level>, serializer: S) -> Result<S::Ok, S::Error> {
    let text = level.map(|level| level.to_string());
    text.serialize(serializer)
}

impl ProcessReport {
    /// Reads a process; one that has ended is none, also before its parent has noticed.
    pub fn of(pid: u32) -> Result<Self, Error> {
        let residency = Residency::of_process(pid)?;
        let identity = identify(pid).filter(|identity| !identity.has_ended);
        let name = identity.ok_or(Error::NoProcess { pid })?.name;
        Ok(Self::new(pid, name, &residency))
    }

    fn new(pid: u32, name: String, residency: &Residency) -> Self {
        Self {
            pid,
            name,
            mapped_bytes: residency.mapped_bytes,
            reserved_bytes: residency.reserved_bytes,
            resident_bytes: residency.resident_bytes,
            lazily_free_bytes: residency.lazily_free_bytes,
            resident_without_lazily_free_bytes: residency.resident_without_lazily_free_bytes(),
            proportional_bytes: residency.proportional_bytes,
            swapped_bytes: residency.swapped_bytes,
            locked_bytes: residency.locked_bytes,
            huge_page_bytes: residency.huge_page_bytes,
            hugetlb_bytes: residency.hugetlb_bytes,
            pressure: pressure::level_of_process(pid).ok(),
            preload: Preload::of_process(pid),
            tenure: Counters::of_process(pid),
        }
    }
}

/// Returns the name of a process's program; `None` if there is no such process.
pub fn name_of(pid: u32) -> Option<String> {
    identify(pid).map(|identity| identity.name)
}

/// Tells a process from a later one with its number.
struct Identity {
    name: String,
    start_time: u64,
    has_ended: bool,
}

fn identify(pid: u32) -> Option<Identity> {
    let process = Process::new(i32::try_from(pid).ok()?).ok()?;
    let stat = process.stat().ok()?;
    let has_ended = has_ended(&stat) && living_thread(&process).is_none();
    Some(Identity {
        name: stat.comm,
        start_time: stat.starttime,
        has_ended,
    })
}

/// Returns the folder in `/proc` where a process shows its memory: its own, or that of another
/// thread where the first has ended, whose folder belongs to root and shows none.
pub fn folder_with_memory(pid: u32) -> PathBuf {
    let process = i32::try_from(pid)
        .ok()
        .and_then(|pid| Process::new(pid).ok());
    let other = process
        .filter(|process| process.stat().is_ok_and(|stat| has_ended(&stat)))
        .and_then(|process| living_thread(&process));
    match other {
        Some(thread) => format!("/proc/{pid}/task/{thread}").into(),
        None => format!("/proc/{pid}").into(),
    }
}

/// Returns a thread of the process that has not ended.
fn living_thread(process: &Process) -> Option<i32> {
    let mut threads = process.tasks().ok()?.flatten();
    let living = threads.find(|thread| thread.stat().is_ok_and(|stat| !has_ended(&stat)));
    living.map(|thread| thread.tid)
}

/// Whether a thread has ended, with its memory.
fn has_ended(thread: &Stat) -> bool {
    matches!(thread.state, 'Z' | 'X' | 'x')
}

/// Processes that are read repeatedly until they have ended.
pub struct Processes {
    left: Vec<Watched>,
    /// Those that have ended, or cannot be read.
    gone: Vec<u32>,
}

struct Watched {
    pid: u32,
    /// Known from the first reading on.
    start_time: Option<u64>,
}

impl Processes {
    pub fn of(pids: &[u32]) -> Self {
        let watched = |&pid| Watched {
            pid,
            start_time: None,
        };
        Self {
            left: pids.iter().map(watched).collect(),
            gone: Vec::new(),
        }
    }

    pub fn have_ended(&self) -> bool {
        self.left.is_empty()
    }

    /// Reads the processes that are left. Returns an error for each that cannot be read, and
    /// forgets it.
    pub fn read(&mut self) -> (Report, Vec<String>) {
        let (mut processes, mut failures, mut unreadable) = (Vec::new(), Vec::new(), 0);
        self.left.retain_mut(|watched| match watched.read() {
            Ok(process) => {
                processes.push(process);
                true
            }
            Err(why) => {
                unreadable += usize::from(why.is_unreadable);
                failures.push(why.text);
                self.gone.push(watched.pid);
                false
            }
        });
        let read = processes.iter().map(|process| (process.pid, true));
        let gone = self.gone.iter().map(|&pid| (pid, false));
        let targets = read
            .chain(gone)
            .map(|(pid, is_up)| Target::process(pid, is_up));
        let targets = targets.collect();
        let report = Report {
            targets,
            unreadable,
            ..Report::of_processes(processes)
        };
        (report, failures)
    }
}

impl Watched {
    fn read(&mut self) -> Result<ProcessReport, Failure> {
        let pid = self.pid;
        let ended = || Failure {
            text: format!("process {pid} has ended"),
            is_unreadable: false,
        };
        match (self.start_time, identify(pid)) {
            (Some(_), None) => return Err(ended()),
            (_, Some(now)) if now.has_ended => return Err(ended()),
            (Some(before), Some(now)) if now.start_time != before => return Err(ended()),
            (_, now) => self.start_time = now.map(|now| now.start_time),
        }
        ProcessReport::of(pid).map_err(|error| match error {
            Error::NoProcess { .. } if self.start_time.is_some() => ended(),
            error => Failure {
                text: error.to_string(),
                is_unreadable: !matches!(error, Error::NoProcess { .. }),
            },
        })
    }
}

/// The reason why a process is left out.
struct Failure {
    text: String,
    /// It is there.
    is_unreadable: bool,
}
