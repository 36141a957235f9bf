//! The readings that the ledger is held against.

use std::sync::Arc;
use std::time::Duration;

use super::announced::ANNOUNCED;
use super::bounds::Bounds;
use super::ledger::{Ledger, Limit, Watermark};
use crate::ground::sys::cgroup::Groups;
use crate::ground::sys::fork::{self, ForkMutex};
use crate::ground::sys::process::monotonic_nanos;
use crate::ground::sys::{Errno, affinity, empty_table, process};

/// The ledger of this process.
pub(crate) static LEDGER: Ledger = Ledger::new();

/// How long the directories of the cgroups are known, while the process stays in them.
const GROUPS_MAX_AGE: Duration = Duration::from_secs(10);

/// What the next reading uses. Locked for as long as a reading takes.
struct Reader {
    groups: Option<Arc<Groups>>,
    groups_found_at_nanos: u64,
}

static READER: ForkMutex<Reader> = ForkMutex::new(
    Reader {
        groups: None,
        groups_found_at_nanos: 0,
    },
    Reader::start_in_child,
);

/// Has forks start children with an empty ledger.
pub(crate) fn register_fork_handlers() -> Result<(), Errno> {
    static ENTRY: fork::Entry = fork::Entry::new(&READER);
    fork::register(&ENTRY)
}

/// Takes the first reading, so that there is one where later ones fail.
pub(crate) fn prepare() {
    // A failure is reported by the first call that needs the reading.
    let _ = refresh();
}

/// Takes a reading, unless another thread begins one during this call. On an error the
/// last reading holds.
///
/// # Errors
///
/// The kernel's error, if the limits cannot be read and never were.
pub(crate) fn refresh() -> Result<(), Errno> {
    refresh_if_before(monotonic_nanos())
}

/// Takes a reading, unless one has begun at this time of the monotonic clock or later.
///
/// # Errors
///
/// As for [`refresh`].
pub(super) fn refresh_if_before(nanos: u64) -> Result<(), Errno> {
    let mut reader = READER.lock();
    if LEDGER.read_at_nanos() >= nanos {
        return Ok(());
    }
    reader.read(Bounds::limits)
}

/// Takes a reading that also counts the memory that this process has freed lazily, for
/// which the kernel walks all pages, and then commits the bytes if they fit. No reading of
/// another thread comes between the two. Returns whether they are committed.
///
/// # Errors
///
/// As for [`refresh`].
pub(super) fn take_exactly(bytes: usize) -> Result<bool, Errno> {
    let mut reader = READER.lock();
    reader.read(Bounds::limits_with_lazily_free)?;
    Ok(LEDGER.take(bytes, Watermark::Min))
}

/// Returns the bytes that are admitted, or announced lately, and not resident yet.
pub(crate) fn outstanding_bytes() -> usize {
    ANNOUNCED.lapse(&LEDGER, monotonic_nanos());
    LEDGER.outstanding_bytes()
}

impl Reader {
    fn read(&mut self, limits: fn(&Bounds) -> Vec<Limit>) -> Result<(), Errno> {
        let now_nanos = monotonic_nanos();
        ANNOUNCED.lapse(&LEDGER, now_nanos);
        let start = LEDGER.begin_reading(now_nanos);
        let limits = match self.sample(now_nanos) {
            Ok(bounds) => limits(&bounds),
            Err(_) if LEDGER.has_reading() => {
                LEDGER.abandon_reading(&start);
                return Ok(());
            }
            // There is no /proc.
            Err(Errno::NOENT) => {
                let (size_bytes, free_bytes) = process::mem_total_and_free_bytes();
                vec![Limit {
                    size_bytes,
                    free_bytes,
                }]
            }
            Err(errno) => {
                LEDGER.abandon_reading(&start);
                return Err(errno);
            }
        };
        LEDGER.end_reading(&start, &limits, affinity::process_cpu_count());
        Ok(())
    }

    fn start_in_child(&mut self) {
        // Dropping the groups would call the allocator.
        std::mem::forget(self.groups.take());
        ANNOUNCED.reset();
        LEDGER.reset();
    }

    /// Reads the limits; on a thread with a descriptor table of its own, where this
    /// process has no descriptor left.
    fn sample(&mut self, now_nanos: u64) -> Result<Bounds, Errno> {
        let known = self.groups.take();
        let is_old = Duration::from_nanos(now_nanos - self.groups_found_at_nanos) > GROUPS_MAX_AGE;
        let known = known.filter(|_| !is_old);
        let is_known = known.is_some();
        let sampled = match sample(known.clone()) {
            Err(Errno::MFILE | Errno::NFILE) => empty_table::run(move || sample(known))?,
            sampled => sampled,
        };
        let (groups, bounds) = sampled?;
        if !is_known {
            self.groups_found_at_nanos = now_nanos;
        }
        self.groups = Some(groups);
        Ok(bounds)
    }
}

/// Reads the limits of the known groups, or of those that the process is in if it has left
/// them.
fn sample(known: Option<Arc<Groups>>) -> Result<(Arc<Groups>, Bounds), Errno> {
    let groups = match known {
        Some(known) if known.is_current()? => known,
        _ => Arc::new(Groups::find()?),
    };
    let bounds = Bounds::of(&groups)?;
    Ok((groups, bounds))
}
