//! The places of one class that no shard keeps: what is lazily free, what has been
//! given back, and what nobody has had yet.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use tenure::Errno;

use crate::classes::{HUGE_BYTES, MOST_CLASSES, bytes_of, pitch_of};
use crate::list::List;
use crate::lock::{Held, Lock};
use crate::slot::{LIVE, Slot, free_in, kind};
use crate::space::{PLACES_AT, SPACE};
use crate::stats::Count;
use crate::{fork, huge, limits, sys};

/// Divisions of addresses are by multiples of this.
const UNIT_BYTES: usize = 4 << 10;

/// What is made usable at a time, at most: under `mlockall` all of it is filled.
const STEP_BYTES: usize = 64 << 20;

#[derive(Debug)]
pub(crate) struct Class {
    pub(crate) lock: Lock,
    number: AtomicUsize,
    slots: AtomicUsize,
    places: AtomicUsize,
    pitch: AtomicUsize,
    /// As of [`huge::usual_cut`].
    usual_cut: AtomicUsize,
    /// 2^64 divided by the units of a pitch.
    reciprocal: AtomicU64,
    capacity: AtomicU32,
    /// The first place that nobody has had.
    frontier: AtomicU32,
    /// How many places, and slots, can be used.
    usable_places: AtomicU32,
    usable_slots: AtomicU32,
    /// Free, and the kernel may have taken the memory.
    pub(crate) lazy: List,
    /// Free, without memory.
    given: List,
    /// The process in which the lists are right.
    generation: AtomicU32,
    pub(crate) tally: Tally,
}

/// What was handed out, by where it came from. Counted under the lock.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) lazy: Count,
    pub(crate) given: Count,
    pub(crate) new: Count,
    pub(crate) bytes: Count,
}

pub(crate) static CLASSES: [Class; MOST_CLASSES] = [const { Class::new() }; MOST_CLASSES];

/// In the child of a fork, finds all that is free: so that it ages.
pub(crate) fn refresh_all() {
    for class in SPACE.classes() {
        if class.generation.load(Relaxed) != fork::generation() {
            class.refresh(&class.lock.lock());
        }
    }
}

impl Class {
    pub(crate) const fn new() -> Self {
        Self {
            lock: Lock::new(),
            number: AtomicUsize::new(0),
            slots: AtomicUsize::new(0),
            places: AtomicUsize::new(0),
            pitch: AtomicUsize::new(0),
            usual_cut: AtomicUsize::new(0),
            reciprocal: AtomicU64::new(0),
            capacity: AtomicU32::new(0),
            frontier: AtomicU32::new(0),
            usable_places: AtomicU32::new(0),
            usable_slots: AtomicU32::new(0),
            lazy: List::new(),
            given: List::new(),
            generation: AtomicU32::new(0),
            tally: Tally {
                lazy: Count::zero(),
                given: Count::zero(),
                new: Count::zero(),
                bytes: Count::zero(),
            },
        }
    }

    /// Sets up the class in its range.
    pub(crate) fn lay_out(&self, number: usize, at: usize, bytes: usize, page_bytes: usize) {
        let pitch = pitch_of(number, page_bytes);
        let units = (pitch / UNIT_BYTES) as u64;
        // A range of 256 GiB has 2^22 places of 64 KiB.
        let capacity = ((bytes - PLACES_AT) / pitch) as u32;
        self.number.store(number, Relaxed);
        self.slots.store(at, Relaxed);
        self.places.store(at + PLACES_AT, Relaxed);
        self.pitch.store(pitch, Relaxed);
        self.usual_cut
            .store(huge::usual_cut(number, page_bytes), Relaxed);
        self.reciprocal.store(u64::MAX / units + 1, Relaxed);
        self.capacity.store(capacity, Relaxed);
    }

    #[inline]
    pub(crate) fn number(&self) -> usize {
        self.number.load(Relaxed)
    }

    #[inline]
    pub(crate) fn pitch(&self) -> usize {
        self.pitch.load(Relaxed)
    }

    #[inline]
    pub(crate) fn usual_cut(&self) -> usize {
        self.usual_cut.load(Relaxed)
    }

    /// Whether huge pages may be put into its blocks.
    #[inline]
    pub(crate) fn is_huge(&self) -> bool {
        bytes_of(self.number()) >= HUGE_BYTES
    }

    /// What is known of a place that was in use once.
    #[inline]
    pub(crate) fn slot(&self, index: u32) -> &'static Slot {
        debug_assert!(index < self.usable_slots.load(Relaxed));
        let at = self.slots.load(Relaxed) + index as usize * size_of::<Slot>();
        // SAFETY: `take_new` has made the slot's memory usable before anybody learned
        // of the place; it stays so, and all its fields are atomic.
        unsafe { &*std::ptr::with_exposed_provenance(at) }
    }

    #[inline]
    pub(crate) fn address(&self, index: u32) -> usize {
        self.places.load(Relaxed) + index as usize * self.pitch()
    }

    /// The place that begins at an address of the range, if somebody has had it.
    #[inline]
    pub(crate) fn index_at(&self, address: usize) -> Option<u32> {
        let offset = address.checked_sub(self.places.load(Relaxed))?;
        let units = (offset / UNIT_BYTES) as u64;
        // Exact for what is below 2^32, as units are.
        let product = u128::from(units) * u128::from(self.reciprocal.load(Relaxed));
        let index = (product >> 64) as u32;
        let is_start = index as usize * self.pitch() == offset;
        (is_start && index < self.frontier.load(Relaxed)).then_some(index)
    }

    /// Takes a place that is lazily free, for a block of so many bytes.
    pub(crate) fn take_lazy(&self, held: &Held<'_>, bytes: usize) -> Option<u32> {
        self.refresh(held);
        let place = self.lazy.pop(held, self)?;
        limits::lazy_taken(self.slot(place));
        self.tally.lazy.add(1);
        self.tally.bytes.add(bytes);
        Some(place)
    }

    /// Takes a place without memory: one that was given back, else a new one.
    pub(crate) fn take_empty(&self, held: &Held<'_>, bytes: usize) -> Option<u32> {
        self.refresh(held);
        let (place, count) = match self.given.pop(held, self) {
            Some(place) => (place, &self.tally.given),
            None => (self.take_new(held)?, &self.tally.new),
        };
        count.add(1);
        self.tally.bytes.add(bytes);
        Some(place)
    }

    /// Keeps a place whose memory the kernel may take.
    pub(crate) fn put_lazy(&self, held: &Held<'_>, place: u32) {
        self.refresh(held);
        limits::lazy_put(self.slot(place));
        self.lazy.push(held, self, place);
    }

    /// Keeps a place without memory.
    pub(crate) fn put_given(&self, held: &Held<'_>, place: u32) {
        self.refresh(held);
        self.given.push(held, self, place);
    }

    fn take_new(&self, _held: &Held<'_>) -> Option<u32> {
        let index = self.frontier.load(Relaxed);
        if index == self.capacity.load(Relaxed) || self.make_usable(index).is_err() {
            return None;
        }
        self.frontier.store(index + 1, Relaxed);
        Some(index)
    }

    /// Makes more places and slots usable, by steps that grow with what there is.
    fn make_usable(&self, index: u32) -> Result<(), Errno> {
        const SLOTS: u32 = 1024;
        let capacity = self.capacity.load(Relaxed);
        if index == self.usable_slots.load(Relaxed) {
            let size = SLOTS as usize * size_of::<Slot>();
            let at = self.slots.load(Relaxed) + index as usize * size_of::<Slot>();
            // SAFETY: the part of the range that is for slots.
            unsafe { sys::commit((at, size)) }?;
            self.usable_slots.store(index + SLOTS, Relaxed);
        }
        let usable = self.usable_places.load(Relaxed);
        if index == usable {
            if index == 0 {
                let size = capacity as usize * self.pitch();
                huge::choose(self, (self.address(0), size));
            }
            let most = (STEP_BYTES / self.pitch()) as u32;
            let count = (usable / 2).min(most).max(1).min(capacity - usable);
            let size = count as usize * self.pitch();
            // SAFETY: the part of the range that is for places.
            unsafe { sys::commit((self.address(index), size)) }?;
            self.usable_places.store(usable + count, Relaxed);
        }
        Ok(())
    }

    /// In the child of a fork, finds what is free: nobody was waited for.
    fn refresh(&self, held: &Held<'_>) {
        if self.generation.load(Relaxed) != fork::generation() {
            self.find_free(held);
        }
    }

    /// The kernel copies one mapping after the other, and meanwhile threads go on: what
    /// is known here of a place can be older than what is in it. So what has no memory
    /// is emptied, and of the others nothing is taken to be zeros.
    #[cold]
    fn find_free(&self, held: &Held<'_>) {
        let generation = fork::generation();
        self.lazy.reset();
        self.given.reset();
        let usable = self.usable_places.load(Relaxed);
        let mut empty_from = 0;
        for place in 0..self.frontier.load(Relaxed) {
            let slot = self.slot(place);
            let state = slot.state.load(Relaxed);
            let is_ours = kind(state) == LIVE || state == free_in(generation);
            if is_ours || slot.touched.get() > 0 {
                self.empty(empty_from, place);
                empty_from = place + 1;
            }
            if is_ours {
                continue;
            }
            slot.stamp.store(limits::tick(), Relaxed);
            if slot.touched.get() == 0 {
                self.given.push(held, self, place);
            } else {
                slot.touched.set(self.pitch() / SPACE.page_bytes());
                limits::lazy_put(slot);
                self.lazy.push(held, self, place);
            }
        }
        self.empty(empty_from, usable);
        self.generation.store(generation, Relaxed);
    }

    /// Empties places that nobody uses.
    fn empty(&self, from: u32, to: u32) {
        if from < to {
            let size = (to - from) as usize * self.pitch();
            // SAFETY: usable places of this class that no block is in. What is locked and
            // cannot be emptied on an old kernel has no contents of before the fork.
            let _ = unsafe { sys::give_back((self.address(from), size)) };
        }
    }

    #[cfg(test)]
    pub(crate) fn usable(&self) -> u32 {
        self.usable_places.load(Relaxed)
    }

    /// The child of a fork has no other threads, and its lists may be half changed.
    pub(crate) fn reset(&self) {
        self.lock.reset();
    }
}
