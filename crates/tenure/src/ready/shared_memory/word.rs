//! The word of a shared object: which processes have pinned it, and whether its contents
//! are there. Every attached process changes it, one compare-and-swap at a time.

use super::sync::{AtomicU64, Ordering};

/// How many processes can be attached at a time.
pub(crate) const MAX_PROCESSES: usize = 48;

/// The priority that goes last.
pub(crate) const MAX_PRIORITY: u64 = 3;

/// The state of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// There is no object. (The state of fresh memory.)
    Free,
    /// The contents are there.
    Live,
    /// The contents were purged.
    Purged,
    /// One process makes the object, purges it, or frees it; others leave it alone.
    Claimed,
}

/// A value that was read from a word. Any bits may have been written by another program, so
/// that each value has a meaning.
///
/// | bits | meaning |
/// | --- | --- |
/// | 0–47 | the processes that have pins; of a claimed object the one that has claimed it |
/// | 48–49 | priority |
/// | 50–51 | state |
/// | 52 | doomed: it gets no further pin, and is freed once it has none |
/// | 53 | the side of an entry of a cache that the value is on |
/// | 54 | of a claimed entry of a cache: its value is outdated, and must not be found |
///
/// A value of a cache has no pins. The process of a live one owns the other side: it writes
/// the key's next value there, which takes the place of this one by one change of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading(u64);

/// A set of processes, by their slots.
pub(crate) type Processes = u64;

const PROCESSES: u64 = (1 << MAX_PROCESSES) - 1;
const PRIORITY_SHIFT: u32 = 48;
const STATE_SHIFT: u32 = 50;
const DOOMED: u64 = 1 << 52;
const SIDE: u64 = 1 << 53;
const OUTDATED: u64 = 1 << 54;

impl Reading {
    pub(crate) fn state(self) -> State {
        match self.0 >> STATE_SHIFT & 3 {
            0 => State::Free,
            1 => State::Live,
            2 => State::Purged,
            _ => State::Claimed,
        }
    }

    /// Returns the priority, 0 to 3.
    pub(crate) fn priority(self) -> u64 {
        self.0 >> PRIORITY_SHIFT & 3
    }

    pub(crate) fn processes(self) -> Processes {
        self.0 & PROCESSES
    }

    pub(crate) fn is_doomed(self) -> bool {
        self.0 & DOOMED != 0
    }

    /// Returns the side of a cache's value: 0 or 1.
    pub(crate) fn side(self) -> usize {
        usize::from(self.0 & SIDE != 0)
    }

    /// Returns the word of the same value without the process that replaces it.
    pub(crate) fn unowned(self) -> Self {
        Self(self.0 & !PROCESSES)
    }

    /// Whether a process may claim the object: nobody has a pin, or a claim.
    pub(crate) fn is_claimable(self) -> bool {
        self.processes() == 0 && self.state() != State::Claimed
    }

    fn is_claimed_by(self, process: usize) -> bool {
        self.state() == State::Claimed && self.processes() == 1 << process
    }

    /// Returns the word of the same object, doomed.
    pub(crate) fn doomed(self) -> Self {
        Self(self.0 | DOOMED)
    }

    /// Returns the word of a purged object.
    pub(crate) fn purged(priority: u64) -> Self {
        Self::of(State::Purged, priority, 0)
    }

    /// Returns the word of a live object without pins.
    pub(crate) fn live(priority: u64) -> Self {
        Self::of(State::Live, priority, 0)
    }

    /// Returns the word of a cache's value that is on this side.
    pub(crate) fn on_side(self, side: usize) -> Self {
        Self(if side == 0 {
            self.0 & !SIDE
        } else {
            self.0 | SIDE
        })
    }

    fn of(state: State, priority: u64, processes: Processes) -> Self {
        Self((state as u64) << STATE_SHIFT | (priority & 3) << PRIORITY_SHIFT | processes)
    }
}

/// A word in shared memory; that of fresh memory is free.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Word(AtomicU64);

impl Word {
    pub(crate) fn read(&self) -> Reading {
        Reading(self.0.load(Ordering::Acquire))
    }

    /// Changes the word as long as `next` has a value for it. Returns the value before and
    /// after, or the one that has no next.
    fn update(&self, next: impl Fn(Reading) -> Option<Reading>) -> Result<Reading, Reading> {
        let mut now = self.read();
        loop {
            let changed = next(now).ok_or(now)?;
            // Ordered with the fences of copies that no pin protects.
            let (success, failure) = (Ordering::SeqCst, Ordering::Acquire);
            match self
                .0
                .compare_exchange_weak(now.0, changed.0, success, failure)
            {
                Ok(_) => return Ok(changed),
                Err(other) => now = Reading(other),
            }
        }
    }

    /// Pins the object for a process, if its contents are there. The process counts the pins
    /// of its threads itself.
    pub(crate) fn pin(&self, process: usize) -> Result<(), Reading> {
        let next = |now: Reading| {
            let may_pin = now.state() == State::Live && !now.is_doomed();
            may_pin.then_some(Reading(now.0 | 1 << process))
        };
        self.update(next).map(drop)
    }

    /// Ends the pins of these processes, and returns what is left.
    pub(crate) fn unpin(&self, processes: Processes) -> Reading {
        let next = |now: Reading| {
            let is_pinned = now.state() != State::Claimed && now.processes() & processes != 0;
            is_pinned.then_some(Reading(now.0 & !processes))
        };
        self.update(next).unwrap_or_else(|now| now)
    }

    /// Claims the object, if its word is still the one that was read, and nobody has a pin. An
    /// object that is new, or doomed, is freed if the process dies before it publishes.
    pub(crate) fn claim(&self, process: usize, seen: Reading) -> bool {
        let next = |now: Reading| {
            let may_claim = now == seen && now.is_claimable();
            may_claim.then(|| {
                let is_doomed = now.is_doomed() || now.state() == State::Free;
                let doomed = if is_doomed { DOOMED } else { 0 };
                let claimed = Reading::of(State::Claimed, now.priority(), 1 << process);
                Reading(claimed.0 | doomed | now.0 & SIDE)
            })
        };
        self.update(next).is_ok()
    }

    /// Claims an object whose claim only dead processes have.
    pub(crate) fn take_over(&self, process: usize, dead: Processes) -> bool {
        let next = |now: Reading| {
            let is_left = now.state() == State::Claimed && now.processes() & !dead == 0;
            is_left.then_some(Reading(now.0 & !PROCESSES | 1 << process))
        };
        self.update(next).is_ok()
    }

    /// Ends a claim, with a pin of the process or without. `false` if the process has no claim
    /// (any more): then the object belongs to another process; and if a live one is outdated.
    pub(crate) fn publish(
        &self,
        process: usize,
        state: State,
        priority: u64,
        is_pinned: bool,
    ) -> bool {
        let pins = if is_pinned { 1 << process } else { 0 };
        let next = |now: Reading| {
            let may_be_found = state != State::Live || now.0 & OUTDATED == 0;
            let may_publish = now.is_claimed_by(process) && may_be_found;
            may_publish.then_some(Reading::of(state, priority, pins))
        };
        self.update(next).is_ok()
    }

    /// Has the value of a claimed entry not be published, whoever has claimed it.
    pub(crate) fn outdate(&self) {
        let next = |now: Reading| {
            let is_claimed = now.state() == State::Claimed && now.0 & OUTDATED == 0;
            is_claimed.then_some(Reading(now.0 | OUTDATED))
        };
        let _ = self.update(next);
    }

    /// Whether the process has claimed the object.
    pub(crate) fn has_claim(&self, process: usize) -> bool {
        self.read().is_claimed_by(process)
    }

    /// Ends a claim with another word. `false` as for [`publish`](Self::publish).
    pub(crate) fn restore(&self, process: usize, word: Reading) -> bool {
        let next = |now: Reading| now.is_claimed_by(process).then_some(word);
        self.update(next).is_ok()
    }

    /// Begins to replace a value whose word is still the one that was read: the other side is
    /// the process's until it [ends](Self::unpin) that. `false` if another process has it.
    pub(crate) fn begin_replacing(&self, process: usize, seen: Reading) -> bool {
        let next = |now: Reading| {
            let is_free = now == seen && now.state() == State::Live && now.is_claimable();
            let may_begin = is_free && !now.is_doomed();
            may_begin.then_some(Reading(now.0 | 1 << process))
        };
        self.update(next).is_ok()
    }

    /// Has the value on the other side replace this one. `false` if that was doomed meanwhile,
    /// or the process does not own the other side (any more).
    pub(crate) fn switch(&self, process: usize, priority: u64) -> bool {
        let next = |now: Reading| {
            let owns = now.state() == State::Live && now.processes() == 1 << process;
            let switched = Reading::of(State::Live, priority, 1 << process).0;
            (owns && !now.is_doomed()).then_some(Reading(switched | !now.0 & SIDE))
        };
        self.update(next).is_ok()
    }

    /// Takes over the other side of a value that only dead processes own.
    pub(crate) fn take_over_replacing(&self, process: usize, dead: Processes) -> bool {
        let next = |now: Reading| {
            let is_owned = now.state() == State::Live && now.processes() != 0;
            let is_left = is_owned && now.processes() & !dead == 0;
            is_left.then_some(Reading(now.unowned().0 | 1 << process))
        };
        self.update(next).is_ok()
    }

    /// Dooms a value, if it is still the one that was seen, whoever replaces it.
    pub(crate) fn doom_value(&self, seen: Reading) -> bool {
        let next = |now: Reading| {
            let is_it = now.unowned() == seen.unowned() && !now.is_doomed();
            (is_it && now.state() == State::Live).then_some(now.doomed())
        };
        self.update(next).is_ok()
    }

    /// Dooms the object: it gets no further pin. Returns the word, which may be claimed now if
    /// nobody has a pin.
    pub(crate) fn doom(&self) -> Reading {
        let next = |now: Reading| {
            let is_object = matches!(now.state(), State::Live | State::Purged);
            is_object.then_some(Reading(now.0 | DOOMED))
        };
        self.update(next).unwrap_or_else(|now| now)
    }
}

#[cfg(test)]
#[path = "word_tests.rs"]
mod tests;
