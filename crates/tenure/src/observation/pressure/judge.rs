//! The rules that turn readings into a level.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::reading::{Bound, Reading};
use super::{Level, Reason};
use crate::ground::sys::psi::Stalls;

/// Headroom below which memory is short: less than a fraction of the bound,
/// because a small container lives in a few MiB, and less than a number of
/// bytes, because 3 % of a large machine are plenty.
struct HeadroomThreshold {
    /// The bound is divided by this.
    divisor: usize,
    max_bytes: usize,
}

const SOME_HEADROOM: HeadroomThreshold = HeadroomThreshold {
    divisor: 10,
    max_bytes: 4 << 30,
};

const SEVERE_HEADROOM: HeadroomThreshold = HeadroomThreshold {
    divisor: 32,
    max_bytes: 1 << 30,
};

/// The minimum share of the time, of some tasks, for stalls to count.
const SOME_STALL: f64 = 0.05;

/// The minimum shares of the time, of some tasks and of all, for stalls to be
/// severe. Where much of the memory to be reclaimed is page cache, a stalling
/// program may well be streaming files through it: that costs up to a third of
/// the time and endangers nothing. Lazily freed and other anonymous memory
/// starts to cost as much when freeing it at once would be cheaper.
struct StallThreshold {
    some: f64,
    full: f64,
}

const SEVERE_STALL: StallThreshold = StallThreshold {
    some: 0.20,
    full: 0.10,
};

const SEVERE_STALL_WITH_CACHE: StallThreshold = StallThreshold {
    some: 0.60,
    full: 0.40,
};

/// The page cache is large if it is at least the bound divided by this.
const LARGE_CACHE_DIVISOR: usize = 4;

/// A cgroup whose unused memory is less than its limit divided by this may have
/// been reclaimed from. (A machine that has run for a while never has more.)
const FULL_DIVISOR: usize = 16;

/// A machine whose available memory is less than its total divided by this may
/// have been reclaimed from, too.
const TIGHT_DIVISOR: usize = 4;

/// The stall that one limit hit counts as, where the kernel does not report
/// stalls: 0.8 to 8 µs with anonymous memory, measured on 2 CPUs with Linux
/// 6.18.
const STALL_PER_HIT: Duration = Duration::from_micros(3);

/// Stalls are measured since a reading at least this old, so that a stall that
/// has just ended does not look like calm, and ...
const MIN_WINDOW: Duration = Duration::from_secs(1);
/// ... where that reading is older, as if all of them had happened within this
/// time, in which a trigger would have reported them.
const MAX_WINDOW: Duration = Duration::from_secs(2);
/// The minimum time to measure stalls over.
const MIN_ELAPSED: Duration = Duration::from_millis(200);

/// How long there must be less pressure until the level falls by one step.
pub(super) const COOLDOWN: Duration = Duration::from_secs(10);

/// Turns consecutive readings into a level, which rises at once and falls step
/// by step.
pub(super) struct Judge {
    level: Level,
    reason: Reason,
    /// The time since which there has been less pressure than the level says.
    lower_since: Option<Instant>,
    previous: Option<(Instant, Reading)>,
    /// The stalls, own and system, of readings back to [`MIN_WINDOW`] ago.
    stalls: VecDeque<(Instant, [Option<Stalls>; 2])>,
}

/// The result of a reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Verdict {
    pub(super) level: Level,
    pub(super) reason: Reason,
    /// The memory left in the bound that has least.
    pub(super) left_bytes: usize,
    /// The time until a bound is exhausted at the current rate.
    pub(super) used_up_in: Option<Duration>,
}

impl Judge {
    pub(super) const fn new() -> Self {
        Self {
            level: Level::None,
            reason: Reason::None,
            lower_since: None,
            previous: None,
            stalls: VecDeque::new(),
        }
    }

    /// Returns the level after the last reading, or [`Judge::raise`] since, and
    /// its reason.
    pub(super) fn level(&self) -> (Level, Reason) {
        (self.level, self.reason)
    }

    /// Records [`Level::Some`] between two readings.
    pub(super) fn raise(&mut self, at: Instant, reason: Reason) {
        if self.level <= Level::Some {
            self.step_towards(at, Level::Some, reason);
        }
    }

    /// Updates the level by a reading.
    pub(super) fn update(&mut self, at: Instant, reading: Reading) -> Verdict {
        let shares = self.shares(at, &reading);
        let (level, reason) = self.instantaneous(at, &reading, shares);
        self.stalls.push_back((at, [reading.own, reading.system]));
        let old = |&(then, _): &(Instant, _)| at.duration_since(then) >= MIN_WINDOW;
        while self.stalls.get(1).is_some_and(old) {
            self.stalls.pop_front();
        }
        let left_bytes = reading.bounds().map(|bound| bound.left_bytes).min();
        let used_up_in = self.used_up_in(at, &reading);
        self.previous = Some((at, reading));
        self.step_towards(at, level, reason);
        Verdict {
            level: self.level,
            reason: self.reason,
            left_bytes: left_bytes.unwrap_or(usize::MAX),
            used_up_in,
        }
    }

    /// Raises the level at once, or lowers it by one step after each
    /// [`COOLDOWN`].
    fn step_towards(&mut self, at: Instant, level: Level, reason: Reason) {
        if level >= self.level {
            (self.level, self.reason) = (level, reason);
            self.lower_since = None;
            return;
        }
        self.reason = Reason::Cooldown;
        let since = *self.lower_since.get_or_insert(at);
        if at.duration_since(since) >= COOLDOWN {
            self.level = match self.level {
                Level::Severe => Level::Some,
                _ => Level::None,
            };
            self.lower_since = None;
            self.step_towards(at, level, reason);
        }
    }

    /// Returns the level by this reading alone, and its first reason.
    fn instantaneous(
        &self,
        at: Instant,
        reading: &Reading,
        [own, system]: [Option<(f64, f64)>; 2],
    ) -> (Level, Reason) {
        let mut worst = (Level::None, Reason::None);
        let mut consider = |level, reason| {
            if level > worst.0 {
                worst = (level, reason);
            }
        };
        for bound in reading.bounds() {
            let before = self.before(bound).map(|before| before.events.ooms);
            if bound.events.is_out_of_memory || before.is_some_and(|ooms| bound.events.ooms > ooms)
            {
                consider(Level::Severe, Reason::OutOfMemory);
            }
            consider(
                level_by_headroom(bound.size_bytes, bound.left_bytes),
                Reason::LowHeadroom,
            );
        }
        let is_reclaimed = |bound: &&Bound| self.is_reclaimed(bound);
        let by_stalls = |shares: Option<_>, bounds: &[&Bound]| {
            let scarce =
                |bound: &&Bound| bound.page_cache_bytes < bound.size_bytes / LARGE_CACHE_DIVISOR;
            shares.map_or(Level::None, |shares| {
                level_by_stalls(shares, bounds.iter().any(scarce))
            })
        };
        let reclaimed: Vec<&Bound> = reading.bounds().filter(is_reclaimed).collect();
        consider(by_stalls(own, &reclaimed), Reason::Stalls);
        // The system's stalls count if the system has no memory, or if this
        // process has hit a limit. Otherwise a neighbour has hit one.
        let counts = |bound: &&Bound| bound.group.is_none() || reading.own.is_none();
        if reclaimed.iter().any(counts) {
            consider(by_stalls(system, &reclaimed), Reason::Stalls);
        }
        if reading.own.is_none() && reading.system.is_none() {
            let shares = self.shares_by_hits(at, reading);
            consider(by_stalls(shares, &reclaimed), Reason::LimitHits);
        }
        worst
    }

    fn used_up_in(&self, at: Instant, reading: &Reading) -> Option<Duration> {
        let (then, _) = self.previous.as_ref()?;
        let elapsed = at.duration_since(*then);
        let times = reading.bounds().filter_map(|bound| {
            let taken = self
                .before(bound)?
                .left_bytes
                .checked_sub(bound.left_bytes)?;
            let intervals = bound.left_bytes as f64 / taken as f64;
            Duration::try_from_secs_f64(elapsed.as_secs_f64() * intervals).ok()
        });
        times.min()
    }

    fn before(&self, bound: &Bound) -> Option<&Bound> {
        let (_, previous) = self.previous.as_ref()?;
        previous.bounds().find(|before| before.group == bound.group)
    }

    /// Returns whether the bound was hit since the previous reading. Without
    /// one, or where the kernel does not count hits, whether it may have been.
    fn is_reclaimed(&self, bound: &Bound) -> bool {
        match self.before(bound) {
            Some(before) if bound.events.hits > before.events.hits => true,
            Some(_) if bound.group.is_none() || bound.events.hits > 0 => false,
            _ if bound.group.is_some() => is_full(bound.size_bytes, bound.unused_bytes),
            _ => bound.left_bytes < bound.size_bytes / TIGHT_DIVISOR,
        }
    }

    /// Returns the stalled shares of the time (some, full), own and system.
    fn shares(&self, at: Instant, reading: &Reading) -> [Option<(f64, f64)>; 2] {
        let mut shares = [None, None];
        for (index, now) in [reading.own, reading.system].into_iter().enumerate() {
            let Some(now) = now else { continue };
            let then = self.stalls.iter().find_map(|&(then, stalls)| {
                let elapsed = at.duration_since(then);
                stalls[index]
                    .filter(|_| elapsed >= MIN_ELAPSED)
                    .map(|stalls| (elapsed, stalls))
            });
            shares[index] = Some(match then {
                Some((elapsed, then)) => {
                    let time = elapsed.min(MAX_WINDOW).as_secs_f64();
                    let share = |now: Duration, then| {
                        let stalled: Duration = now.saturating_sub(then);
                        (stalled.as_secs_f64() / time).min(1.0)
                    };
                    (
                        share(now.some.total, then.some.total),
                        share(now.full.total, then.full.total),
                    )
                }
                None => (now.some.recent_share, now.full.recent_share),
            });
        }
        shares
    }

    /// Estimates the stalled shares of the time from the number of limit hits.
    fn shares_by_hits(&self, at: Instant, reading: &Reading) -> Option<(f64, f64)> {
        let (then, _) = self.previous.as_ref()?;
        let elapsed = at.duration_since(*then).as_secs_f64();
        let hits = reading.bounds().filter_map(|bound| {
            let before = self.before(bound)?.events.hits;
            Some(bound.events.hits.saturating_sub(before))
        });
        let stalled = STALL_PER_HIT.as_secs_f64() * hits.max()? as f64;
        // The number of hits does not tell whether all tasks stalled.
        Some((
            (stalled / elapsed.max(MIN_ELAPSED.as_secs_f64())).min(1.0),
            0.0,
        ))
    }
}

/// Returns whether a cgroup may have been reclaimed from.
pub(super) fn is_full(size_bytes: usize, unused_bytes: usize) -> bool {
    unused_bytes < size_bytes / FULL_DIVISOR
}

/// Returns the level by the headroom of a bound alone.
pub(super) fn level_by_headroom(size_bytes: usize, left_bytes: usize) -> Level {
    let is_below = |threshold: HeadroomThreshold| {
        left_bytes < (size_bytes / threshold.divisor).min(threshold.max_bytes)
    };
    if is_below(SEVERE_HEADROOM) {
        Level::Severe
    } else if is_below(SOME_HEADROOM) {
        Level::Some
    } else {
        Level::None
    }
}

/// Returns the level by stalls alone, from their shares of the time.
fn level_by_stalls((some, full): (f64, f64), cache_is_scarce: bool) -> Level {
    let severe = if cache_is_scarce {
        SEVERE_STALL
    } else {
        SEVERE_STALL_WITH_CACHE
    };
    if some >= severe.some || full >= severe.full {
        Level::Severe
    } else if some >= SOME_STALL {
        Level::Some
    } else {
        Level::None
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
