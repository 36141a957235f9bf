//! The readings that the ledger is held against.

use std::sync::{Arc, Condvar};
use std::time::Duration;

use super::bounds::{Bounds, Headroom, assure_memory};
use super::ledger::{Ledger, Limit, ReadingStart};
use crate::ground::sys::cgroup::Groups;
use crate::ground::sys::fork::{self, ForkMutex};
use crate::ground::sys::process::monotonic_nanos;
use crate::ground::sys::{Errno, affinity, empty_table, process};

/// The ledger of this process.
pub(crate) static LEDGER: Ledger = Ledger::new();

/// How long the directories of the cgroups are known, while the process stays in them.
const GROUPS_MAX_AGE: Duration = Duration::from_secs(10);

/// The state that the next reading uses. Nothing is read or allocated while it is locked: an
/// allocator's fork handler may hold the allocator's lock when a fork locks this.
struct Reader {
    groups: Option<Arc<Groups>>,
    groups_found_at_nanos: u64,
    /// A thread takes a reading.
    is_reading: bool,
    /// The limits were read once, so that the unused memory of the machine is not the limit.
    has_limits: bool,
}

static READER: ForkMutex<Reader> = ForkMutex::new(
    Reader {
        groups: None,
        groups_found_at_nanos: 0,
        is_reading: false,
        has_limits: false,
    },
    Reader::start_in_child,
);

/// Notified when a reading ends.
static READ: Condvar = Condvar::new();

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

/// Takes a reading if the last one, or the last attempt, is older than `age`, or much was
/// admitted since.
///
/// # Errors
///
/// As for [`refresh`].
pub(crate) fn refresh_if_older(age: Duration) -> Result<(), Errno> {
    match LEDGER.is_due_after(age) {
        true => refresh(),
        false => Ok(()),
    }
}

/// Takes a reading, unless one has begun at this time of the monotonic clock or later.
///
/// # Errors
///
/// As for [`refresh`].
pub(super) fn refresh_if_before(nanos: u64) -> Result<(), Errno> {
    let mut reader = READER.lock();
    // A fork handler must not wait for a thread that may wait for an allocator's lock.
    while reader.is_reading && !fork::is_in_handler() {
        (reader, _) = reader.wait(|reader| READ.wait_timeout(reader, RECHECK_INTERVAL));
    }
    if LEDGER.read_at_nanos() >= nanos {
        return Ok(());
    }
    reader.is_reading = true;
    drop(reader);
    let _reading = Reading;
    read(Bounds::limits, |start, limits| {
        LEDGER.end_reading(start, limits, affinity::process_cpu_count());
    })
    .map(|_| ())
}

/// Takes a reading that also counts the memory that this process has freed lazily, for
/// which the kernel walks all pages, and then commits the bytes if they fit. Returns whether
/// they are committed.
///
/// # Errors
///
/// As for [`refresh`].
pub(super) fn take_exactly(bytes: usize) -> Result<bool, Errno> {
    let is_taken = read(Bounds::limits_with_lazily_free, |start, limits| {
        let cpus = affinity::process_cpu_count();
        LEDGER.end_reading_and_take(start, limits, cpus, bytes)
    });
    Ok(is_taken?.unwrap_or(false))
}

/// Takes a reading and returns the headroom by it, as [`Headroom::lower_bound`].
///
/// # Errors
///
/// The kernel's error, if the limits cannot be read. The last reading holds.
pub(super) fn take_reading() -> Result<Headroom, Errno> {
    let now_nanos = monotonic_nanos();
    let start = LEDGER.begin_reading(now_nanos);
    let bounds = sample_known(now_nanos).inspect_err(|_| LEDGER.abandon_reading(&start))?;
    LEDGER.end_reading(&start, &bounds.limits(), affinity::process_cpu_count());
    Ok(bounds.lower_bound())
}

/// Returns how much more memory the kernel can swap out: the free swap, and what the groups of
/// the last reading leave of their limits. 0 where that is unknown.
///
/// Where there is swap, this reads two small files of each group.
#[doc(hidden)]
pub fn swappable_bytes() -> usize {
    let free_bytes = process::swap_free_bytes();
    if free_bytes == 0 {
        return 0;
    }
    let groups = READER.lock().groups.clone();
    let by_groups = groups.map(|groups| groups.swappable_bytes());
    let by_groups = by_groups.and_then(Result::ok).unwrap_or(0);
    free_bytes.min(by_groups)
}

/// How often a thread that waits for another's reading looks whether it has ended.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A reading under way, until this is dropped.
struct Reading;

impl Drop for Reading {
    fn drop(&mut self) {
        READER.lock().is_reading = false;
        READ.notify_all();
    }
}

/// Reads the limits and ends the reading with them. `None` if they cannot be read and the
/// last reading holds.
fn read<T>(
    limits: fn(&Bounds) -> Vec<Limit>,
    end: impl FnOnce(&ReadingStart, &[Limit]) -> T,
) -> Result<Option<T>, Errno> {
    let now_nanos = monotonic_nanos();
    let start = LEDGER.begin_reading(now_nanos);
    let limits = match sample_known(now_nanos) {
        Ok(bounds) => limits(&bounds),
        // There is no /proc, and never was.
        Err(Errno::NOENT) if !READER.lock().has_limits => {
            let (size_bytes, free_bytes) = process::mem_total_and_free_bytes();
            vec![Limit {
                size_bytes,
                free_bytes,
            }]
        }
        Err(errno) => {
            LEDGER.abandon_reading(&start);
            return match LEDGER.has_reading() {
                true => Ok(None),
                false => Err(errno),
            };
        }
    };
    Ok(Some(end(&start, &limits)))
}

/// Reads the limits of the known groups; on a thread with a descriptor table of its own,
/// where this process has no descriptor left.
fn sample_known(now_nanos: u64) -> Result<Bounds, Errno> {
    let reader = READER.lock();
    let age_nanos = now_nanos.saturating_sub(reader.groups_found_at_nanos);
    let is_old = Duration::from_nanos(age_nanos) > GROUPS_MAX_AGE;
    let known = reader.groups.clone().filter(|_| !is_old);
    drop(reader);
    let before = known.clone();
    let sampled = match sample(known.clone()) {
        Err(Errno::MFILE | Errno::NFILE) => {
            empty_table::run(move || sample(known)).and_then(|sampled| sampled)
        }
        sampled => sampled,
    };
    let (groups, bounds) = sampled?;
    let is_new = before.is_none_or(|before| !Arc::ptr_eq(&before, &groups));
    let mut reader = READER.lock();
    reader.has_limits = true;
    if is_new {
        reader.groups_found_at_nanos = now_nanos;
    }
    let previous = reader.groups.replace(groups);
    // Unlocked first, because dropping the groups calls the allocator.
    drop(reader);
    drop(previous);
    Ok(bounds)
}

/// Returns the bytes that are admitted and not resident yet.
///
/// The tests of the whole library hold it against what they have admitted.
#[doc(hidden)]
pub fn outstanding_bytes() -> usize {
    LEDGER.outstanding_bytes()
}

impl Reader {
    fn start_in_child(&mut self) {
        // Dropping the groups would call the allocator.
        std::mem::forget(self.groups.take());
        self.is_reading = false;
        LEDGER.reset();
    }
}

/// Reads the limits of the known groups, or of those that the process is in if it has left
/// them.
fn sample(known: Option<Arc<Groups>>) -> Result<(Arc<Groups>, Bounds), Errno> {
    assure_memory()?;
    let groups = match known {
        Some(known) if known.is_current()? => known,
        _ => Arc::new(Groups::find()?),
    };
    let bounds = Bounds::of(&groups)?;
    Ok((groups, bounds))
}
