//! What tenure has done in a process, in figures.

mod count;

pub(crate) use count::*;

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use crate::ground::error::{Error, Result};
use crate::ground::sys::Errno;
use crate::ground::sys::counters::{self, Found, ROOM};

/// How often something was done, and to how much memory.
///
/// Calls that failed, and calls on no bytes at all, are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[repr(C)]
pub struct Count {
    /// How often.
    pub calls: u64,
    /// To how many bytes in all. A byte counts as often as it is done.
    pub bytes: u64,
}

/// What tenure has done in a process since it began, or since it was forked: a
/// child counts from zero.
///
/// A verb counts as the one that the program has called, whatever else it uses:
/// [`LazilyFreed::take_back`](crate::LazilyFreed::take_back) is a `populate`,
/// a [`Mapping`](crate::Mapping) that is dropped a `munmap`, a
/// [`SecretBuffer`](crate::SecretBuffer) a `lock` and a `munmap`.
///
/// Each figure is exact. Read while other threads work, two figures may be from
/// two moments. Read from outside, what was done through a
/// [`VolatileBuffer`](crate::VolatileBuffer) shows a little later: within about a
/// second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[repr(C)]
// The order is what other processes, and C programs, know them by: new figures
// come last.
pub struct Stats {
    /// Ranges populated whole.
    pub populate: Count,
    /// Ranges locked, in either mode.
    pub lock: Count,
    /// Ranges unlocked; of `unlock` by mode the parts that had such a lock.
    pub unlock: Count,
    /// Calls of [`lock_all`](crate::lock_all).
    pub lock_all_calls: u64,
    /// Calls of [`unlock_all`](crate::unlock_all).
    pub unlock_all_calls: u64,
    /// Ranges freed lazily.
    pub lazy_free: Count,
    /// Ranges marked volatile, anew or again.
    pub mark_volatile: Count,
    /// Ranges marked nonvolatile: the parts that were volatile.
    pub mark_nonvolatile: Count,
    /// Volatile pages that the kernel took, counted when tenure finds out: when
    /// they are marked nonvolatile.
    pub purged_by_kernel_bytes: u64,
    /// Volatile pages taken by [`purge`](crate::PageRange::purge).
    pub purged_on_request_bytes: u64,
    /// Volatile memory that counts as lost because its protection ended without
    /// tenure's doing: its userfaultfd was closed, or it was mapped over.
    pub unprotected_bytes: u64,
    /// What is volatile at the moment.
    pub volatile_bytes: u64,
    /// Ranges unmapped: `munmap`, `release_now` and mappings dropped. Holes
    /// count.
    pub munmap: Count,
    /// Ranges whose contents were discarded.
    pub discard: Count,
    /// Ranges punched out of shared memory.
    pub punch: Count,
    /// Of `munmap` and `discard`: what was moved out of the way, for workers to
    /// free behind the caller.
    pub carried_off: Count,
    /// Of `munmap` and `discard`: what the caller itself freed, plainly.
    pub freed_by_caller_bytes: u64,
    /// How many worker threads were started to free memory.
    pub workers_started: u64,
    /// What was carried off and is not free yet, at the moment.
    pub pending_release_bytes: u64,
    /// Ranges freed at once by a [`FreePolicy`](crate::FreePolicy).
    pub eager_free: Count,
    /// Ranges that were lazily free, or so it was thought, when
    /// [`FreePolicy::Adaptive`](crate::FreePolicy::Adaptive) had the kernel take
    /// them under severe pressure.
    pub given_back: Count,
    /// Volatile pages that tenure took under memory pressure.
    pub purged_under_pressure_bytes: u64,
    /// What of the volatile memory the kernel has been offered, at the moment.
    pub offered_bytes: u64,
    /// Volatile memory that could not be offered when it was due (locked or replaced
    /// behind tenure's back, no room for one more mapping); it stays. Ranges are tried
    /// again when they are marked again, buffers after seconds.
    pub not_offered_bytes: u64,
    /// What of the volatile memory the kernel cannot be offered for want of
    /// userfaultfd or MADV_POPULATE_WRITE, at the moment: all of it, or nothing.
    /// tenure alone takes it, under memory pressure.
    pub kept_from_kernel_bytes: u64,
}

/// Adds what is counted elsewhere, where counting here would cost too much.
static BEFORE_READING: OnceLock<fn()> = OnceLock::new();

/// Has `bring_up_to_date` called before this process reads its figures.
pub(crate) fn before_reading(bring_up_to_date: fn()) {
    // There is one who counts elsewhere, and it says so once.
    let _ = BEFORE_READING.set(bring_up_to_date);
}

/// Reads what tenure has done in this process.
///
/// Counting is always on. The counters are in a page of memory, made when it is
/// first needed, that other processes can read: [`Stats::of_process`].
///
/// ```standalone_crate
/// use tenure::{Access, Mapping, stats};
///
/// let memory = Mapping::anonymous(1 << 20).map()?;
/// let before = stats();
/// memory.populate(.., Access::Write)?;
/// let after = stats();
/// assert_eq!(after.populate.calls - before.populate.calls, 1);
/// assert_eq!(after.populate.bytes - before.populate.bytes, 1 << 20);
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn stats() -> Stats {
    if let Some(bring_up_to_date) = BEFORE_READING.get() {
        bring_up_to_date();
    }
    let counters = counters::counters();
    Stats::from(&std::array::from_fn(|index| {
        counters[index].load(Ordering::Relaxed)
    }))
}

impl Stats {
    /// Reads what tenure has done in another process, from its memory
    /// (`/proc/PID/mem`): the sum where several copies of tenure are linked into
    /// it. `None` for a process that has not used tenure yet, and for one that
    /// had no room for the page of counters, or no memfd (RLIMIT_AS, RLIMIT_FSIZE,
    /// seccomp), when it first did.
    ///
    /// # Errors
    ///
    /// * [`Error::NoProcess`] when there is no such process,
    /// * [`Error::MayNotLook`] without the rights to trace it,
    /// * [`Error::OtherLayout`] when it counts as another version does,
    /// * [`Error::System`] for anything else.
    ///
    /// ```
    /// use tenure::Stats;
    ///
    /// match Stats::of_process(std::process::id()) {
    ///     Ok(Some(stats)) => println!("{} bytes populated", stats.populate.bytes),
    ///     Ok(None) => println!("it has not used tenure"),
    ///     Err(error) => println!("{error}"),
    /// }
    /// ```
    pub fn of_process(pid: u32) -> Result<Option<Self>> {
        let found = counters::of_process(pid).map_err(|errno| explain(pid, errno))?;
        match found {
            Found::Counters(counters) => Ok(Some(Self::from(&*counters))),
            Found::OtherLayout(layout) => Err(Error::OtherLayout { pid, layout }),
            Found::Nothing => Ok(None),
        }
    }
}

fn explain(pid: u32, errno: Errno) -> Error {
    match errno {
        Errno::NOENT | Errno::SRCH => Error::NoProcess { pid },
        Errno::ACCESS | Errno::PERM => Error::MayNotLook { pid, answer: errno },
        errno => Error::System {
            call: "reading /proc/PID/maps and /proc/PID/mem",
            errno,
        },
    }
}

impl From<&[u64; ROOM]> for Stats {
    fn from(counters: &[u64; ROOM]) -> Self {
        // SAFETY: the structure is made of u64 only, in the order of the
        // counters (`repr(C)`), and no longer than the array (checked where the
        // counters are named).
        unsafe { counters.as_ptr().cast::<Self>().read() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_is_the_field_of_its_name() {
        let numbered: [u64; ROOM] = std::array::from_fn(|index| index as u64);
        let stats = Stats::from(&numbered);
        assert_eq!(stats.populate, Count { calls: 0, bytes: 1 });
        assert_eq!(stats.lock_all_calls, 6);
        assert_eq!(stats.purged_by_kernel_bytes, 14);
        assert_eq!(stats.munmap.bytes, 19);
        assert_eq!(stats.pending_release_bytes, 28);
        assert_eq!(stats.not_offered_bytes, 35);
        assert_eq!(stats.kept_from_kernel_bytes, 36);
        assert_eq!(size_of::<Stats>(), 37 * size_of::<u64>());
    }
}
