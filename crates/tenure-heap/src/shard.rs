//! Warm blocks: those that were freed a moment ago, by the CPU on which they were.
//!
//! By CPU and not by thread: a thread that ends leaves nothing behind, and there is
//! no storage of threads to be made ready. Whoever finds a shard locked takes the
//! next one; there are always some, so that a signal handler that interrupts the
//! holder of one does not wait for it.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};

use tenure::Errno;

use crate::class::{CLASSES, Class};
use crate::classes::MOST_CLASSES;
use crate::limits;
use crate::list::List;
use crate::lock::{Held, Lock};
use crate::slot::Slot;
use crate::space::{Place, SPACE};
use crate::stats::Count;
use crate::sys;

#[repr(align(128))]
pub(crate) struct Shard {
    lock: Lock,
    pub(crate) tally: Tally,
    /// The class of the block that was freed last: it is in the CPU's cache.
    last: AtomicUsize,
    /// By class.
    warm: [List; MOST_CLASSES],
}

/// Changed under the lock.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Warm blocks that were handed out again.
    pub(crate) taken: Count,
    pub(crate) taken_bytes: Count,
    pub(crate) freed: Count,
    pub(crate) freed_bytes: Count,
    /// The memory of the warm blocks.
    pub(crate) warm_bytes: Count,
    /// What of that all have been told of.
    told_bytes: Count,
}

static SHARDS: AtomicPtr<Shard> = AtomicPtr::new(std::ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);

const FEWEST: usize = 4;
const MOST: usize = 512;

/// Makes the shards at the beginning of reserved addresses that are long enough.
pub(crate) fn make(at: usize, bytes: usize) -> Result<(), Errno> {
    let count = sys::cpus().clamp(FEWEST, MOST);
    let size = (count * size_of::<Shard>()).next_multiple_of(SPACE.page_bytes());
    assert!(size <= bytes);
    // SAFETY: the part of the reservation that is for this.
    unsafe { sys::commit((at, size)) }?;
    SHARDS.store(std::ptr::with_exposed_provenance_mut(at), Relaxed);
    COUNT.store(count, Relaxed);
    Ok(())
}

/// All shards; none before the heap is ready.
#[inline]
pub(crate) fn all() -> &'static [Shard] {
    let at = SHARDS.load(Relaxed);
    if at.is_null() {
        return &[];
    }
    // SAFETY: `make` has made as many usable; all zeros is a shard that is empty, and
    // all its fields are atomic.
    unsafe { std::slice::from_raw_parts(at, COUNT.load(Relaxed)) }
}

/// Which shard is this CPU's.
#[inline]
fn here(all: &[Shard]) -> usize {
    let cpu = sys::cpu();
    if cpu < all.len() {
        cpu
    } else {
        cpu % all.len()
    }
}

/// The shards, that of this CPU first.
fn from_here() -> impl Iterator<Item = &'static Shard> {
    let all = all();
    let first = here(all);
    all[first..].iter().chain(&all[..first])
}

/// Takes a warm block of the class: from this CPU's shard, else from wherever there
/// seems to be one. From this CPU's it may be one of a class further up, no further
/// than `most`.
#[inline]
pub(crate) fn take(class: &'static Class, most: usize, pages: usize) -> Option<Place> {
    let all = all();
    let shard = &all[here(all)];
    if let Some(held) = shard.lock.try_lock()
        && let Some(place) = shard.take_up_to(&held, class, most, pages)
    {
        return Some(place);
    }
    steal(class, pages)
}

#[cold]
fn steal(class: &'static Class, pages: usize) -> Option<Place> {
    let number = class.number();
    let mut seems_to_have = from_here().filter(|shard| !shard.warm[number].is_empty());
    let index = seems_to_have.find_map(|shard| {
        let held = shard.lock.try_lock()?;
        shard.take(&held, class, pages)
    })?;
    Some(Place { class, index })
}

/// Keeps a block that was freed. Returns whether all have been told of how much is
/// warm.
#[inline]
pub(crate) fn put(place: Place, slot: &Slot) -> bool {
    let (shard, held) = any();
    shard.tally.freed.add(1);
    shard
        .tally
        .freed_bytes
        .add(slot.pages.get() * SPACE.page_bytes());
    shard.put(&held, place, slot)
}

/// Keeps a free place that could not be given back.
#[cold]
pub(crate) fn put_again(place: Place) {
    let (shard, held) = any();
    shard.put(&held, place, place.slot());
}

/// This CPU's shard, or another one.
#[inline]
fn any() -> (&'static Shard, Held<'static>) {
    let all = all();
    let shard = &all[here(all)];
    match shard.lock.try_lock() {
        Some(held) => (shard, held),
        None => any_other(),
    }
}

#[cold]
fn any_other() -> (&'static Shard, Held<'static>) {
    loop {
        let unlocked = from_here().find_map(|shard| Some((shard, shard.lock.try_lock()?)));
        if let Some(unlocked) = unlocked {
            return unlocked;
        }
        sys::give_way();
    }
}

impl Shard {
    /// Takes the block that was freed last, else one of the smallest class that has any.
    #[inline]
    fn take_up_to(
        &self,
        held: &Held<'_>,
        class: &'static Class,
        most: usize,
        pages: usize,
    ) -> Option<Place> {
        let first = class.number();
        let last = self.last.load(Relaxed);
        let from = if (first..=most).contains(&last) && !self.warm[last].is_empty() {
            last
        } else {
            let lists = self.warm[first..]
                .iter()
                .take((most + 1).saturating_sub(first).max(1));
            first + lists.into_iter().position(|list| !list.is_empty())?
        };
        let class = &CLASSES[from];
        let index = self.take(held, class, pages)?;
        Some(Place { class, index })
    }

    #[inline]
    fn take(&self, held: &Held<'_>, class: &Class, pages: usize) -> Option<u32> {
        let index = self.warm[class.number()].pop(held, class)?;
        let page_bytes = SPACE.page_bytes();
        self.tally.taken.add(1);
        self.tally.taken_bytes.add(pages * page_bytes);
        self.tally
            .warm_bytes
            .subtract(class.slot(index).touched.get() * page_bytes);
        self.tell();
        Some(index)
    }

    #[inline]
    fn put(&self, held: &Held<'_>, place: Place, slot: &Slot) -> bool {
        let page_bytes = SPACE.page_bytes();
        slot.stamp.store(limits::tick(), Relaxed);
        self.last.store(place.class.number(), Relaxed);
        self.warm[place.class.number()].push(held, place.class, place.index);
        self.tally.warm_bytes.add(slot.touched.get() * page_bytes);
        self.tell()
    }

    /// Tells all how much is warm, if that has changed by enough.
    #[inline]
    fn tell(&self) -> bool {
        let (now, told) = (self.tally.warm_bytes.get(), self.tally.told_bytes.get());
        let is_worth_it = now.abs_diff(told) >= limits::told_bytes();
        if is_worth_it {
            limits::warm_changed(now.wrapping_sub(told));
            self.tally.told_bytes.set(now);
        }
        is_worth_it
    }

    /// Takes the oldest block of a class, if `wanted` says so of its stamp.
    pub(crate) fn take_oldest(
        &self,
        class: usize,
        wanted: impl FnOnce(u32) -> bool,
    ) -> Option<Place> {
        let (list, class) = (&self.warm[class], &CLASSES[class]);
        if list.is_empty() {
            return None;
        }
        let held = self.lock.lock_soon()?;
        let index = list.pop_oldest(&held, class, wanted)?;
        let place = Place { class, index };
        self.tally
            .warm_bytes
            .subtract(place.slot().touched.get() * SPACE.page_bytes());
        self.tell();
        Some(place)
    }

    #[cfg(test)]
    pub(crate) fn hold(&self) -> Held<'_> {
        self.lock.lock()
    }

    /// In the child of a fork: whoever held the lock is not there, and the list may be
    /// half changed. The places are found again by their states. What is zero is not
    /// written: the child would need a page of its own for it.
    pub(crate) fn reset(&self) {
        self.lock.reset();
        self.warm.iter().for_each(List::reset);
        if self.tally.warm_bytes.get() > 0 {
            self.tally.warm_bytes.set(0);
        }
        if self.tally.told_bytes.get() > 0 {
            self.tally.told_bytes.set(0);
        }
    }
}
