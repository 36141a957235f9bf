//! Dirty blocks, in one shard for each CPU.
//!
//! Shards belong to CPUs, not threads: a thread that ends leaves nothing behind, and no
//! thread-local storage is needed. A thread that finds a shard locked takes the next
//! one; there are always several, so a signal handler does not wait for the shard whose
//! holder it interrupted.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};

use tenure::Errno;

use crate::class::{CLASSES, Class};
use crate::classes::MAX_CLASSES;
use crate::limits;
use crate::list::List;
use crate::lock::{Lock, LockGuard};
use crate::slot::Slot;
use crate::space::{Place, SPACE};
use crate::stats::Count;
use crate::sys;

#[repr(align(128))]
pub(crate) struct Shard {
    lock: Lock,
    pub(crate) counts: Counts,
    /// The class of the block that was freed last, which is in the CPU's cache.
    last: AtomicUsize,
    /// Dirty blocks, by class.
    dirty: [List; MAX_CLASSES],
}

/// Counts that the shard's lock guards.
#[derive(Debug)]
pub(crate) struct Counts {
    /// Dirty blocks that were allocated again.
    pub(crate) taken: Count,
    pub(crate) taken_bytes: Count,
    pub(crate) freed: Count,
    pub(crate) freed_bytes: Count,
    /// The memory of the dirty blocks.
    pub(crate) dirty_bytes: Count,
    /// The part of it that was added to the heap's count.
    flushed_bytes: Count,
}

static SHARDS: AtomicPtr<Shard> = AtomicPtr::new(std::ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);

const MIN_SHARDS: usize = 4;
const MAX_SHARDS: usize = 512;

/// Sets the shards up at the beginning of reserved addresses.
pub(crate) fn make(at: usize, bytes: usize) -> Result<(), Errno> {
    let count = sys::cpus().clamp(MIN_SHARDS, MAX_SHARDS);
    let size = (count * size_of::<Shard>()).next_multiple_of(SPACE.page_bytes());
    assert!(size <= bytes);
    // SAFETY: the reservation's part for shards.
    unsafe { sys::commit((at, size)) }?;
    SHARDS.store(std::ptr::with_exposed_provenance_mut(at), Relaxed);
    COUNT.store(count, Relaxed);
    Ok(())
}

/// Returns all shards; none before the heap is ready.
#[inline]
pub(crate) fn all() -> &'static [Shard] {
    let at = SHARDS.load(Relaxed);
    if at.is_null() {
        return &[];
    }
    // SAFETY: `make` has made as many usable; a shard of zeros is empty, and all its
    // fields are atomic.
    unsafe { std::slice::from_raw_parts(at, COUNT.load(Relaxed)) }
}

/// Returns the index of this CPU's shard.
#[inline]
fn here(all: &[Shard]) -> usize {
    let cpu = sys::cpu();
    if cpu < all.len() {
        cpu
    } else {
        cpu % all.len()
    }
}

/// Returns the shards, this CPU's first.
fn from_here() -> impl Iterator<Item = &'static Shard> {
    let all = all();
    let first = here(all);
    all[first..].iter().chain(&all[..first])
}

/// Takes a dirty block of the class: from this CPU's shard, else from any that seems to
/// have one. This CPU's shard may serve a larger class, up to `max_class`.
#[inline]
pub(crate) fn take(class: &'static Class, max_class: usize, pages: usize) -> Option<Place> {
    let all = all();
    let shard = &all[here(all)];
    if let Some(held) = shard.lock.try_lock()
        && let Some(place) = shard.take_up_to(&held, class, max_class, pages)
    {
        return Some(place);
    }
    steal(class, pages)
}

#[cold]
fn steal(class: &'static Class, pages: usize) -> Option<Place> {
    let number = class.number();
    let mut seems_to_have = from_here().filter(|shard| !shard.dirty[number].is_empty());
    let index = seems_to_have.find_map(|shard| {
        let held = shard.lock.try_lock()?;
        shard.take(&held, class, pages)
    })?;
    Some(Place { class, index })
}

/// Adds a freed block. Returns whether the shard flushed its count of dirty bytes.
#[inline]
pub(crate) fn put(place: Place, slot: &Slot) -> bool {
    let (shard, held) = lock_any();
    shard.counts.freed.add(1);
    shard
        .counts
        .freed_bytes
        .add(slot.pages.get() * SPACE.page_bytes());
    shard.put(&held, place, slot)
}

/// Adds a free place that could not be returned to the kernel.
#[cold]
pub(crate) fn put_back(place: Place) {
    let (shard, held) = lock_any();
    shard.put(&held, place, place.slot());
}

/// Locks this CPU's shard, or another one.
#[inline]
fn lock_any() -> (&'static Shard, LockGuard<'static>) {
    let all = all();
    let shard = &all[here(all)];
    match shard.lock.try_lock() {
        Some(held) => (shard, held),
        None => lock_any_other(),
    }
}

#[cold]
fn lock_any_other() -> (&'static Shard, LockGuard<'static>) {
    loop {
        let unlocked = from_here().find_map(|shard| Some((shard, shard.lock.try_lock()?)));
        if let Some(unlocked) = unlocked {
            return unlocked;
        }
        sys::yield_now();
    }
}

impl Shard {
    /// Takes the block that was freed last, else one of the smallest class that has
    /// any.
    #[inline]
    fn take_up_to(
        &self,
        held: &LockGuard<'_>,
        class: &'static Class,
        max_class: usize,
        pages: usize,
    ) -> Option<Place> {
        let first = class.number();
        let last = self.last.load(Relaxed);
        let from = if (first..=max_class).contains(&last) && !self.dirty[last].is_empty() {
            last
        } else {
            let lists = self.dirty[first..]
                .iter()
                .take((max_class + 1).saturating_sub(first).max(1));
            first + lists.into_iter().position(|list| !list.is_empty())?
        };
        let class = &CLASSES[from];
        let index = self.take(held, class, pages)?;
        Some(Place { class, index })
    }

    #[inline]
    fn take(&self, held: &LockGuard<'_>, class: &Class, pages: usize) -> Option<u32> {
        let index = self.dirty[class.number()].pop(held, class)?;
        let page_bytes = SPACE.page_bytes();
        self.counts.taken.add(1);
        self.counts.taken_bytes.add(pages * page_bytes);
        self.counts
            .dirty_bytes
            .subtract(class.slot(index).touched.get() * page_bytes);
        self.flush_delta();
        Some(index)
    }

    #[inline]
    fn put(&self, held: &LockGuard<'_>, place: Place, slot: &Slot) -> bool {
        let page_bytes = SPACE.page_bytes();
        slot.timestamp.store(limits::tick(), Relaxed);
        self.last.store(place.class.number(), Relaxed);
        self.dirty[place.class.number()].push(held, place.class, place.index);
        self.counts.dirty_bytes.add(slot.touched.get() * page_bytes);
        self.flush_delta()
    }

    /// Adds the change of dirty bytes to the heap's count, if it is large enough.
    #[inline]
    fn flush_delta(&self) -> bool {
        let (now, flushed) = (
            self.counts.dirty_bytes.get(),
            self.counts.flushed_bytes.get(),
        );
        let is_due = now.abs_diff(flushed) >= limits::flush_bytes();
        if is_due {
            limits::add_dirty_delta(now.wrapping_sub(flushed));
            self.counts.flushed_bytes.set(now);
        }
        is_due
    }

    /// Takes the oldest block of a class, if `wanted` accepts its timestamp.
    pub(crate) fn take_oldest(
        &self,
        class: usize,
        wanted: impl FnOnce(u32) -> bool,
    ) -> Option<Place> {
        let (list, class) = (&self.dirty[class], &CLASSES[class]);
        if list.is_empty() {
            return None;
        }
        let held = self.lock.lock_timeout()?;
        let index = list.pop_oldest(&held, class, wanted)?;
        let place = Place { class, index };
        self.counts
            .dirty_bytes
            .subtract(place.slot().touched.get() * SPACE.page_bytes());
        self.flush_delta();
        Some(place)
    }

    #[cfg(test)]
    pub(crate) fn hold(&self) -> LockGuard<'_> {
        self.lock.lock()
    }

    /// Resets the shard in the child of a fork: the lock's holder does not exist there,
    /// and a list may be half changed. The places are found again by their states.
    /// Zeros are not written, because that would copy the page.
    pub(crate) fn reset(&self) {
        self.lock.reset();
        self.dirty.iter().for_each(List::reset);
        if self.counts.dirty_bytes.get() > 0 {
            self.counts.dirty_bytes.set(0);
        }
        if self.counts.flushed_bytes.get() > 0 {
            self.counts.flushed_bytes.set(0);
        }
    }
}
