//! Memory pressure, as one level: how short memory is for this process.
//!
//! [`level`] returns it, [`subscribe`] reports changes, and [`Snapshot`] has
//! the figures behind it. Everything in this library that reacts to pressure
//! takes its level from here.
//!
//! # What determines the level
//!
//! The highest row of this table wins. A *bound* is the machine, or a memory
//! cgroup that has a limit: this process's own or an ancestor (version 1 or 2).
//!
//! | source | some | severe |
//! | --- | --- | --- |
//! | headroom: the memory left in a bound before the kernel must kill (or swap), page cache included | less than a tenth of the bound, and than 4 GiB | less than 1/32, and than 1 GiB |
//! | stalls, with little page cache: under a quarter of the bound that is being reclaimed | some tasks stall 5 % of the time | 20 %, or all tasks 10 % |
//! | stalls, with more page cache | 5 % | 60 %, or all tasks 40 % |
//! | reclaim of lazily freed memory: while a process frees with [`FreePolicy::Adaptive`](crate::lazy_free::FreePolicy::Adaptive), the kernel reclaims at least an eighth as many bytes, and a bound hits its limit | that process checks after each 16 MiB | |
//! | out of memory: reclaim in a bound found nothing, or the kernel killed | | since the last reading |
//!
//! Headroom is compared with a fraction of the bound, because a small container
//! lives in a few MiB, and with a number of bytes, because 3 % of a large
//! machine are plenty. Lazily freed memory counts as headroom as far as this
//! process knows it to be free still.
//!
//! Stalls are times in which tasks did nothing but wait for memory (PSI). Their
//! meaning depends on what is reclaimed. A program that streams files through a
//! full cgroup stalls for 5 to 28 % of the time, and all of a single thread's
//! stalls are stalls of all tasks; but page cache may be dropped, and memory is
//! not short. With little page cache, 19 to 70 % were measured as soon as
//! lazily freed memory did not fit, and anonymous memory is reclaimed next.
//! (256 MiB, 2 CPUs, Linux 6.18, one to four threads.)
//!
//! The stalls are those of the process's own cgroup, which version 2 reports
//! even where version 1 controls memory. Without a cgroup of its own, the
//! system's stalls count while one of this process's limits is being hit
//! (otherwise a neighbour hits its own). In both cases the system's count while
//! programs reclaim directly because the machine has no free memory
//! (`allocstall` in `/proc/vmstat`). Stalls are measured over one to two
//! seconds.
//!
//! A process that keeps freeing more lazily than fits makes the kernel reclaim
//! the pages one by one, which costs more than freeing them at once. Stalls
//! take up to three seconds to show that, in one process later than in another.
//! So the freeing process itself compares `pglazyfreed` in `/proc/vmstat` with
//! what it freed: with a tenth more than fits a tenth was reclaimed, and lazy
//! free was still faster; with half more four tenths, and it was not. It raises
//! the level at once; subscribers are notified after the watcher's next
//! reading.
//!
//! `memory.events` tells whether a limit is hit, or `memory.failcnt` and
//! `memory.memsw.failcnt`. A version 1 group in which neither ever counted is
//! taken to hit its limit while it is nearly full: Linux 6.18 does not count
//! where memory and memory+swap have the same limit, as in containers without
//! swap.
//!
//! Without PSI (before Linux 4.20, or switched off) each limit hit counts as 3
//! µs of stall.
//!
//! # How it changes
//!
//! The level rises at once, and falls by one step after ten seconds with less
//! pressure, so that reactions to it do not oscillate.
//!
//! # What it does not see
//!
//! - Limits outside the container, unless their stalls show.
//! - A program that goes from plenty to its limit between two readings: with 4
//!   GiB left that takes a second. [`Headroom`](crate::Headroom) tells
//!   beforehand.
//! - Whose the system's stalls are: in a version 1 cgroup without one of
//!   version 2, a neighbour's count as well while a limit of this process's is
//!   being hit.
//! - `memory.high` by itself; the stalls that it causes count.
//!
//! On version 1 the kernel's own notifications (`cgroup.event_control`) are not
//! used: they need write access, which containers lack, and tell nothing that a
//! reading does not.

mod elsewhere;
mod judge;
mod poll_interval;
mod reading;
mod reclaim_meter;
mod snapshot;
mod subscription;
mod watcher;

pub use elsewhere::{level_in_cgroup, level_of_process};
pub(crate) use reclaim_meter::record_lazy_free;
pub use snapshot::{Reason, Snapshot, StallSource};
pub use subscription::{Subscription, subscribe};
pub(crate) use watcher::register_fork_handlers;

use std::time::Instant;

use self::reading::LazilyFree;

/// How short memory is for this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Memory is sufficient.
    #[default]
    None,
    /// Tasks wait for memory now and then, or the headroom is low: keep nothing
    /// that is of little use.
    Some,
    /// Tasks wait for memory much of the time, or the kernel is about to kill:
    /// release everything that can be spared.
    Severe,
}

/// Returns the level.
///
/// While there is a [subscription](subscribe), this is the level of the
/// watcher's last reading, and costs a few nanoseconds. Otherwise the call
/// takes a reading, from a few small files, and starts no thread; then there is
/// no earlier reading to compare with, and the kernel's own average over ten
/// seconds counts. [`Level::None`] where nothing can be read.
///
/// ```
/// use tenure::pressure::{self, Level};
///
/// if pressure::level() == Level::Severe {
///     // Drop everything that can be computed again.
/// }
/// ```
pub fn level() -> Level {
    watcher::last_level().unwrap_or_else(|| {
        reading::Reading::now(&mut LazilyFree::default()).map_or(Level::None, |(reading, ..)| {
            judge::Judge::new().update(Instant::now(), reading).level
        })
    })
}

/// Returns whether the watcher's last reading found severe pressure, as opposed
/// to a level that is still cooling down: whether what was released since was
/// not enough.
pub(crate) fn is_severe_now() -> bool {
    let verdict = watcher::last_verdict();
    verdict.is_some_and(|(level, reason)| level == Level::Severe && reason != Reason::Cooldown)
}
