//! The word that says whether an object is volatile. Marking and unmarking
//! within the hand-over delay is a change of this word, and nothing else.

use super::sync::{AtomicU64, Ordering};
use super::{Priority, Stamp, Unmarked};

/// What a [`Word`] can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// In use.
    Nonvolatile,
    /// Volatile, and the kernel does not know: unmarking is a change of the word.
    Marked,
    /// On its way to the kernel. Seen only by who does not hold the engine.
    Busy,
    /// Volatile, and the kernel may take pages, or has: unmarking has to look.
    Offered,
}

/// State, priority and time of the last marking, in one atomic word.
#[derive(Debug)]
pub(super) struct Word(AtomicU64);

/// What was read from a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading(u64);

const STATE_BITS: u32 = 2;
const PRIORITY_BITS: u32 = 2;
const STAMP_SHIFT: u32 = STATE_BITS + PRIORITY_BITS;

impl Reading {
    fn new(state: State, priority: Priority, stamp: Stamp) -> Self {
        let state = match state {
            State::Nonvolatile => 0,
            State::Marked => 1,
            State::Busy => 2,
            State::Offered => 3,
        };
        let priority = u64::from(priority.as_u8()) << STATE_BITS;
        Self(stamp.as_nanos() << STAMP_SHIFT | priority | state)
    }

    pub(super) fn state(self) -> State {
        match self.0 & 3 {
            0 => State::Nonvolatile,
            1 => State::Marked,
            2 => State::Busy,
            _ => State::Offered,
        }
    }

    pub(super) fn priority(self) -> Priority {
        Priority::from_low_bits(self.0 >> STATE_BITS)
    }

    pub(super) fn stamp(self) -> Stamp {
        Stamp::from_nanos(self.0 >> STAMP_SHIFT)
    }

    fn with(self, state: State) -> Self {
        Self::new(state, self.priority(), self.stamp())
    }
}

impl Word {
    pub(super) fn nonvolatile() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(super) fn read(&self) -> Reading {
        Reading(self.0.load(Ordering::SeqCst))
    }

    /// Marks the object, or renews its mark. Sequentially consistent, as is the
    /// keeper's look at the words before it sleeps: one of the two sees the other.
    pub(super) fn mark(&self, priority: Priority, stamp: Stamp) {
        let mut now = self.read();
        loop {
            let state = match now.state() {
                State::Nonvolatile => State::Marked,
                other => other,
            };
            let next = Reading::new(state, priority, stamp);
            match self.swap(now, next) {
                Ok(()) => return,
                Err(other) => now = other,
            }
        }
    }

    /// Unmarks the object if the kernel does not know of it.
    pub(super) fn unmark(&self) -> Unmarked {
        let mut now = self.read();
        loop {
            match now.state() {
                State::Nonvolatile => return Unmarked::WasNot,
                State::Busy | State::Offered => return Unmarked::Ask,
                State::Marked => match self.swap(now, now.with(State::Nonvolatile)) {
                    Ok(()) => return Unmarked::Intact,
                    Err(other) => now = other,
                },
            }
        }
    }

    /// Takes a marked object in hand, for the holder of the engine to offer;
    /// `false` if it has been unmarked meanwhile.
    pub(super) fn take_in_hand(&self) -> bool {
        let mut now = self.read();
        while now.state() == State::Marked {
            match self.swap(now, now.with(State::Busy)) {
                Ok(()) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Says what has become of an object that the holder of the engine has in
    /// hand, or that is offered.
    pub(super) fn settle(&self, state: State) {
        let mut now = self.read();
        while let Err(other) = self.swap(now, now.with(state)) {
            now = other;
        }
    }

    fn swap(&self, now: Reading, next: Reading) -> Result<(), Reading> {
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
    fn a_word_keeps_its_three_parts_apart() {
        for state in [
            State::Nonvolatile,
            State::Marked,
            State::Busy,
            State::Offered,
        ] {
            for priority in Priority::ALL {
                let stamp = Stamp::from_nanos(u64::MAX >> STAMP_SHIFT);
                let reading = Reading::new(state, priority, stamp);
                assert_eq!(
                    (reading.state(), reading.priority(), reading.stamp()),
                    (state, priority, stamp)
                );
            }
        }
    }

    #[test]
    fn only_a_marked_object_is_taken_in_hand_or_unmarked_alone() {
        let word = Word::nonvolatile();
        assert_eq!(word.unmark(), Unmarked::WasNot);
        assert!(!word.take_in_hand());
        word.mark(Priority::High, Stamp::from_nanos(5));
        assert_eq!(word.read().state(), State::Marked);
        assert!(word.take_in_hand() && !word.take_in_hand());
        assert_eq!(word.unmark(), Unmarked::Ask, "the engine has it");
        // To mark it again renews the mark, and no more.
        word.mark(Priority::Low, Stamp::from_nanos(6));
        let reading = word.read();
        assert_eq!(reading.state(), State::Busy);
        assert_eq!(
            (reading.priority(), reading.stamp()),
            (Priority::Low, Stamp::from_nanos(6))
        );
        word.settle(State::Offered);
        assert_eq!(word.unmark(), Unmarked::Ask);
        word.settle(State::Nonvolatile);
        word.mark(Priority::Low, Stamp::from_nanos(7));
        assert_eq!(word.unmark(), Unmarked::Intact);
    }
}
