//! Memory pressure, as one level: how short memory is for this process.
//!
//! [`level`] tells it, [`subscribe`] tells changes, [`Look`] the figures behind it.
//! Everything in this library that reacts to pressure takes its level from here.
//!
//! # What makes a level
//!
//! The highest of these counts. A *bound* is the machine, or a memory cgroup of
//! this process or around it (version 1 or 2) that has a limit.
//!
//! | what | some | severe |
//! | --- | --- | --- |
//! | room: what is left of a bound before the kernel must kill (or swap), page cache included | less than a tenth of it, and than 4 GiB | less than 1/32, and than 1 GiB |
//! | stalls, with little page cache: under a quarter of the bound that is reclaimed from | some tasks stall 5 % of the time | 20 %, or all tasks 10 % |
//! | stalls, with more page cache | 5 % | 60 %, or all tasks 40 % |
//! | what was freed lazily is taken: while a process frees with [`FreePolicy::Adaptive`](crate::FreePolicy::Adaptive), the kernel takes, at a bound that is met, an eighth of as much | noticed by that process, after each 16 MiB | |
//! | out of memory: the kernel found nothing to reclaim in a bound, or killed | | since the last look |
//!
//! Room is a part of the bound, for a small container lives in a few MiB, and no
//! more than so many bytes, for 3 % of a large machine are plenty. What was freed
//! lazily is room as far as this process knows it to be free still.
//!
//! Stalls are times in which tasks did nothing but wait for memory (PSI). What they
//! mean depends on what is reclaimed. Who streams files through a full cgroup
//! stalls for 5 to 28 % of the time, and all of a single thread's stalls are stalls
//! of all tasks; page cache is there to be dropped, and nothing is short. Where
//! there is little of it, 19 to 70 % were seen as soon as lazily freed memory did not
//! fit, and anonymous memory is what goes next. (256 MiB, 2 CPUs, Linux 6.18, one to
//! four threads.)
//!
//! The stalls are those of the process's own cgroup, which version 2 tells also
//! where version 1 controls memory. The system's count where there are no others,
//! while a limit of this process's is being met (otherwise a neighbour has met his),
//! and in any case while programs reclaim because the machine has no free memory
//! (`allocstall` in `/proc/vmstat`). They are measured over one to two seconds.
//!
//! Whoever keeps freeing more lazily than fits has the kernel take the pages one by
//! one, which costs more than giving them back, while it takes stalls up to three
//! seconds to show, in one process later than in another. So the one who frees
//! counts (`pglazyfreed` in `/proc/vmstat`): with a tenth more than fits a tenth was
//! taken, and lazily was still faster; with half more four tenths, and it was not.
//! It raises the level at once; who has subscribed is told at the watcher's next
//! look.
//!
//! Whether a limit is met, `memory.events` tells, or `memory.failcnt` and
//! `memory.memsw.failcnt`. A version 1 group in which neither ever counted is taken
//! to be met while it is nearly full: Linux 6.18 does not count where memory and
//! swap have one limit, as in containers without swap.
//!
//! Without PSI (before Linux 4.20, or switched off) each time that a limit is met
//! counts for 3 µs of stall.
//!
//! # How it changes
//!
//! It rises at once, and falls by one step after ten seconds with less pressure,
//! so that what reacts to it does not swing.
//!
//! # What it does not see
//!
//! - Limits outside the container, unless their stalls show.
//! - A program that goes from plenty to its limit faster than anybody looks:
//!   with 4 GiB left that takes a second. [`Room`](crate::Room) tells beforehand.
//! - Whose the system's stalls are: in a version 1 cgroup without one of version 2
//!   a neighbour's count as well while a limit of this process's is being met.
//! - `memory.high` by itself; the stalls that it causes count.
//!
//! On version 1 the kernel's own notifications (`cgroup.event_control`) are not
//! used: they need write access, which containers do not have, and tell nothing
//! that a look does not.

mod judge;
mod look;
mod pause;
mod reading;
mod subscription;
mod taken;
mod watcher;

pub use look::{Look, Reason, StallSource};
pub use subscription::{Subscription, subscribe};
pub(crate) use taken::freed_lazily;
pub(crate) use watcher::prepare;

use std::time::Instant;

use self::reading::LazilyFree;

/// How short memory is for this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// There is enough.
    #[default]
    None,
    /// Programs wait for memory now and then, or there is not much more: keep
    /// nothing that is of little use.
    Some,
    /// Programs wait for memory much of the time, or the kernel is about to
    /// kill: give up all that can be done without.
    Severe,
}

/// Tells the level.
///
/// While somebody has [subscribed](subscribe), it is that of the last look, and
/// costs a few nanoseconds. Otherwise it looks now, which reads a few small
/// files, and starts no thread; then there is nothing to compare with, and the
/// kernel's own average over ten seconds counts. [`Level::None`] where nothing
/// can be read.
///
/// ```
/// use tenure::pressure::{self, Level};
///
/// if pressure::level() == Level::Severe {
///     // Drop what can be had again.
/// }
/// ```
pub fn level() -> Level {
    watcher::last_level().unwrap_or_else(|| {
        reading::Reading::now(&mut LazilyFree::default()).map_or(Level::None, |(reading, ..)| {
            judge::Judge::new().take(Instant::now(), reading).level
        })
    })
}

/// Whether the watcher's last look found severe pressure, and not only the memory
/// of it: whether what has been given up since was not enough.
pub(crate) fn is_severe_now() -> bool {
    let verdict = watcher::last_verdict();
    verdict.is_some_and(|(level, reason)| level == Level::Severe && reason != Reason::CalmingDown)
}
