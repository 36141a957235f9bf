//! Deferring the offers of arenas that ask for it, while enough memory is left.
//!
//! An offer and its revocation cost a hit about a microsecond, more than some caches save by
//! it. And the kernel reclaims what it was offered in the order of the first offers, however
//! often it was used since: in a cgroup that is full of page cache, which is reclaimed all the
//! time, the pages that are used most do not stay. So what decides is the memory that is left,
//! not how much the kernel reclaims.

use std::time::Duration;

use super::delay::offer_delay;
use crate::verbs::volatile::arenas::{ArenaMemory, LiveArenas, Reserve};
use crate::verbs::volatile::priority::Timestamp;

/// How many times the offer delay a deferred offer waits.
const FACTOR: u32 = 100;

/// Deferred offers are looked at so many times while they wait.
const SCANS_PER_DELAY: u32 = 16;

/// Whether offers are deferred, and when the deferred ones were looked at.
#[derive(Debug)]
pub(super) struct Deferral {
    reserve: Option<Reserve>,
    /// The last look at what is deferred, unless the next one is due.
    scanned: Option<Timestamp>,
}

impl Deferral {
    pub(super) const fn new() -> Self {
        Self {
            reserve: None,
            scanned: None,
        }
    }

    /// Looks whether offers are deferred now, if an arena asks for it.
    pub(super) fn update(&mut self, now: Timestamp, live: &LiveArenas) {
        let is_asked_for = live.iter().any(|memory| memory.defers_offers());
        self.reserve = match is_asked_for {
            true => Reserve::read(self.reserve),
            false => None,
        };
        // By the delay of now: the program may have shortened it.
        let is_due = |scanned| now.since(scanned) >= deferred_delay() / SCANS_PER_DELAY;
        if self.reserve.is_none() || self.scanned.is_some_and(is_due) {
            self.scanned = None;
        }
    }

    /// Returns a wait no longer than until the limits are read again, if offers are deferred.
    pub(super) fn shorten(&self, wait: Duration) -> Duration {
        let interval = self.reserve.map(Reserve::interval);
        interval.map_or(wait, |interval| wait.min(interval))
    }

    /// Returns how long what lies in an arena is volatile before it is offered, where that is
    /// `delay` unless it is deferred; `None` if the arena need not be looked at now.
    pub(super) fn delay_of(&self, memory: &ArenaMemory, delay: Duration) -> Option<Duration> {
        match self.is_deferring() && memory.defers_offers() {
            true if self.scanned.is_some() => None,
            true => Some(deferred_delay()),
            false => Some(delay),
        }
    }

    /// Records that all arenas were looked at.
    pub(super) fn end_scan(&mut self, now: Timestamp) {
        if self.is_deferring() && self.scanned.is_none() {
            self.scanned = Some(now);
        }
    }

    fn is_deferring(&self) -> bool {
        self.reserve.is_some()
    }
}

fn deferred_delay() -> Duration {
    offer_delay().saturating_mul(FACTOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::volatile::VolatileArena;

    const MIB: usize = 1 << 20;

    #[test]
    fn deferral_multiplies_the_delay_of_arenas_that_ask_for_it() {
        let plain = VolatileArena::new(MIB).unwrap();
        let deferring = VolatileArena::new(MIB).unwrap();
        deferring.defer_offers();
        let live = LiveArenas::now();
        let now = Timestamp::now();
        let second = Duration::from_secs(1);
        let delays = |deferral: &Deferral| {
            [&plain, &deferring].map(|arena| {
                let mut live = live.iter();
                let memory = live.find(|memory| memory.range == arena.range());
                deferral.delay_of(memory.unwrap(), second)
            })
        };
        let mut deferral = Deferral::new();
        assert_eq!(delays(&deferral), [Some(second); 2]);
        assert_eq!(deferral.shorten(second), second);
        deferral.reserve = Reserve::unlimited();
        assert_eq!(delays(&deferral), [Some(second), Some(deferred_delay())]);
        // Others may take the memory meanwhile.
        assert!(deferral.shorten(second) < second);
        deferral.end_scan(now);
        assert_eq!(delays(&deferral), [Some(second), None]);
        // As soon as nothing is deferred any more.
        deferral.reserve = None;
        assert_eq!(delays(&deferral), [Some(second); 2]);
    }
}
