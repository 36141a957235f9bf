//! The word that says whether an object is volatile. Marking and unmarking
//! within the offer delay change this word and nothing else.

use super::priority::{Priority, Timestamp};
use super::sync::{AtomicU64, Ordering};

/// Says what unmarking has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unmarked {
    /// Nothing: no part was volatile.
    WasNonvolatile,
    /// It is nonvolatile, and the kernel was never offered it.
    Intact,
    /// Nothing: parts are offered, or have no mark, and only the engine can tell their
    /// state.
    NeedsEngine,
}

/// The state of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// In use.
    Nonvolatile,
    /// Volatile, and the kernel does not know: unmarking changes the word only.
    Marked,
    /// Claimed by the ENGINE lock holder. Only other threads see this state.
    Busy,
    /// Volatile, and the kernel may purge pages, or has: unmarking asks the engine.
    Offered,
}

/// State, priority and timestamp of the last mark, in one atomic word.
#[derive(Debug)]
pub(crate) struct Word(AtomicU64);

/// A value that was read from a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading(u64);

const STATE_BITS: u32 = 2;
const PRIORITY_BITS: u32 = 2;
const TIMESTAMP_SHIFT: u32 = STATE_BITS + PRIORITY_BITS;

impl Reading {
    fn new(state: State, priority: Priority, timestamp: Timestamp) -> Self {
        let state = match state {
            State::Nonvolatile => 0,
            State::Marked => 1,
            State::Busy => 2,
            State::Offered => 3,
        };
        let priority = u64::from(priority.as_u8()) << STATE_BITS;
        Self(timestamp.as_nanos() << TIMESTAMP_SHIFT | priority | state)
    }

    pub(crate) fn state(self) -> State {
        match self.0 & 3 {
            0 => State::Nonvolatile,
            1 => State::Marked,
            2 => State::Busy,
            _ => State::Offered,
        }
    }

    pub(crate) fn priority(self) -> Priority {
        Priority::from_low_bits(self.0 >> STATE_BITS)
    }

    pub(crate) fn timestamp(self) -> Timestamp {
        Timestamp::from_nanos(self.0 >> TIMESTAMP_SHIFT)
    }

    fn with(self, state: State) -> Self {
        Self::new(state, self.priority(), self.timestamp())
    }
}

impl Word {
    pub(crate) fn nonvolatile() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn read(&self) -> Reading {
        Reading(self.0.load(Ordering::SeqCst))
    }

    /// Marks the object, or renews its mark. Sequentially consistent, as is the offer
    /// thread's reading of the words before it parks: one of the two sees the other.
    pub(crate) fn mark(&self, priority: Priority, timestamp: Timestamp) {
        let mut now = self.read();
        loop {
            let state = match now.state() {
                State::Nonvolatile => State::Marked,
                other => other,
            };
            let next = Reading::new(state, priority, timestamp);
            match self.exchange(now, next) {
                Ok(()) => return,
                Err(other) => now = other,
            }
        }
    }

    /// Unmarks the object if the kernel has not been offered it.
    pub(crate) fn unmark(&self) -> Unmarked {
        let mut now = self.read();
        loop {
            match now.state() {
                State::Nonvolatile => return Unmarked::WasNonvolatile,
                State::Busy | State::Offered => return Unmarked::NeedsEngine,
                State::Marked => match self.exchange(now, now.with(State::Nonvolatile)) {
                    Ok(()) => return Unmarked::Intact,
                    Err(other) => now = other,
                },
            }
        }
    }

    /// Claims a marked object for the ENGINE lock holder; `false` if it was unmarked
    /// concurrently.
    pub(crate) fn try_claim(&self) -> bool {
        let mut now = self.read();
        while now.state() == State::Marked {
            match self.exchange(now, now.with(State::Busy)) {
                Ok(()) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Publishes the new state of an object that is claimed or offered. The caller holds
    /// ENGINE.
    pub(crate) fn publish(&self, state: State) {
        let mut now = self.read();
        while let Err(other) = self.exchange(now, now.with(state)) {
            now = other;
        }
    }

    fn exchange(&self, now: Reading, next: Reading) -> Result<(), Reading> {
        self.0
            .compare_exchange_weak(now.0, next.0, Ordering::SeqCst, Ordering::SeqCst)
            .map(drop)
            .map_err(Reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_keeps_state_priority_and_timestamp_apart() {
        for state in [
            State::Nonvolatile,
            State::Marked,
            State::Busy,
            State::Offered,
        ] {
            for priority in Priority::ALL {
                let timestamp = Timestamp::from_nanos(u64::MAX >> TIMESTAMP_SHIFT);
                let reading = Reading::new(state, priority, timestamp);
                assert_eq!(
                    (reading.state(), reading.priority(), reading.timestamp()),
                    (state, priority, timestamp)
                );
            }
        }
    }

    #[test]
    fn only_marked_word_is_claimed_or_unmarked_without_the_engine() {
        let word = Word::nonvolatile();
        assert_eq!(word.unmark(), Unmarked::WasNonvolatile);
        assert!(!word.try_claim());
        word.mark(Priority::High, Timestamp::from_nanos(5));
        assert_eq!(word.read().state(), State::Marked);
        assert!(word.try_claim() && !word.try_claim());
        assert_eq!(word.unmark(), Unmarked::NeedsEngine, "it is claimed");
        // Marking again renews the mark and nothing else.
        word.mark(Priority::Low, Timestamp::from_nanos(6));
        let reading = word.read();
        assert_eq!(reading.state(), State::Busy);
        assert_eq!(
            (reading.priority(), reading.timestamp()),
            (Priority::Low, Timestamp::from_nanos(6))
        );
        word.publish(State::Offered);
        assert_eq!(word.unmark(), Unmarked::NeedsEngine);
        word.publish(State::Nonvolatile);
        word.mark(Priority::Low, Timestamp::from_nanos(7));
        assert_eq!(word.unmark(), Unmarked::Intact);
    }
}
