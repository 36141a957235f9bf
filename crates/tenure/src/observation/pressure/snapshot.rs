//! The figures behind the level.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::judge::Judge;
use super::reading::{LazilyFree, Reading};
use super::{Level, watcher};
use crate::ground::error::Result;
use crate::ground::sys::{Errno, psi};
use crate::observation::headroom::Headroom;

/// One reading of memory pressure: the level, and the figures behind it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The level: the watcher's while there is a
    /// [subscription](super::subscribe), else by this reading alone.
    pub level: Level,
    /// The reason for the level, from this reading or from the watcher's last.
    pub reason: Reason,
    /// The share of the last ten seconds in which some tasks waited for memory
    /// (0 to 1); `None` where the kernel does not tell.
    pub some_stalled: Option<f64>,
    /// The share of the last ten seconds in which all tasks waited for memory
    /// at once (0 to 1); `None` where the kernel does not tell.
    pub all_stalled: Option<f64>,
    /// Whose stalls these are.
    pub stall_source: StallSource,
    /// The headroom: how much more memory this process may take.
    pub headroom: Headroom,
    /// The window within which the kernel reports stalls by itself (500 ms with
    /// CAP_SYS_RESOURCE, 2 s without, since Linux 6.5), or why it does not.
    /// Without it, the watcher takes a reading every 2 s at least.
    pub trigger: Result<Duration, Errno>,
}

/// The reason for a [`Level`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// There is no pressure.
    #[default]
    None,
    /// Tasks wait for memory (PSI).
    Stalls,
    /// A limit is hit often, on a kernel that does not report stalls.
    LimitHits,
    /// The kernel reclaims lazily freed memory soon after it was freed.
    LazyFreeReclaimed,
    /// The headroom is low: the kernel must soon kill.
    LowHeadroom,
    /// The kernel has killed a process because no memory was available, or
    /// could not reclaim any.
    OutOfMemory,
    /// Pressure was higher a few seconds ago, and the level has not fallen yet.
    Cooldown,
}

/// Whose stalls the kernel reports.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StallSource {
    /// The process's own cgroup's (version 2), read from this file.
    OwnCgroup(PathBuf),
    /// The whole system's: `/proc/pressure/memory`. They count while the
    /// machine has no free memory, or one of this process's limits is being
    /// hit.
    System,
    /// Nobody's (before Linux 4.20, or switched off). The number of limit hits
    /// counts instead.
    Nothing,
}

impl Snapshot {
    /// Takes a reading: PSI, `/proc/meminfo`, and the figures and events of the
    /// memory cgroups around the process. Arms a trigger for a moment, to see
    /// whether that is allowed; the kernel takes some milliseconds to disarm
    /// it.
    ///
    /// # Errors
    ///
    /// [`Error::System`](crate::Error::System) when `/proc/meminfo` cannot be
    /// read.
    ///
    /// ```
    /// let now = tenure::pressure::Snapshot::now()?;
    /// println!("{}: {}; headroom: {} bytes", now.level, now.reason, now.headroom.bytes);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn now() -> Result<Self> {
        let (reading, sources, bounds) = Reading::now(&mut LazilyFree::default())?;
        let stalls = reading.own.or(reading.system);
        let stall_source = match sources.pressure_file {
            Some(file) => StallSource::OwnCgroup(file),
            None if stalls.is_some() => StallSource::System,
            None => StallSource::Nothing,
        };
        let trigger = match &stall_source {
            StallSource::OwnCgroup(file) => psi::arm(file),
            _ => psi::arm(psi::SYSTEM.as_ref()),
        };
        let verdict = Judge::new().update(Instant::now(), reading);
        let (level, reason) = watcher::last_verdict().unwrap_or((verdict.level, verdict.reason));
        Ok(Self {
            level,
            reason,
            some_stalled: stalls.map(|stalls| stalls.some.recent_share),
            all_stalled: stalls.map(|stalls| stalls.full.recent_share),
            stall_source,
            headroom: bounds.tightest(),
            trigger: trigger.map(|(_, window)| window),
        })
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Some => "some",
            Self::Severe => "severe",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "memory is sufficient",
            Self::Stalls => "tasks wait for memory",
            Self::LimitHits => "a memory limit is hit often",
            Self::LazyFreeReclaimed => "the kernel reclaims lazily freed memory",
            Self::LowHeadroom => "the headroom is low",
            Self::OutOfMemory => "memory ran out",
            Self::Cooldown => "pressure was higher a few seconds ago",
        })
    }
}

impl fmt::Display for StallSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnCgroup(file) => write!(f, "{}", file.display()),
            Self::System => f.write_str(psi::SYSTEM),
            Self::Nothing => f.write_str("nothing"),
        }
    }
}
