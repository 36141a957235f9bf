//! One reading of the processes.

use anyhow::Result;
use tenure::{
    Error, Residency, Stats,
    pressure::{Level, Snapshot},
};

use crate::cli::TopArguments;
use crate::stat::{Group, name_of, pids_of_user};

/// The processes to show.
pub enum Subject {
    Processes(Vec<u32>),
    Group(Group),
    /// This user's processes; all as root.
    User,
}

/// The figures of all processes at one time.
#[derive(Debug, Default)]
pub struct Reading {
    pub processes: Vec<Process>,
    /// How many may not be read.
    pub unreadable: usize,
    pub level: Level,
    /// The share of the last ten seconds in which some tasks waited for memory.
    pub stalled: Option<f64>,
    /// The memory that may still be taken here.
    pub headroom_bytes: Option<u64>,
}

/// A row of the table, in bytes. Figures of tenure are `None` for a process that does not
/// use it, or whose counters may not be read.
#[derive(Clone, Debug, Default)]
pub struct Process {
    pub pid: u32,
    pub name: String,
    pub resident: u64,
    pub lazily_free: Option<u64>,
    pub volatile: Option<u64>,
    pub locked: u64,
    pub pending: Option<u64>,
    pub proportional: Option<u64>,
    pub swapped: Option<u64>,
    pub huge_pages: Option<u64>,
}

impl Subject {
    pub fn of(arguments: &TopArguments) -> Result<Self> {
        Ok(match &arguments.cgroup {
            Some(path) => Self::Group(Group::find(path)?),
            None if arguments.pids.is_empty() => Self::User,
            None => Self::Processes(arguments.pids.clone()),
        })
    }

    pub fn read(&self) -> Reading {
        let pids = match self {
            Self::Processes(pids) => pids.clone(),
            Self::Group(group) => group.pids(),
            Self::User => pids_of_user(),
        };
        let mut reading = Reading::default();
        for pid in pids {
            match Process::read(pid) {
                Ok(Some(process)) => reading.processes.push(process),
                // Processes of another PID namespace appear as 0.
                Ok(None) | Err(Error::NoProcess { pid: 1.. }) => {}
                Err(_) => reading.unreadable += 1,
            }
        }
        if let Ok(here) = Snapshot::now() {
            reading.level = here.level;
            reading.stalled = here.some_stalled;
            reading.headroom_bytes = Some(here.headroom.bytes as u64);
        }
        reading
    }
}

impl Process {
    /// Reads a process; `None` for one without memory: it is exiting, or a kernel thread.
    fn read(pid: u32) -> Result<Option<Self>, Error> {
        let residency = Residency::of_process(pid)?;
        if residency.mapped_bytes == 0 {
            return Ok(None);
        }
        let stats = Stats::of_process(pid).ok().flatten();
        let bytes = |bytes: usize| bytes as u64;
        Ok(Some(Self {
            pid,
            name: name_of(pid).ok_or(Error::NoProcess { pid })?,
            resident: bytes(residency.resident_bytes),
            lazily_free: residency.lazily_free_bytes.map(bytes),
            volatile: stats.map(|stats| stats.volatile_bytes),
            locked: bytes(residency.locked_bytes),
            pending: stats.map(|stats| stats.pending_release_bytes),
            proportional: residency.proportional_bytes.map(bytes),
            swapped: residency.swapped_bytes.map(bytes),
            huge_pages: residency.huge_page_bytes.map(bytes),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_is_read_and_absent_one_is_left_out() {
        let own = std::process::id();
        tenure::stats();
        let reading = Subject::Processes(vec![own, u32::MAX >> 1]).read();
        assert_eq!(reading.processes.len(), 1);
        let process = &reading.processes[0];
        assert_eq!((process.pid, reading.unreadable), (own, 0));
        assert!(process.resident > 0 && process.volatile.is_some());
        // Processes of another PID namespace.
        assert_eq!(Subject::Processes(vec![0]).read().unreadable, 1);
    }
}
