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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading(u64);

/// A set of processes, by their slots.
pub(crate) type Processes = u64;

const PROCESSES: u64 = (1 << MAX_PROCESSES) - 1;
const PRIORITY_SHIFT: u32 = 48;
const STATE_SHIFT: u32 = 50;
const DOOMED: u64 = 1 << 52;

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

    /// Whether a process may claim the object: nobody has a pin, or a claim.
    pub(crate) fn is_claimable(self) -> bool {
        self.processes() == 0 && self.state() != State::Claimed
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
                Reading(Reading::of(State::Claimed, now.priority(), 1 << process).0 | doomed)
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
    /// (any more): then the object belongs to another process.
    pub(crate) fn publish(
        &self,
        process: usize,
        state: State,
        priority: u64,
        is_pinned: bool,
    ) -> bool {
        let pins = if is_pinned { 1 << process } else { 0 };
        self.restore(process, Reading::of(state, priority, pins))
    }

    /// Ends a claim with another word. `false` as for [`publish`](Self::publish).
    pub(crate) fn restore(&self, process: usize, word: Reading) -> bool {
        let next = |now: Reading| {
            let has_claim = now.state() == State::Claimed && now.processes() == 1 << process;
            has_claim.then_some(word)
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
mod tests {
    use super::*;

    #[test]
    fn pinned_object_is_not_claimed() {
        let word = Word::default();
        assert!(word.claim(3, word.read()) && word.publish(3, State::Live, 2, true));
        assert!(!word.claim(4, word.read()));
        assert_eq!(word.pin(4), Ok(()));
        assert_eq!(word.unpin(1 << 3).processes(), 1 << 4);
        assert!(!word.unpin(1 << 4).is_doomed() && word.read().priority() == 2);
        assert!(word.claim(5, word.read()));
        assert_eq!(word.pin(4), Err(word.read()));
    }

    #[test]
    fn claim_of_dead_process_is_taken_over_and_its_publication_refused() {
        let word = Word::default();
        assert!(word.claim(1, word.read()));
        assert!(!word.take_over(2, 1 << 3), "process 1 is alive");
        assert!(word.take_over(2, 1 << 1) && word.read().is_doomed());
        assert!(!word.publish(1, State::Live, 0, true));
        assert!(word.publish(2, State::Free, 0, false));
    }

    #[test]
    fn doomed_object_gets_no_further_pin() {
        let word = Word::default();
        assert!(word.claim(0, word.read()) && word.publish(0, State::Live, 0, true));
        assert!(word.doom().is_doomed() && word.pin(1).is_err());
        assert!(word.unpin(1).is_claimable());
    }

    #[test]
    fn doomed_object_whose_claim_ends_without_effect_stays_doomed() {
        let word = Word::default();
        assert!(word.claim(0, word.read()) && word.publish(0, State::Live, 1, false));
        let seen = word.doom();
        assert!(word.claim(2, seen) && word.restore(2, seen.doomed()));
        assert!(word.pin(1).is_err() && word.read() == seen);
        assert!(!word.restore(2, seen), "nobody has a claim");
    }

    #[test]
    fn every_value_has_a_meaning() {
        for bits in [u64::MAX, 1 << 63, 3 << STATE_SHIFT, PROCESSES] {
            let word = Word(AtomicU64::new(bits));
            let _ = (word.read().state(), word.read().priority());
            let _ = (word.pin(0).is_ok(), word.doom(), word.unpin(1));
            let _ = (word.claim(0, word.read()), word.take_over(0, PROCESSES));
        }
    }
}
