//! The processes that the command line names.

use serde::{Serialize, Serializer};
use tenure::{
    Error, Residency,
    pressure::{self, Level},
};

use super::{counters::Counters, preload::Preload, report::Report};

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
    pub fn of(pid: u32) -> Result<Self, Error> {
        let residency = Residency::of_process(pid)?;
        let name = name_of(pid).ok_or(Error::NoProcess { pid })?;
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
    is_zombie: bool,
}

fn identify(pid: u32) -> Option<Identity> {
    let process = procfs::process::Process::new(i32::try_from(pid).ok()?).ok()?;
    let stat = process.stat().ok()?;
    Some(Identity {
        name: stat.comm,
        start_time: stat.starttime,
        is_zombie: stat.state == 'Z',
    })
}

/// Processes that are read repeatedly until they have ended.
pub struct Processes {
    left: Vec<Watched>,
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
        }
    }

    pub fn have_ended(&self) -> bool {
        self.left.is_empty()
    }

    /// Reads the processes that are left. Returns an error for each that cannot be read, and
    /// forgets it.
    pub fn read(&mut self) -> (Report, Vec<String>) {
        let (mut processes, mut failures) = (Vec::new(), Vec::new());
        self.left.retain_mut(|watched| match watched.read() {
            Ok(process) => {
                processes.push(process);
                true
            }
            Err(why) => {
                failures.push(why);
                false
            }
        });
        (Report::of_processes(processes), failures)
    }
}

impl Watched {
    fn read(&mut self) -> Result<ProcessReport, String> {
        let pid = self.pid;
        let ended = || format!("process {pid} has ended");
        match (self.start_time, identify(pid)) {
            (Some(_), None) => return Err(ended()),
            (Some(before), Some(now)) if now.start_time != before || now.is_zombie => {
                return Err(ended());
            }
            (_, now) => self.start_time = now.map(|now| now.start_time),
        }
        ProcessReport::of(pid).map_err(|error| match error {
            Error::NoProcess { .. } if self.start_time.is_some() => ended(),
            error => error.to_string(),
        })
    }
}
