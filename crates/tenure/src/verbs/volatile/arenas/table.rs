//! The state words of an arena's buffers, side by side.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ground::range::PageRange;
use crate::ground::sys::{Errno, map, page_size};
use crate::verbs::volatile::word::Word;

/// A slot for each buffer: its word, and its place in the arena. Words lie side by side,
/// so that the offer thread finds what is due by a sequential scan without a lock: eight
/// bytes for each buffer. A million take less than a millisecond.
///
/// Slots are taken and freed, and places set, under the ENGINE lock.
#[derive(Debug)]
pub(crate) struct Table {
    /// A mapping of its own, in which only slots that were used take memory: all words,
    /// then all starts, then all lengths.
    memory: PageRange,
    capacity: usize,
    /// How many slots were ever used.
    used: AtomicUsize,
    /// One more than the first free slot below `used`; 0 if there is none. The start of
    /// a free slot says the same of the next, in pages: a place that is read without a claim
    /// lies on page boundaries all the same.
    first_free: AtomicUsize,
}

// Fresh pages of zeros are nonvolatile words.
const _: () = assert!(size_of::<Word>() == size_of::<u64>());

/// The bytes of a slot: its word, its start and its length.
const SLOT_BYTES: usize = 24;

impl Table {
    /// Makes an empty table for at most `capacity` slots: `mmap(2)` with MAP_NORESERVE.
    /// On failure, returns the call as well.
    pub(super) fn new(capacity: usize) -> Result<Self, (&'static str, Errno)> {
        let len = capacity.checked_mul(SLOT_BYTES);
        let len = len.ok_or(("mmap", Errno::NOMEM))?;
        Ok(Self {
            memory: map::reserve_writable(len.next_multiple_of(page_size()))?,
            capacity,
            used: AtomicUsize::new(0),
            first_free: AtomicUsize::new(0),
        })
    }

    /// Returns the words of all slots that were ever used; a free slot's is nonvolatile.
    pub(crate) fn words(&self) -> &[Word] {
        let used = self.used.load(Ordering::Acquire);
        // SAFETY: the mapping begins with `capacity` words, which are atomic and valid
        // from their first zeros on; `used` is at most `capacity`. The mapping lives as
        // long as the table.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast(), used) }
    }

    pub(crate) fn word(&self, slot: usize) -> &Word {
        &self.words()[slot]
    }

    /// Returns the place of a slot. It stays while the caller has claimed the slot's
    /// word, or holds ENGINE and the slot is in use; otherwise it is a hint.
    pub(crate) fn place(&self, slot: usize) -> PageRange {
        let start = self.start(slot).load(Ordering::Relaxed);
        PageRange::between(start, start + self.len(slot).load(Ordering::Relaxed))
    }

    /// Takes a slot for a place. The caller holds ENGINE. There is one for each page.
    pub(super) fn take(&self, place: PageRange) -> usize {
        let slot = match self.first_free.load(Ordering::Relaxed).checked_sub(1) {
            Some(slot) => {
                let next = self.start(slot).load(Ordering::Relaxed);
                self.first_free.store(next / page_size(), Ordering::Relaxed);
                slot
            }
            None => {
                let slot = self.used.load(Ordering::Relaxed);
                assert!(slot < self.capacity, "a slot for each page");
                self.used.store(slot + 1, Ordering::Release);
                slot
            }
        };
        self.start(slot).store(place.start(), Ordering::Relaxed);
        self.len(slot).store(place.len(), Ordering::Relaxed);
        slot
    }

    /// Frees a slot, whose word is nonvolatile. The caller holds ENGINE.
    pub(super) fn free(&self, slot: usize) {
        let next = self.first_free.load(Ordering::Relaxed);
        self.len(slot).store(0, Ordering::Relaxed);
        self.start(slot)
            .store(next * page_size(), Ordering::Relaxed);
        self.first_free.store(slot + 1, Ordering::Relaxed);
    }

    fn start(&self, slot: usize) -> &AtomicUsize {
        self.number(self.capacity + slot)
    }

    fn len(&self, slot: usize) -> &AtomicUsize {
        self.number(2 * self.capacity + slot)
    }

    fn number(&self, index: usize) -> &AtomicUsize {
        assert!(index < 3 * self.capacity);
        // SAFETY: the mapping has three numbers for each slot, which are atomic, and the
        // index is below that. The mapping lives as long as the table.
        unsafe { &*self.memory.as_ptr().cast::<AtomicUsize>().add(index) }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: `new` has mapped it, and references to it borrow the table.
        let _ = unsafe { map::unmap(self.memory) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(at: usize) -> PageRange {
        PageRange::between(at * page_size(), (at + 2) * page_size())
    }

    #[test]
    fn freed_slots_are_taken_again_last_first() {
        let table = Table::new(4).unwrap();
        let slots = [0, 2, 4].map(|at| table.take(place(at)));
        assert_eq!(slots, [0, 1, 2]);
        table.free(0);
        table.free(2);
        assert_eq!(table.words().len(), 3);
        assert_eq!([6, 8, 10].map(|at| table.take(place(at))), [2, 0, 3]);
        assert_eq!(
            [0, 1, 2, 3].map(|slot| table.place(slot)),
            [8, 2, 6, 10].map(place)
        );
    }
}
