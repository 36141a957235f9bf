//! From figures to a level.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::reading::{Bound, Reading};
use super::{Level, Reason};
use crate::ground::sys::psi::Stalls;

/// Below which part of a bound, and below how many bytes, room is short: a part,
/// for a small container lives in a few MiB, and no more than so many bytes, for
/// 3 % of a large machine are plenty.
const SOME_ROOM: (usize, usize) = (10, 4 << 30);
const SEVERE_ROOM: (usize, usize) = (32, 1 << 30);

/// From which share of the time on stalls count at all.
const SOME_STALL: f64 = 0.05;

/// From which share on, of some tasks and of all, they are severe. Where much of
/// what is to be reclaimed from is page cache, who stalls may well be streaming
/// files past it: that costs up to a third of the time and endangers nobody.
/// Lazily freed and other anonymous memory begins to cost as much when giving it
/// up at once would be cheaper.
const SEVERE_STALL: (f64, f64) = (0.20, 0.10);
const SEVERE_STALL_WITH_CACHE: (f64, f64) = (0.60, 0.40);

/// The page cache is much when it is this part of a bound.
const MUCH_CACHE: usize = 4;

/// A cgroup of which less than this part is unused may have been reclaimed from.
/// (Of a machine that has run for a while there is never more.)
const FULL: usize = 16;

/// So may a machine of which less than this part is available.
const TIGHT: usize = 4;

/// What meeting a limit costs, where the kernel does not tell: 0.8 to 8 µs in
/// front of anonymous memory, measured on 2 CPUs with Linux 6.18.
const HIT: Duration = Duration::from_micros(3);

/// Stalls are measured since a look that was at least so long ago, so that one
/// that has just ended does not look like calm, and ...
const WINDOW: Duration = Duration::from_secs(1);
/// ... where that look was longer ago, as if all had happened within the time in
/// which a trigger would have reported it.
const NOTICED_WITHIN: Duration = Duration::from_secs(2);
/// Less time says little.
const SHORTEST: Duration = Duration::from_millis(200);

/// How long there must be less pressure until the level falls by one step.
pub(super) const CALM: Duration = Duration::from_secs(10);

/// Judges one reading after the other. The level rises at once, and falls step
/// by step.
pub(super) struct Judge {
    level: Level,
    reason: Reason,
    /// Since when there has been less pressure than the level says.
    less_since: Option<Instant>,
    previous: Option<(Instant, Reading)>,
    /// The stalls of looks back to [`WINDOW`] ago: own and system.
    stalls: VecDeque<(Instant, [Option<Stalls>; 2])>,
}

/// What has come out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Verdict {
    pub(super) level: Level,
    pub(super) reason: Reason,
    /// What is left where there is least.
    pub(super) left_bytes: usize,
    /// When a bound would leave nothing more, if it goes on like this.
    pub(super) used_up_in: Option<Duration>,
}

impl Judge {
    pub(super) const fn new() -> Self {
        Self {
            level: Level::None,
            reason: Reason::Calm,
            less_since: None,
            previous: None,
            stalls: VecDeque::new(),
        }
    }

    /// What the last look, or [`Judge::note`] since, has led to.
    pub(super) fn level(&self) -> (Level, Reason) {
        (self.level, self.reason)
    }

    /// Takes note of some pressure between two readings.
    pub(super) fn note(&mut self, at: Instant, reason: Reason) {
        if self.level <= Level::Some {
            self.follow(at, Level::Some, reason);
        }
    }

    pub(super) fn take(&mut self, at: Instant, reading: Reading) -> Verdict {
        let shares = self.shares(at, &reading);
        let (level, reason) = self.at_once(at, &reading, shares);
        self.stalls.push_back((at, [reading.own, reading.system]));
        let old = |&(then, _): &(Instant, _)| at.duration_since(then) >= WINDOW;
        while self.stalls.get(1).is_some_and(old) {
            self.stalls.pop_front();
        }
        let left_bytes = reading.bounds().map(|bound| bound.left_bytes).min();
        let used_up_in = self.used_up_in(at, &reading);
        self.previous = Some((at, reading));
        self.follow(at, level, reason);
        Verdict {
            level: self.level,
            reason: self.reason,
            left_bytes: left_bytes.unwrap_or(usize::MAX),
            used_up_in,
        }
    }

    /// Rises at once; falls by one step after each [`CALM`].
    fn follow(&mut self, at: Instant, level: Level, reason: Reason) {
        if level >= self.level {
            (self.level, self.reason) = (level, reason);
            self.less_since = None;
            return;
        }
        self.reason = Reason::CalmingDown;
        let since = *self.less_since.get_or_insert(at);
        if at.duration_since(since) >= CALM {
            self.level = match self.level {
                Level::Severe => Level::Some,
                _ => Level::None,
            };
            self.less_since = None;
            self.follow(at, level, reason);
        }
    }

    /// The level by this reading alone, and what says so first.
    fn at_once(
        &self,
        at: Instant,
        reading: &Reading,
        [own, system]: [Option<(f64, f64)>; 2],
    ) -> (Level, Reason) {
        let mut worst = (Level::None, Reason::Calm);
        let mut note = |level, reason| {
            if level > worst.0 {
                worst = (level, reason);
            }
        };
        for bound in reading.bounds() {
            let before = self.before(bound).map(|before| before.events.ooms);
            if bound.events.is_out_of_memory || before.is_some_and(|ooms| bound.events.ooms > ooms)
            {
                note(Level::Severe, Reason::OutOfMemory);
            }
            note(
                level_by_room(bound.size_bytes, bound.left_bytes),
                Reason::LittleRoom,
            );
        }
        let is_reclaimed = |bound: &&Bound| self.is_reclaimed(bound);
        let by_stalls = |shares: Option<_>, bounds: &[&Bound]| {
            let scarce = |bound: &&Bound| bound.page_cache_bytes < bound.size_bytes / MUCH_CACHE;
            shares.map_or(Level::None, |shares| {
                level_by_stalls(shares, bounds.iter().any(scarce))
            })
        };
        let reclaimed: Vec<&Bound> = reading.bounds().filter(is_reclaimed).collect();
        note(by_stalls(own, &reclaimed), Reason::Stalls);
        // The system's are ours as well if it is the system that has no memory, or
        // if we have met a limit. Otherwise a neighbour has met one.
        let is_ours = |bound: &&Bound| bound.group.is_none() || reading.own.is_none();
        if reclaimed.iter().any(is_ours) {
            note(by_stalls(system, &reclaimed), Reason::Stalls);
        }
        if reading.own.is_none() && reading.system.is_none() {
            let shares = self.shares_by_hits(at, reading);
            note(by_stalls(shares, &reclaimed), Reason::LimitHits);
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
            let looks = bound.left_bytes as f64 / taken as f64;
            Duration::try_from_secs_f64(elapsed.as_secs_f64() * looks).ok()
        });
        times.min()
    }

    fn before(&self, bound: &Bound) -> Option<&Bound> {
        let (_, previous) = self.previous.as_ref()?;
        previous.bounds().find(|before| before.group == bound.group)
    }

    /// Whether something met the bound since the previous look; without one,
    /// or where the kernel does not count, whether it may have.
    fn is_reclaimed(&self, bound: &Bound) -> bool {
        match self.before(bound) {
            Some(before) if bound.events.hits > before.events.hits => true,
            Some(_) if bound.group.is_none() || bound.events.hits > 0 => false,
            _ if bound.group.is_some() => is_full(bound.size_bytes, bound.unused_bytes),
            _ => bound.left_bytes < bound.size_bytes / TIGHT,
        }
    }

    /// The shares of the time that were stalled: own and system.
    fn shares(&self, at: Instant, reading: &Reading) -> [Option<(f64, f64)>; 2] {
        let mut shares = [None, None];
        for (index, now) in [reading.own, reading.system].into_iter().enumerate() {
            let Some(now) = now else { continue };
            let then = self.stalls.iter().find_map(|&(then, stalls)| {
                let elapsed = at.duration_since(then);
                stalls[index]
                    .filter(|_| elapsed >= SHORTEST)
                    .map(|stalls| (elapsed, stalls))
            });
            shares[index] = Some(match then {
                Some((elapsed, then)) => {
                    let time = elapsed.min(NOTICED_WITHIN).as_secs_f64();
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

    /// The same guessed from how often limits were met.
    fn shares_by_hits(&self, at: Instant, reading: &Reading) -> Option<(f64, f64)> {
        let (then, _) = self.previous.as_ref()?;
        let elapsed = at.duration_since(*then).as_secs_f64();
        let hits = reading.bounds().filter_map(|bound| {
            let before = self.before(bound)?.events.hits;
            Some(bound.events.hits.saturating_sub(before))
        });
        let stalled = HIT.as_secs_f64() * hits.max()? as f64;
        // Whether all tasks stalled, it does not tell.
        Some((
            (stalled / elapsed.max(SHORTEST.as_secs_f64())).min(1.0),
            0.0,
        ))
    }
}

/// Whether a cgroup may have been reclaimed from.
pub(super) fn is_full(size_bytes: usize, unused_bytes: usize) -> bool {
    unused_bytes < size_bytes / FULL
}

pub(super) fn level_by_room(size_bytes: usize, left_bytes: usize) -> Level {
    let is_below = |(part, most): (usize, usize)| left_bytes < (size_bytes / part).min(most);
    if is_below(SEVERE_ROOM) {
        Level::Severe
    } else if is_below(SOME_ROOM) {
        Level::Some
    } else {
        Level::None
    }
}

fn level_by_stalls((some, full): (f64, f64), cache_is_scarce: bool) -> Level {
    let severe = if cache_is_scarce {
        SEVERE_STALL
    } else {
        SEVERE_STALL_WITH_CACHE
    };
    if some >= severe.0 || full >= severe.1 {
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
