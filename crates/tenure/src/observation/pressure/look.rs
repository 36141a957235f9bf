//! The figures behind the level.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::judge::Judge;
use super::reading::{LazilyFree, Reading};
use super::{Level, watcher};
use crate::ground::error::Result;
use crate::ground::sys::{Errno, psi};
use crate::observation::room::Room;

/// One look at memory pressure: the level, and the figures behind it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Look {
    /// The level: the watcher's while somebody has [subscribed](super::subscribe),
    /// else by this look alone.
    pub level: Level,
    /// What decided, in this look or in the watcher's last.
    pub reason: Reason,
    /// For which share of the last ten seconds some tasks had to wait for memory
    /// (0 to 1); `None` where the kernel does not tell.
    pub some_stalled: Option<f64>,
    /// The same for all tasks at a time.
    pub all_stalled: Option<f64>,
    /// Whose stalls these are.
    pub stall_source: StallSource,
    /// How much more memory may be taken.
    pub room: Room,
    /// Within which time the kernel reports stalls by itself (500 ms with
    /// CAP_SYS_RESOURCE, 2 s without, since Linux 6.5), or why it does not.
    /// Without, the watcher looks every 2 s at least.
    pub trigger: Result<Duration, Errno>,
}

/// What a [`Level`] comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Nothing: there is no pressure.
    #[default]
    Calm,
    /// Tasks wait for memory (PSI).
    Stalls,
    /// A limit is met often, on a kernel that does not tell about stalls.
    LimitHits,
    /// Memory that was freed lazily is taken before it is used again.
    TakenSoon,
    /// There is little left before the kernel must kill.
    LittleRoom,
    /// The kernel has killed for want of memory, or could not get any.
    OutOfMemory,
    /// There was more pressure a few seconds ago.
    CalmingDown,
}

/// Whose stalls the kernel tells about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StallSource {
    /// The process's own cgroup's (version 2): the file.
    OwnCgroup(PathBuf),
    /// The whole system's: `/proc/pressure/memory`. They count while the machine
    /// has no free memory, or a limit of this process's has been met.
    System,
    /// Nobody's (before Linux 4.20, or switched off). How often limits are met
    /// counts instead.
    Nothing,
}

impl Look {
    /// Looks now: reads PSI, `/proc/meminfo`, and the figures and events of the
    /// memory cgroups around the process. Arms a trigger for a moment, to see
    /// whether it may; the kernel takes some milliseconds to disarm it.
    ///
    /// # Errors
    ///
    /// [`Error::System`](crate::Error::System) when `/proc/meminfo` cannot be
    /// read.
    ///
    /// ```
    /// let look = tenure::pressure::Look::now()?;
    /// println!("{:?}, for {}; {} bytes left", look.level, look.reason, look.room.bytes);
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
        let by_this_look = Judge::new().take(Instant::now(), reading);
        let (level, reason) =
            watcher::last_verdict().unwrap_or((by_this_look.level, by_this_look.reason));
        Ok(Self {
            level,
            reason,
            some_stalled: stalls.map(|stalls| stalls.some.recent_share),
            all_stalled: stalls.map(|stalls| stalls.full.recent_share),
            stall_source,
            room: bounds.tightest(),
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
            Self::Calm => "there is enough",
            Self::Stalls => "tasks wait for memory",
            Self::LimitHits => "a memory limit is met often",
            Self::TakenSoon => "memory that was freed lazily is taken soon",
            Self::LittleRoom => "there is little room left",
            Self::OutOfMemory => "memory ran out",
            Self::CalmingDown => "there was more pressure a few seconds ago",
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
