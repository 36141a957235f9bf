//! The word that says whether an object is volatile. Marking and unmarking
//! within the offer delay change this word and nothing else.

use std::time::Duration;

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
    /// Claimed by one thread: the ENGINE lock holder, or the owner, which is revoking the
    /// offer.
    Busy,
    /// Volatile, and the kernel may purge pages, or has: unmarking asks the engine.
    Offered,
    /// Volatile, and the kernel has refused the offer of a part.
    Refused,
}

/// Says what subtracting a pin has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unpinned {
    /// Other pins are left.
    StillPinned,
    /// It was the last pin, and the object is volatile: another thread may have freed it.
    Volatile,
    /// It was the last pin of a detached object, which the caller frees.
    Detached,
}

/// The state, priority, and timestamp of the last mark, in one atomic word.
#[derive(Debug)]
pub(crate) struct Word(AtomicU64);

/// A value that was read from a word.
///
/// | bits | meaning |
/// | --- | --- |
/// | 0–1 | state, that before the claim of a claimed object |
/// | 2 | busy: claimed |
/// | 3–4 | priority |
/// | 5–6 | backoff: how often the offer delay is doubled |
/// | 7 | populated: each page had contents when the object was offered |
/// | 8 | wanted: the owner waits for a claimed object |
/// | 9 | purged: the engine has purged all that there was |
/// | 10–63 | timestamp in units of 16 ns, enough for 9 years; 0 from the last unpin to the next scan |
///
/// While the object is nonvolatile, bits 10–63 count its pins (an owner that has unmarked
/// it is one), bit 7 says that its contents are purged and it gets no further pin, and bit
/// 9 that the last pin frees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading(u64);

const PRIORITY_SHIFT: u32 = 3;
const BACKOFF_SHIFT: u32 = 5;
const POPULATED: u64 = 1 << 7;
const WANTED: u64 = 1 << 8;
const PURGED: u64 = 1 << 9;
/// These two are of a nonvolatile object.
const STALE: u64 = POPULATED;
const DETACHED: u64 = PURGED;
const TIMESTAMP_SHIFT: u32 = 10;
/// One pin of a nonvolatile object.
const PIN: u64 = 1 << TIMESTAMP_SHIFT;
const NANOS_PER_UNIT_SHIFT: u32 = 4;

/// How often the offer delay doubles at most.
const MAX_DOUBLINGS: u8 = 3;

const STATE_MASK: u64 = 3;
const BUSY: u64 = 1 << 2;
const PRIORITY_MASK: u64 = 3 << PRIORITY_SHIFT;
const MARK_MASK: u64 = PRIORITY_MASK | !0 << TIMESTAMP_SHIFT;

fn priority_bits(priority: Priority) -> u64 {
    u64::from(priority.as_u8()) << PRIORITY_SHIFT
}

fn timestamp_bits(timestamp: Timestamp) -> u64 {
    timestamp.as_nanos() >> NANOS_PER_UNIT_SHIFT << TIMESTAMP_SHIFT
}

impl Reading {
    fn mark_bits(priority: Priority, timestamp: Timestamp) -> u64 {
        priority_bits(priority) | timestamp_bits(timestamp)
    }

    pub(crate) fn state(self) -> State {
        match self.0 & BUSY {
            0 => self.unclaimed_state(),
            _ => State::Busy,
        }
    }

    /// Returns the state, that before the claim of a claimed object.
    pub(crate) fn unclaimed_state(self) -> State {
        match self.0 & STATE_MASK {
            0 => State::Nonvolatile,
            1 => State::Marked,
            2 => State::Offered,
            _ => State::Refused,
        }
    }

    pub(crate) fn priority(self) -> Priority {
        Priority::from_low_bits(self.0 >> PRIORITY_SHIFT)
    }

    pub(crate) fn timestamp(self) -> Timestamp {
        Timestamp::from_nanos(self.0 >> TIMESTAMP_SHIFT << NANOS_PER_UNIT_SHIFT)
    }

    /// Returns whether each page had contents when the object was offered, so that
    /// MADV_POPULATE_WRITE on all of it allocates none.
    pub(crate) fn is_populated(self) -> bool {
        self.0 & POPULATED != 0
    }

    /// Returns whether the engine has purged all that there was of the object.
    pub(crate) fn is_purged(self) -> bool {
        self.0 & PURGED != 0
    }

    /// Returns how long this object is volatile before it is offered.
    ///
    /// The delay doubles each time an object is unmarked, intact, soon after it was
    /// offered: the offer and its revocation have cost more than they were worth. Eight
    /// threads that refill buffers on two CPUs return to each every 110 ms; offered after
    /// 100 ms each time, they took 1.8 times as long as without tenure.
    pub(crate) fn offer_delay(self, delay: Duration) -> Duration {
        delay.saturating_mul(1 << self.doublings())
    }

    /// Returns whether the object is marked, and has been for at least `delay`, longer
    /// with backoff.
    pub(crate) fn is_due(self, now: Timestamp, delay: Duration) -> bool {
        self.state() == State::Marked
            && !self.is_unstamped()
            && now.since(self.timestamp()) >= self.offer_delay(delay)
    }

    /// Returns whether the object was unpinned after the last scan.
    fn is_unstamped(self) -> bool {
        self.state() == State::Marked && self.0 >> TIMESTAMP_SHIFT == 0
    }

    /// Gives the object a timestamp, if it has none.
    fn stamped(self, timestamp: Timestamp) -> Self {
        match self.is_unstamped() {
            true => Self(self.0 | timestamp_bits(timestamp)),
            false => self,
        }
    }

    fn doublings(self) -> u8 {
        (self.0 >> BACKOFF_SHIFT & 3) as u8
    }

    fn with_doublings(self, doublings: u8) -> Self {
        Self(self.0 & !(3 << BACKOFF_SHIFT) | u64::from(doublings) << BACKOFF_SHIFT)
    }

    fn with(self, state: State) -> Self {
        let state = match state {
            State::Nonvolatile => 0,
            State::Marked => 1,
            State::Busy => return self.with_bit(BUSY, true),
            State::Offered => 2,
            State::Refused => 3,
        };
        Self(self.0 & !(STATE_MASK | BUSY) | state)
    }

    /// Returns the word of the object as nonvolatile with so many pins.
    fn pinned(self, pins: u64) -> Self {
        let rest = self.0 & (PIN - 1) & !(POPULATED | WANTED | DETACHED);
        Self(rest | pins << TIMESTAMP_SHIFT).with(State::Nonvolatile)
    }

    /// Returns how many pins a nonvolatile object has.
    fn pins(self) -> u64 {
        self.0 >> TIMESTAMP_SHIFT
    }

    fn is_detached(self) -> bool {
        self.0 & DETACHED != 0
    }

    fn with_bit(self, bit: u64, is_set: bool) -> Self {
        Self(if is_set { self.0 | bit } else { self.0 & !bit })
    }

    /// Adapts the backoff to the outcome of unmarking an offered object at `now`.
    fn after_revocation(self, now: Timestamp, delay: Duration, is_intact: bool) -> Self {
        let age = now.since(self.timestamp());
        // An older object would be offered even after the longest delay.
        let was_useless = is_intact && age < delay.saturating_mul(1 << MAX_DOUBLINGS);
        self.with_doublings(match was_useless {
            true => MAX_DOUBLINGS.min(self.doublings() + 1),
            false => 0,
        })
    }
}

impl Word {
    pub(crate) fn nonvolatile() -> Self {
        Self(AtomicU64::new(0))
    }

    #[inline]
    pub(crate) fn read(&self) -> Reading {
        Reading(self.0.load(Ordering::SeqCst))
    }

    /// Marks the object, or renews its mark; returns whether it was nonvolatile.
    /// Sequentially consistent, as is the offer thread's reading of the words before it
    /// parks: one of the two sees the other.
    pub(crate) fn mark(&self, priority: Priority, timestamp: Timestamp) -> bool {
        let mark = Reading::mark_bits(priority, timestamp);
        let before = self.update(|now| {
            let (state, now) = match now.state() {
                State::Nonvolatile => (State::Marked, now.pinned(0)),
                other => (other, now),
            };
            Some(Reading(now.0 & !MARK_MASK | mark).with(state))
        });
        before.is_some_and(|before| before.state() == State::Nonvolatile)
    }

    /// Unmarks the object if the kernel has not been offered it.
    pub(crate) fn unmark(&self) -> Unmarked {
        let unless_offered = |now: Reading| (now.state() == State::Marked).then(|| now.pinned(1));
        match self.update(unless_offered) {
            Some(_) => Unmarked::Intact,
            // Only the owner ends that state.
            None if self.read().state() == State::Nonvolatile => Unmarked::WasNonvolatile,
            None => Unmarked::NeedsEngine,
        }
    }

    /// Gives a nonvolatile object its priority and one pin, which the caller has. No other
    /// thread uses it.
    pub(crate) fn set_pinned(&self, priority: Priority) {
        self.update(|now| {
            Some(Reading(
                now.pinned(1).0 & !PRIORITY_MASK | priority_bits(priority),
            ))
        });
    }

    /// Adds a pin, unless the kernel has been offered the object, or it is claimed, or its
    /// last revocation has found it purged. Returns the state before.
    #[inline]
    pub(crate) fn try_pin(&self) -> Option<State> {
        let before = self.update(|now| match now.state() {
            State::Marked => Some(now.pinned(1)),
            State::Nonvolatile if now.0 & STALE == 0 => Some(Reading(now.0 + PIN)),
            _ => None,
        });
        before.map(Reading::state)
    }

    /// Subtracts a pin of the caller's. The last one marks the object volatile with the
    /// priority that it has, unless it is detached. The next scan gives it its timestamp: what
    /// is pinned again before that needs none, and the clock takes longer than the rest of a
    /// hit's pin.
    #[inline]
    pub(crate) fn unpin(&self) -> Unpinned {
        let before = self.update(|now| {
            Some(match (now.pins(), now.is_detached()) {
                (2.., _) => Reading(now.0 - PIN),
                (_, true) => now.pinned(0),
                (_, false) => now.pinned(0).with(State::Marked),
            })
        });
        match before.map(|before| (before.pins(), before.is_detached())) {
            Some((2.., _)) => Unpinned::StillPinned,
            Some((_, true)) => Unpinned::Detached,
            _ => Unpinned::Volatile,
        }
    }

    /// Has the last pin free the object. Returns `false` if there is none.
    pub(crate) fn detach(&self) -> bool {
        let pinned = |now: Reading| now.state() == State::Nonvolatile && now.pins() > 0;
        self.update(|now| pinned(now).then(|| now.with_bit(DETACHED, true)))
            .is_some()
    }

    /// Claims a marked object for the ENGINE lock holder; `false` if it was unmarked
    /// concurrently.
    pub(crate) fn try_claim(&self) -> bool {
        self.try_claim_if(|now| now.state() == State::Marked)
            .is_some()
    }

    /// Claims a volatile object, offered or not, that no other thread has claimed.
    /// Returns its state before that.
    pub(crate) fn try_claim_volatile(&self) -> Option<State> {
        let is_free = |now: Reading| !matches!(now.state(), State::Nonvolatile | State::Busy);
        self.try_claim_if(is_free).map(Reading::state)
    }

    /// Claims an object for its owner if it is offered and each page had contents then.
    pub(crate) fn try_claim_populated(&self) -> bool {
        self.try_claim_if(|now| now.state() == State::Offered && now.is_populated())
            .is_some()
    }

    /// A claimed object has a timestamp.
    fn try_claim_if(&self, is_free: impl Fn(Reading) -> bool) -> Option<Reading> {
        self.update(|now| {
            let stamped = || now.stamped(Timestamp::coarse()).with(State::Busy);
            is_free(now).then(stamped)
        })
    }

    /// Gives a marked object a timestamp, if it has none. Returns the word.
    pub(crate) fn stamp(&self, timestamp: Timestamp) -> Reading {
        let stamp = |now: Reading| now.is_unstamped().then(|| now.stamped(timestamp));
        self.update(stamp);
        self.read()
    }

    /// Publishes the new state of an object that the caller has claimed, or that is
    /// offered while the caller holds ENGINE.
    pub(crate) fn publish(&self, state: State) {
        let clears = match state {
            State::Nonvolatile => POPULATED | WANTED | PURGED,
            _ => POPULATED | WANTED,
        };
        self.update(|now| Some(now.with(state).with_bit(clears, false)));
    }

    /// Publishes the new state of an object that the caller has claimed and purged.
    pub(crate) fn publish_purged(&self, state: State) {
        self.update(|now| {
            let purged = now.with(state).with_bit(POPULATED | WANTED, false);
            Some(purged.with_bit(PURGED, true))
        });
    }

    /// Publishes a claimed object as offered.
    pub(crate) fn publish_offered(&self, is_populated: bool) {
        self.update(|now| {
            let offered = now.with(State::Offered).with_bit(WANTED, false);
            Some(offered.with_bit(POPULATED, is_populated))
        });
    }

    /// Publishes a claimed object as nonvolatile, and adapts its backoff to the outcome.
    pub(crate) fn publish_revoked(&self, now: Timestamp, delay: Duration, is_intact: bool) {
        self.update(|word| {
            let doublings = word.after_revocation(now, delay, is_intact).doublings();
            let revoked = word.pinned(1).with_doublings(doublings);
            Some(revoked.with_bit(STALE, !is_intact))
        });
    }

    /// Asks the thread that has claimed the object to publish it soon. Returns whether
    /// the object is claimed.
    pub(crate) fn want(&self) -> bool {
        let busy = |now: Reading| (now.state() == State::Busy).then(|| now.with_bit(WANTED, true));
        self.update(busy).is_some()
    }

    /// Returns whether the owner waits for the object, which the caller has claimed.
    pub(crate) fn is_wanted(&self) -> bool {
        self.read().0 & WANTED != 0
    }

    /// Changes the word as long as `change` returns a new value; returns the one before.
    #[inline]
    fn update(&self, change: impl Fn(Reading) -> Option<Reading>) -> Option<Reading> {
        let mut now = self.read();
        loop {
            let next = change(now)?;
            let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
            match (self.0).compare_exchange_weak(now.0, next.0, success, failure) {
                Ok(_) => return Some(now),
                Err(other) => now = Reading(other),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_word_are_independent() {
        let word = Word::nonvolatile();
        for priority in Priority::ALL {
            let timestamp = Timestamp::from_nanos(u64::MAX >> 6 & !15);
            word.mark(priority, timestamp);
            assert!(word.try_claim());
            word.publish_offered(true);
            let reading = word.read();
            assert_eq!(
                (reading.state(), reading.priority(), reading.timestamp()),
                (State::Offered, priority, timestamp)
            );
            assert!(reading.is_populated());
            for state in [State::Refused, State::Marked, State::Nonvolatile] {
                word.publish(state);
                let reading = word.read();
                assert_eq!(reading.state(), state);
                assert_eq!(
                    (reading.priority(), reading.timestamp()),
                    (priority, timestamp)
                );
                assert!(!reading.is_populated());
            }
        }
    }

    #[test]
    fn only_marked_word_is_claimed_or_unmarked_without_the_engine() {
        let word = Word::nonvolatile();
        assert_eq!(word.unmark(), Unmarked::WasNonvolatile);
        assert!(!word.try_claim() && word.try_claim_volatile().is_none());
        assert!(word.mark(Priority::High, Timestamp::from_nanos(16)));
        assert_eq!(word.read().state(), State::Marked);
        assert!(word.try_claim() && !word.try_claim());
        assert_eq!(word.unmark(), Unmarked::NeedsEngine, "it is claimed");
        // Marking again renews the mark and nothing else.
        assert!(!word.mark(Priority::Low, Timestamp::from_nanos(32)));
        let reading = word.read();
        assert_eq!(reading.state(), State::Busy);
        assert_eq!(
            (reading.priority(), reading.timestamp()),
            (Priority::Low, Timestamp::from_nanos(32))
        );
        word.publish(State::Offered);
        assert_eq!(word.unmark(), Unmarked::NeedsEngine);
        word.publish(State::Nonvolatile);
        word.mark(Priority::Low, Timestamp::from_nanos(48));
        assert_eq!(word.unmark(), Unmarked::Intact);
    }

    #[test]
    fn owner_claims_only_objects_that_were_offered_populated() {
        let word = Word::nonvolatile();
        word.mark(Priority::Normal, Timestamp::from_nanos(16));
        assert!(!word.try_claim_populated(), "it is not offered");
        assert!(word.try_claim());
        word.publish_offered(false);
        assert!(!word.try_claim_populated());
        assert_eq!(word.try_claim_volatile(), Some(State::Offered));
        word.publish_offered(true);
        assert!(word.try_claim_populated() && word.try_claim_volatile().is_none());
        assert!(word.want() && word.is_wanted());
        word.publish(State::Offered);
        assert!(!word.want() && !word.is_wanted());
    }

    #[test]
    fn last_pin_marks_object_or_frees_a_detached_one() {
        let word = Word::nonvolatile();
        word.set_pinned(Priority::High);
        let timestamp = Timestamp::from_nanos(32);
        assert_eq!(word.try_pin(), Some(State::Nonvolatile));
        assert_eq!(word.unpin(), Unpinned::StillPinned);
        assert_eq!(word.unpin(), Unpinned::Volatile);
        assert!(
            !word
                .read()
                .is_due(Timestamp::from_nanos(1 << 40), Duration::ZERO)
        );
        let reading = word.stamp(timestamp);
        assert_eq!(
            (reading.state(), reading.priority(), reading.timestamp()),
            (State::Marked, Priority::High, timestamp)
        );
        assert_eq!(word.stamp(Timestamp::from_nanos(64)), reading);
        assert!(reading.is_due(timestamp, Duration::ZERO) && !reading.is_due(timestamp, DELAY));
        assert!(!word.detach(), "it has no pin");
        assert_eq!(word.try_pin(), Some(State::Marked));
        assert!(word.detach());
        assert_eq!(word.try_pin(), Some(State::Nonvolatile));
        assert_eq!(word.unpin(), Unpinned::StillPinned);
        assert_eq!(word.unpin(), Unpinned::Detached);
        assert!(!word.detach(), "it is freed");
    }

    #[test]
    fn offered_object_is_pinned_by_its_revocation_only() {
        let word = Word::nonvolatile();
        word.mark(Priority::Normal, Timestamp::from_nanos(16));
        assert!(word.try_claim() && word.try_pin().is_none());
        word.publish_offered(true);
        assert!(word.try_pin().is_none() && !word.detach());
        assert!(word.try_claim_populated());
        word.publish_revoked(Timestamp::from_nanos(32), DELAY, true);
        let unpinned = word.unpin();
        assert_eq!(unpinned, Unpinned::Volatile);
        // A purged one gets no further pin.
        assert!(word.try_claim());
        word.publish_offered(true);
        assert!(word.try_claim_populated());
        word.publish_revoked(Timestamp::from_nanos(64), DELAY, false);
        assert!(word.try_pin().is_none() && word.detach());
        let unpinned = word.unpin();
        assert_eq!(unpinned, Unpinned::Detached);
    }

    const DELAY: Duration = Duration::from_millis(100);

    /// Returns the delays after each of these ages and outcomes of a revoked offer.
    fn delays(revocations: &[(u64, bool)]) -> Vec<Duration> {
        let word = Word::nonvolatile();
        let revoke = |&(age_ms, is_intact): &(u64, bool)| {
            word.mark(Priority::Normal, Timestamp::from_nanos(1 << 20));
            assert!(word.try_claim());
            let now = Timestamp::from_nanos((1 << 20) + age_ms * 1_000_000);
            word.publish_revoked(now, DELAY, is_intact);
            word.read().offer_delay(DELAY)
        };
        revocations.iter().map(revoke).collect()
    }

    #[test]
    fn delay_doubles_with_each_useless_offer_up_to_eight_times() {
        let grown = delays(&[(130, true); 4]);
        assert_eq!(grown, [2, 4, 8, 8].map(|times| times * DELAY));
        // An offer inside the marking call stays there.
        let word = Word::nonvolatile();
        assert_eq!(word.read().offer_delay(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn late_or_purged_unmark_resets_the_delay() {
        for last in [(1000, true), (130, false)] {
            assert_eq!(delays(&[(130, true), last])[1], DELAY);
        }
    }
}
