//! Flights: the values that are being made, of which each process makes one that others wait for.

use std::cell::RefCell;
use std::sync::atomic::{Ordering, fence};

use super::super::core::Attached;
use super::super::layout::FLIGHTS;
use super::super::processes::Attachment;
use super::super::table::Table;
use super::super::word::{MAX_PROCESSES, Processes};
use crate::ground::sys::fork;

/// The lower bits of a flight's word: the slot of the maker, plus one.
const SLOT: u64 = (1 << 6) - 1;

/// The key was inserted or removed after the making began.
const OUTDATED: u64 = 1 << 6;

/// The bits of the key's hash.
const HASH: u64 = !(SLOT | OUTDATED);

/// The part of a thread that misses a value.
pub(super) enum Missing<'a> {
    /// Makes it, and inserts it unless it is outdated.
    Make(Flight<'a>),
    /// Makes it for itself: this thread makes it already, or too many values are being made.
    MakeAlone,
    /// Waits: another thread makes it, whose flight has this word.
    Wait { at: usize, word: u64 },
}

/// The right to make a value. Other threads and processes wait until it is dropped, or until
/// its process ends.
pub(super) struct Flight<'a> {
    table: &'a Table,
    generation: usize,
    at: usize,
    word: u64,
}

thread_local! {
    /// The hashes of the values that this thread makes.
    static OWN: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

impl Table {
    /// Lets one thread of all processes make the value of this hash.
    pub(super) fn enter(&self, attached: &Attached, hash: u64) -> Missing<'_> {
        let hash = hash & HASH;
        // A thread whose variables are gone cannot tell.
        if OWN.try_with(|own| own.borrow().contains(&hash)) != Ok(false) {
            return Missing::MakeAlone;
        }
        if let Some(wait) = self.flight_of(hash, None) {
            return wait;
        }
        let Some((at, own)) = self.begin(attached, hash) else {
            return Missing::MakeAlone;
        };
        // Two that enter at the same time: one of them sees the other at least, and gives way.
        fence(Ordering::SeqCst);
        if let Some(wait) = self.flight_of(hash, Some(at)) {
            self.end(at, own);
            return wait;
        }
        Missing::Make(self.flight(attached, at, own))
    }

    /// Lets a thread make the value of this hash for itself, whether or not others do. `None` if
    /// too many values are being made: then nobody could tell whether this one is outdated.
    pub(super) fn enter_alone(&self, attached: &Attached, hash: u64) -> Option<Flight<'_>> {
        let begin = || self.begin(attached, hash & HASH);
        let (at, own) = begin().or_else(|| {
            self.end_flights(self.dead_makers(&attached.attachment));
            begin()
        })?;
        Some(self.flight(attached, at, own))
    }

    fn begin(&self, attached: &Attached, hash: u64) -> Option<(usize, u64)> {
        let own = hash | (attached.attachment.slot as u64 + 1);
        let flights = &self.header().flights;
        let at = (0..FLIGHTS).find(|&at| {
            let (success, failure) = (Ordering::SeqCst, Ordering::Relaxed);
            let is_free = flights[at].load(Ordering::Relaxed) == 0;
            let word = &flights[at];
            is_free && word.compare_exchange(0, own, success, failure).is_ok()
        })?;
        Some((at, own))
    }

    fn flight(&self, attached: &Attached, at: usize, word: u64) -> Flight<'_> {
        let _ = OWN.try_with(|own| own.borrow_mut().push(word & HASH));
        Flight {
            table: self,
            generation: attached.generation,
            at,
            word,
        }
    }

    /// Returns the dead processes that have flights.
    fn dead_makers(&self, attachment: &Attachment) -> Processes {
        let words = self.header().flights.iter();
        let slots = words.filter_map(|word| (word.load(Ordering::Relaxed) & SLOT).checked_sub(1));
        let makers = slots.fold(0, |makers, slot| makers | 1 << slot);
        let dead = (0..MAX_PROCESSES)
            .filter(|slot| makers >> slot & 1 != 0 && self.is_dead(*slot, attachment));
        dead.fold(0, |dead, slot| dead | 1 << slot)
    }

    fn flight_of(&self, hash: u64, except: Option<usize>) -> Option<Missing<'_>> {
        let mut flights = self.header().flights.iter().enumerate();
        flights.find_map(|(at, word)| {
            let word = word.load(Ordering::Acquire);
            let is_it = word & HASH == hash && word & SLOT != 0 && except != Some(at);
            is_it.then_some(Missing::Wait { at, word })
        })
    }

    /// Returns how far a flight is. The flight of a dead maker ends.
    pub(super) fn progress(&self, attachment: &Attachment, at: usize, word: u64) -> Progress {
        let now = self.header().flights[at].load(Ordering::Acquire);
        let slot = (word & SLOT) as usize - 1;
        if now & !OUTDATED != word & !OUTDATED {
            Progress::Ended
        } else if slot >= MAX_PROCESSES || self.is_dead(slot, attachment) {
            self.end(at, word);
            Progress::Died
        } else if self.is_halted(slot, attachment) {
            Progress::Stopped
        } else {
            Progress::Running
        }
    }

    fn end(&self, at: usize, word: u64) {
        let end = |now: u64| (now & !OUTDATED == word & !OUTDATED).then_some(0);
        let order = Ordering::SeqCst;
        let _ = self.header().flights[at].fetch_update(order, Ordering::Relaxed, end);
    }

    /// Ends the flights of dead processes.
    pub(in super::super) fn end_flights(&self, processes: Processes) {
        for word in &self.header().flights {
            let is_left = |now: u64| now & SLOT != 0 && processes >> ((now & SLOT) - 1) & 1 != 0;
            let end = |now: u64| is_left(now).then_some(0);
            let _ = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, end);
        }
    }

    /// Has values not stay that are being made, because their keys are inserted or removed: those
    /// of the hash, or all. The caller removes the values that it finds afterwards.
    pub(super) fn outdate(&self, hash: Option<u64>) {
        for word in &self.header().flights {
            let is_it = |now: u64| hash.is_none_or(|hash| hash & HASH == now & HASH);
            let outdate = |now: u64| (now != 0 && is_it(now)).then_some(now | OUTDATED);
            let _ = word.fetch_update(Ordering::SeqCst, Ordering::Relaxed, outdate);
        }
        // A maker that does not see this has claimed an entry, and written its tag.
        fence(Ordering::SeqCst);
        let indices = hash.map_or(0..self.geometry.count, |hash| self.set(hash));
        for entry in &self.entries()[indices] {
            let tag = entry.tag.load(Ordering::Relaxed);
            if hash.is_none_or(|hash| hash == tag) {
                entry.word.outdate();
            }
        }
    }
}

/// The state of a flight that a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Running,
    Ended,
    Died,
    Stopped,
}

impl Flight<'_> {
    /// Whether the value must not stay. That is certain after it was published.
    pub(super) fn is_outdated(&self) -> bool {
        fence(Ordering::SeqCst);
        let now = self.table.header().flights[self.at].load(Ordering::SeqCst);
        now != self.word
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let _ = OWN.try_with(|own| {
            let mut own = own.borrow_mut();
            // The thread may make the same value twice.
            if let Some(at) = own.iter().rposition(|&hash| hash == self.word & HASH) {
                own.swap_remove(at);
            }
        });
        // In a child of the maker the flight is its parent's.
        let is_own = fork::generation() == Ok(self.generation) && !fork::is_bare_child();
        if is_own && self.table.check().is_ok() {
            self.table.end(self.at, self.word);
        }
    }
}
