//! The places of one size class that are in no shard: muzzy ones, retained ones, and
//! those that have never been used.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use tenure::Errno;

use crate::classes::{HUGE_BYTES, MAX_CLASSES, bytes_of, pitch_of};
use crate::list::List;
use crate::lock::{Lock, LockGuard};
use crate::slot::{LIVE, Slot, free_in, kind};
use crate::space::{PLACES_AT, SPACE};
use crate::stats::Count;
use crate::{fork, huge, limits, sys};

/// Offsets are divided in multiples of this.
const UNIT_BYTES: usize = 4 << 10;

/// The most memory that one step makes usable: under `mlockall` the kernel fills all of
/// it.
const STEP_BYTES: usize = 64 << 20;

#[derive(Debug)]
pub(crate) struct Class {
    pub(crate) lock: Lock,
    number: AtomicUsize,
    slots: AtomicUsize,
    places: AtomicUsize,
    pitch: AtomicUsize,
    /// The value of [`huge::usual_cut`] for the class.
    usual_cut: AtomicUsize,
    /// 2^64 divided by the units of a pitch.
    reciprocal: AtomicU64,
    capacity: AtomicU32,
    /// The first place that has never been used.
    frontier: AtomicU32,
    /// How many places, and slots, are mapped for reading and writing.
    usable_places: AtomicU32,
    usable_slots: AtomicU32,
    /// Free places whose memory the kernel may reclaim.
    pub(crate) muzzy: List,
    /// Free places without memory.
    retained: List,
    /// The process generation for which the lists are valid.
    generation: AtomicU32,
    pub(crate) counts: Counts,
}

/// Allocations by the state of the place that served them. The class's lock guards
/// them.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) muzzy: Count,
    pub(crate) retained: Count,
    pub(crate) new: Count,
    pub(crate) bytes: Count,
}

pub(crate) static CLASSES: [Class; MAX_CLASSES] = [const { Class::new() }; MAX_CLASSES];

/// Rebuilds all lists in the child of a fork, so that the free places decay.
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
            muzzy: List::new(),
            retained: List::new(),
            generation: AtomicU32::new(0),
            counts: Counts {
                muzzy: Count::zero(),
                retained: Count::zero(),
                new: Count::zero(),
                bytes: Count::zero(),
            },
        }
    }

    /// Sets the class up in its range.
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

    /// Returns whether the class's blocks may have huge pages.
    #[inline]
    pub(crate) fn is_huge(&self) -> bool {
        bytes_of(self.number()) >= HUGE_BYTES
    }

    /// Returns the metadata of a place that has been used.
    #[inline]
    pub(crate) fn slot(&self, index: u32) -> &'static Slot {
        debug_assert!(index < self.usable_slots.load(Relaxed));
        let at = self.slots.load(Relaxed) + index as usize * size_of::<Slot>();
        // SAFETY: `take_new` makes the slot's memory usable before the index is
        // published; the memory stays usable, and all fields are atomic.
        unsafe { &*std::ptr::with_exposed_provenance(at) }
    }

    #[inline]
    pub(crate) fn address(&self, index: u32) -> usize {
        self.places.load(Relaxed) + index as usize * self.pitch()
    }

    /// Returns the place that begins at an address of the range, if it has been used.
    #[inline]
    pub(crate) fn index_at(&self, address: usize) -> Option<u32> {
        let offset = address.checked_sub(self.places.load(Relaxed))?;
        let units = (offset / UNIT_BYTES) as u64;
        // The quotient is exact for dividends below 2^32, as units are.
        let product = u128::from(units) * u128::from(self.reciprocal.load(Relaxed));
        let index = (product >> 64) as u32;
        let is_start = index as usize * self.pitch() == offset;
        (is_start && index < self.frontier.load(Relaxed)).then_some(index)
    }

    /// Takes a muzzy place, for a block of so many bytes.
    pub(crate) fn take_muzzy(&self, held: &LockGuard<'_>, bytes: usize) -> Option<u32> {
        self.refresh(held);
        let place = self.muzzy.pop(held, self)?;
        limits::subtract_muzzy(self.slot(place));
        self.counts.muzzy.add(1);
        self.counts.bytes.add(bytes);
        Some(place)
    }

    /// Takes a place without memory: a retained one, else a new one.
    pub(crate) fn take_empty(&self, held: &LockGuard<'_>, bytes: usize) -> Option<u32> {
        self.refresh(held);
        let (place, count) = match self.retained.pop(held, self) {
            Some(place) => (place, &self.counts.retained),
            None => (self.take_new(held)?, &self.counts.new),
        };
        count.add(1);
        self.counts.bytes.add(bytes);
        Some(place)
    }

    /// Adds a place whose memory the kernel may reclaim.
    pub(crate) fn put_muzzy(&self, held: &LockGuard<'_>, place: u32) {
        self.refresh(held);
        limits::add_muzzy(self.slot(place));
        self.muzzy.push(held, self, place);
    }

    /// Adds a place without memory.
    pub(crate) fn put_retained(&self, held: &LockGuard<'_>, place: u32) {
        self.refresh(held);
        self.retained.push(held, self, place);
    }

    fn take_new(&self, _held: &LockGuard<'_>) -> Option<u32> {
        let index = self.frontier.load(Relaxed);
        if index == self.capacity.load(Relaxed) || self.make_usable(index).is_err() {
            return None;
        }
        self.frontier.store(index + 1, Relaxed);
        Some(index)
    }

    /// Makes more places and slots usable, in steps that grow with their number.
    fn make_usable(&self, index: u32) -> Result<(), Errno> {
        const SLOTS: u32 = 1024;
        let capacity = self.capacity.load(Relaxed);
        if index == self.usable_slots.load(Relaxed) {
            let size = SLOTS as usize * size_of::<Slot>();
            let at = self.slots.load(Relaxed) + index as usize * size_of::<Slot>();
            // SAFETY: the range's part for slots.
            unsafe { sys::commit((at, size)) }?;
            self.usable_slots.store(index + SLOTS, Relaxed);
        }
        let usable = self.usable_places.load(Relaxed);
        if index == usable {
            if index == 0 {
                let size = capacity as usize * self.pitch();
                huge::choose(self, (self.address(0), size));
            }
            let max_count = (STEP_BYTES / self.pitch()) as u32;
            let count = (usable / 2).min(max_count).max(1).min(capacity - usable);
            let size = count as usize * self.pitch();
            // SAFETY: the range's part for places.
            unsafe { sys::commit((self.address(index), size)) }?;
            self.usable_places.store(usable + count, Relaxed);
        }
        Ok(())
    }

    /// Rebuilds the lists in the child of a fork, because a fork does not wait for
    /// their locks.
    fn refresh(&self, held: &LockGuard<'_>) {
        if self.generation.load(Relaxed) != fork::generation() {
            self.find_free(held);
        }
    }

    /// Rebuilds the lists from the places' states. The kernel copies one mapping after
    /// the other while the parent's threads run on, so a slot can be older than the
    /// pages of its place. Therefore places recorded as empty are discarded, and no
    /// other place counts as zero.
    #[cold]
    fn find_free(&self, held: &LockGuard<'_>) {
        let generation = fork::generation();
        self.muzzy.reset();
        self.retained.reset();
        let usable = self.usable_places.load(Relaxed);
        let mut empty_from = 0;
        for place in 0..self.frontier.load(Relaxed) {
            let slot = self.slot(place);
            let state = slot.state.load(Relaxed);
            let is_ours = kind(state) == LIVE || state == free_in(generation);
            if is_ours || slot.touched.get() > 0 {
                self.discard_places(empty_from, place);
                empty_from = place + 1;
            }
            if is_ours {
                continue;
            }
            slot.timestamp.store(limits::tick(), Relaxed);
            if slot.touched.get() == 0 {
                self.retained.push(held, self, place);
            } else {
                slot.touched.set(self.pitch() / SPACE.page_bytes());
                limits::add_muzzy(slot);
                self.muzzy.push(held, self, place);
            }
        }
        self.discard_places(empty_from, usable);
        self.generation.store(generation, Relaxed);
    }

    /// Discards the contents of unused places.
    fn discard_places(&self, from: u32, to: u32) {
        if from < to {
            let size = (to - from) as usize * self.pitch();
            // SAFETY: usable places of this class without a block. On failure (locked
            // memory on an old kernel) the contents are not older than the fork.
            let _ = unsafe { sys::discard((self.address(from), size)) };
        }
    }

    #[cfg(test)]
    pub(crate) fn usable(&self) -> u32 {
        self.usable_places.load(Relaxed)
    }

    /// Resets the lock in the child of a fork, which has no other threads.
    pub(crate) fn reset(&self) {
        self.lock.reset();
    }
}
