//! Pressure stall information for memory: how long tasks stood still because
//! memory had to be taken back first, and triggers that report it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::watch::Watched;

/// The file for the whole system (Linux 4.20).
pub(crate) const SYSTEM: &str = "/proc/pressure/memory";

/// How long tasks have stalled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Stalls {
    /// At least one task.
    pub(crate) some: Stalled,
    /// All that had something to do.
    pub(crate) full: Stalled,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Stalled {
    /// Since the group, or the system, exists.
    pub(crate) total: Duration,
    /// In the last ten seconds or so, as a share of the time.
    pub(crate) recent_share: f64,
}

impl Stalls {
    /// Reads `/proc/pressure/memory`, or `memory.pressure` of a cgroup. `None`
    /// where it cannot be read: it may be switched off.
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
            // There for memory at all times; without it the rest still counts.
            full: line("full ").unwrap_or_default(),
        })
    }
}

/// The windows to try: the first takes CAP_SYS_RESOURCE, the second is the
/// shortest for everybody else (Linux 6.5).
const WINDOWS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];

/// What of a window must be stalled: a twentieth.
const SHARE: u32 = 20;

/// Has the kernel report, by `POLLPRI`, when some tasks have stalled for a
/// twentieth of a window. Returns how long that window is, too.
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
    // The kernel takes the last byte for the end of the string.
    let trigger = format!(
        "some {} {}\0",
        (window / SHARE).as_micros(),
        window.as_micros()
    );
    rustix::io::write(&fd, trigger.as_bytes())?;
    Watched::new(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lines_are_read() {
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
    fn one_line_will_do_and_less_is_nothing() {
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
    fn reads_this_machine() {
        let Some(before) = Stalls::read(Path::new(SYSTEM)) else {
            return;
        };
        let after = Stalls::read(Path::new(SYSTEM)).unwrap();
        assert!(before.full.total <= before.some.total);
        assert!(before.some.total <= after.some.total);
        assert!((0.0..=1.0).contains(&after.some.recent_share));
    }

    #[test]
    fn what_takes_no_triggers_says_so() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(arm(&file.path().join("x")).err(), Some(Errno::NOTDIR));
        assert!(arm(Path::new("/proc/self/stat")).is_err());
    }
}
