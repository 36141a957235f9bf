//! Pressure stall information (PSI) for memory: how long tasks waited for
//! reclaim, and triggers that report it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::watch::Watched;

/// The file of the whole system (Linux 4.20).
pub(crate) const SYSTEM: &str = "/proc/pressure/memory";

/// How long tasks have stalled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Stalls {
    /// At least one task stalled.
    pub(crate) some: Stalled,
    /// All runnable tasks stalled.
    pub(crate) full: Stalled,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Stalled {
    /// Stalled time since the cgroup, or the system, started.
    pub(crate) total: Duration,
    /// Share of about the last ten seconds (`avg10`), from 0 to 1.
    pub(crate) recent_share: f64,
}

impl Stalls {
    /// Reads `/proc/pressure/memory`, or `memory.pressure` of a cgroup. `None`
    /// where it cannot be read, for example because PSI is switched off.
    pub(crate) fn read(file: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(file).ok()?)
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let line = |name| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            let field = |name| line.split(' ').find_map(|field| field.strip_prefix(name));
            let percent: f64 = field("avg10=")?.parse().ok()?;
            let micros = field("total=")?.parse().ok()?;
            Some(Stalled {
                total: Duration::from_micros(micros),
                recent_share: percent / 100.0,
            })
        };
        Some(Self {
            some: line("some ")?,
            // The kernel always writes this line for memory; without it the
            // other one still counts.
            full: line("full ").unwrap_or_default(),
        })
    }
}

/// The trigger windows to try: the first needs CAP_SYS_RESOURCE, the second is
/// the shortest that needs no privilege (Linux 6.5).
const WINDOWS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];

/// The divisor of a window that gives the stall threshold: a twentieth of it.
const THRESHOLD_DIVISOR: u32 = 20;

/// Arms a trigger: the kernel then reports, by `POLLPRI`, when some tasks have
/// stalled for a twentieth of a window. Returns the window too.
pub(crate) fn arm(file: &Path) -> Result<(Watched, Duration), Errno> {
    let mut answer = Err(Errno::INVAL);
    for window in WINDOWS {
        answer = arm_window(file, window).map(|watched| (watched, window));
        if answer.is_ok() {
            break;
        }
    }
    answer
}

fn arm_window(file: &Path, window: Duration) -> Result<Watched, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open(file, flags, Mode::empty())?;
    // The kernel overwrites the last byte with the end of the string.
    let trigger = format!(
        "some {} {}\0",
        (window / THRESHOLD_DIVISOR).as_micros(),
        window.as_micros()
    );
    rustix::io::write(&fd, trigger.as_bytes())?;
    Watched::new(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_reads_some_and_full_lines() {
        let text = "\
some avg10=12.50 avg60=1.05 avg300=0.29 total=7443929
full avg10=3.00 avg60=0.85 avg300=0.23 total=5546570
";
        let stalls = Stalls::parse(text).unwrap();
        assert_eq!(stalls.some.total, Duration::from_micros(7_443_929));
        assert_eq!(stalls.some.recent_share, 0.125);
        assert_eq!(stalls.full.total, Duration::from_micros(5_546_570));
        assert_eq!(stalls.full.recent_share, 0.03);
    }

    #[test]
    fn parse_without_some_line_is_none() {
        let some = "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n";
        let stalls = Stalls::parse(some).unwrap();
        assert_eq!(stalls.some.total, Duration::from_micros(5));
        assert_eq!(stalls.full, Stalled::default());
        for garbage in [
            "",
            "some",
            "some ",
            "full avg10=0.00 total=5",
            "some avg10=0.00 total=",
            "some avg10=x total=5",
            "some total=5",
            "some avg10=0.00 total=-5",
            "\0\0\n",
        ] {
            assert_eq!(Stalls::parse(garbage), None, "{garbage:?}");
        }
    }

    #[test]
    fn read_on_this_machine_is_consistent() {
        let Some(before) = Stalls::read(Path::new(SYSTEM)) else {
            return;
        };
        let after = Stalls::read(Path::new(SYSTEM)).unwrap();
        assert!(before.full.total <= before.some.total);
        assert!(before.some.total <= after.some.total);
        assert!((0.0..=1.0).contains(&after.some.recent_share));
    }

    #[test]
    fn arm_on_file_without_triggers_is_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(arm(&file.path().join("x")).err(), Some(Errno::NOTDIR));
        assert!(arm(Path::new("/proc/self/stat")).is_err());
    }
}
