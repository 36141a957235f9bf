//! Freed blocks of more than 64 KiB and up to 1 MiB that stay blocks while such are requested, and
//! until the decay thread's next tick: few threads share a slot, which has one block of each size
//! class up to 256 KiB, and one of any size.
//!
//! jemalloc's threads keep no blocks of these sizes. It takes 0.4 µs to make its pages free and a
//! block again; a loop that copies 256 KiB into a block each time is 5 % slower by that, and one
//! that replaces random blocks of 1 to 256 KiB 1.2 times as slow.
//!
//! Only its address tells at first that a freed block may have such a size, and many small ones in
//! use have such addresses. So blocks are kept only while such sizes are requested often. Requests
//! are rounded up to a class then, as jemalloc does not: blocks of one class suit all of its sizes.
//!
//! A block that was requested last and is freed is in the CPU's caches: a request of another size
//! is to have its memory, not a block that was freed longer ago.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Relaxed, Ordering::SeqCst};

use tikv_jemalloc_sys as je;

use crate::entry::WORDS;
use crate::table::UNIT_BYTES;
use crate::{decay_thread, late, misuse, sys};

/// Blocks of these sizes begin on a multiple of this; where jemalloc's pages have 4 KiB, half of
/// them do.
const ALIGN: usize = 8 << 10;

/// Masks of addresses: a block is looked at when it is freed if its address has none of the bits.
/// Large ones always are, and all while the decay thread is wanted.
pub(crate) const CLOSED: u32 = (UNIT_BYTES - 1) as u32;
const OPEN: u32 = (ALIGN - 1) as u32;

/// Blocks are kept if so many are requested between two ticks, of a tenth of a second mostly.
const MIN_REQUESTS: usize = 100;

const MIN_BYTES: usize = late::MIN_COUNTED_BYTES + 1;
const MAX_BYTES: usize = 1 << 20;

/// Blocks of up to so many bytes have classes, a quarter of a power of two apart: 80 KiB to this.
const MAX_CLASS_BYTES: usize = 256 << 10;
const CLASSES: usize = 8;

/// Returns the index of the last class that has at most so many bytes, if there is one.
fn class_below(bytes: usize) -> Option<usize> {
    let shift = MIN_BYTES.ilog2() - 2;
    let doublings = bytes.ilog2() - MIN_BYTES.ilog2();
    let quarters = (bytes >> (shift + doublings)) + 4 * doublings as usize;
    quarters.checked_sub(5)
}

/// Returns the index of the first class that has so many bytes or more, and its bytes.
fn class_above(bytes: usize) -> (usize, usize) {
    let index = class_below(bytes - 1).map_or(0, |below| below + 1);
    let shift = (bytes - 1).ilog2() - 2;
    (index, bytes.next_multiple_of(1 << shift))
}

/// Other threads' slots lie in other cache lines.
#[repr(align(128))]
struct Slot {
    /// A block of each class: its address, with its size in units of [`ALIGN`] in the bits below,
    /// or 0 if there is none.
    classes: [AtomicUsize; CLASSES],
    /// A block of any size, which was freed when it was the last requested one, or is larger.
    warm: AtomicUsize,
    /// The address of the block that was requested last.
    last: AtomicUsize,
    /// The requests since the last tick, but for some that two threads have counted at once.
    requests: AtomicUsize,
}

impl Slot {
    const fn new() -> Self {
        Self {
            classes: [const { AtomicUsize::new(0) }; CLASSES],
            warm: AtomicUsize::new(0),
            last: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
        }
    }

    /// The memory of its blocks.
    fn bytes(&self) -> usize {
        self.places()
            .map(|place| bytes_of(place.load(Relaxed)))
            .sum()
    }

    /// All blocks that may be kept.
    fn places(&self) -> impl Iterator<Item = &AtomicUsize> {
        self.classes.iter().chain([&self.warm])
    }
}

const LOG_SLOTS: u32 = 4;
static SLOTS: [Slot; 1 << LOG_SLOTS] = [const { Slot::new() }; 1 << LOG_SLOTS];

thread_local! {
    /// Whether this thread has requested a block of these sizes from jemalloc. It does not get to
    /// know a thread by freeing blocks for it, but would by telling a block's size: if it did so
    /// when the thread's last destructors run, it would not forget the thread.
    static IS_KNOWN: Cell<bool> = const { Cell::new(false) };
}

/// The slot of the calling thread.
fn slot() -> &'static Slot {
    const ODD: usize = 0x9e37_79b9_7f4a_7c15;
    let hash = sys::thread().wrapping_mul(ODD);
    &SLOTS[hash >> (usize::BITS - LOG_SLOTS)]
}

fn bytes_of(block: usize) -> usize {
    block % ALIGN * ALIGN
}

/// Takes a block of this size that this thread or another of its slot has freed. If there is none,
/// frees the warm one: the next one is to lie where it was.
///
/// # Errors
///
/// There is no such block: the caller requests so many bytes from jemalloc, and says what it got.
pub(crate) fn take(bytes: usize) -> Result<NonNull<u8>, usize> {
    if !(MIN_BYTES..=MAX_BYTES).contains(&bytes) {
        return Err(bytes);
    }
    let slot = slot();
    slot.requests
        .store(slot.requests.load(Relaxed) + 1, Relaxed);
    if WORDS.mask.load(Relaxed) == CLOSED {
        return Err(bytes);
    }
    let mut requested_bytes = bytes;
    // jemalloc's sizes are a quarter of a power of two apart at most: the next smaller one is too
    // small.
    let mut block = take_from(&slot.warm, |has| bytes <= has && bytes > has / 5 * 4);
    if bytes <= MAX_CLASS_BYTES {
        // jemalloc's pages may be larger than what lies between two classes.
        // SAFETY: the size is not 0.
        let usable_bytes = unsafe { je::nallocx(bytes, 0) };
        let (class, class_bytes) = class_above(usable_bytes);
        requested_bytes = class_bytes;
        block = block.or_else(|| take_from(&slot.classes[class], |_| true));
    }
    match block {
        Some(block) => {
            slot.last.store(block.addr().get(), Relaxed);
            Ok(block)
        }
        None => {
            free_in(&slot.warm);
            Err(requested_bytes)
        }
    }
}

/// Takes the block, if there is one and it has a size that is wanted.
fn take_from(place: &AtomicUsize, is_wanted: impl Fn(usize) -> bool) -> Option<NonNull<u8>> {
    let block = place.load(Relaxed);
    let may_take = block != 0 && is_wanted(bytes_of(block));
    if !may_take || place.compare_exchange(block, 0, AcqRel, Relaxed).is_err() {
        return None;
    }
    let block = block / ALIGN * ALIGN;
    NonNull::new(std::ptr::with_exposed_provenance_mut(block))
}

/// Records a block that the calling thread has requested from jemalloc.
pub(crate) fn note_requested(block: *const u8) {
    IS_KNOWN.set(true);
    slot().last.store(block.addr(), Relaxed);
}

/// Has every block be looked at when it is freed, until a tick at the latest, or only large ones.
pub(crate) fn look_at_all(is_wanted: bool) {
    WORDS.mask.store(if is_wanted { 0 } else { CLOSED }, SeqCst);
}

/// Returns whether the block is to be looked at when it is freed.
#[inline]
pub(crate) fn is_looked_at(ptr: *const u8) -> bool {
    ptr.addr() & WORDS.mask.load(Relaxed) as usize == 0
}

/// Keeps a block that is freed, if it has one of the sizes, the decay thread runs, which will free
/// it, and the slots would have no more than may be dirty: threads that need memory one after
/// another would otherwise have it all at once. Returns the block that jemalloc is to free: this
/// one, the one before, or null.
///
/// # Safety
///
/// `ptr` must be a live block of the heap, which the caller gives up.
pub(crate) unsafe fn put(ptr: *mut u8) -> *mut u8 {
    if !ptr.addr().is_multiple_of(ALIGN) || !IS_KNOWN.get() || !decay_thread::is_running() {
        return ptr;
    }
    // SAFETY: a live block, as the caller ensures.
    let bytes = unsafe { je::malloc_usable_size(ptr.cast()) };
    if !(MIN_BYTES..=MAX_BYTES).contains(&bytes) {
        return ptr;
    }
    let slot = slot();
    let place = if bytes > MAX_CLASS_BYTES || slot.last.load(Relaxed) == ptr.addr() {
        &slot.warm
    } else if let Some(class) = class_below(bytes) {
        &slot.classes[class]
    } else {
        return ptr;
    };
    // Another thread of this slot may change it meanwhile.
    let other_bytes = slot.bytes().saturating_sub(bytes_of(place.load(Relaxed)));
    if bytes + other_bytes > decay_thread::max_dirty_bytes() / SLOTS.len() {
        return ptr;
    }
    let block = ptr.expose_provenance() | (bytes / ALIGN);
    let before = place.swap(block, AcqRel);
    if before == block {
        misuse::abort(ptr, "free");
    }
    std::ptr::with_exposed_provenance_mut(before / ALIGN * ALIGN)
}

/// Has blocks be kept if there was use for that since the last tick. Frees those of threads that
/// have requested none since then, and all if there is no use or they have more than `max_bytes`.
pub(crate) fn tick(max_bytes: usize) {
    let requests = SLOTS.each_ref().map(|slot| slot.requests.swap(0, Relaxed));
    let is_open = requests.iter().sum::<usize>() >= MIN_REQUESTS;
    let mask = if is_open { OPEN } else { CLOSED };
    WORDS.mask.store(mask, Relaxed);
    if !is_open || count().1 > max_bytes {
        return free_all();
    }
    let idle = SLOTS
        .iter()
        .zip(requests)
        .filter(|(_, of_slot)| *of_slot == 0);
    idle.flat_map(|(slot, _)| slot.places()).for_each(free_in);
}

/// Frees all blocks that are kept.
pub(crate) fn free_all() {
    places().for_each(free_in);
}

fn places() -> impl Iterator<Item = &'static AtomicUsize> {
    SLOTS.iter().flat_map(Slot::places)
}

fn free_in(place: &AtomicUsize) {
    if place.load(Relaxed) != 0 {
        let block = place.swap(0, AcqRel) / ALIGN * ALIGN;
        // SAFETY: null, or a live block: the swap makes it this thread's.
        unsafe { je::free(std::ptr::with_exposed_provenance_mut(block)) };
    }
}

/// Returns how many blocks are kept, and their memory.
pub(crate) fn count() -> (usize, usize) {
    let blocks = places().map(|place| place.load(Relaxed));
    let kept = blocks.filter(|block| *block != 0);
    kept.fold((0, 0), |(count, bytes), block| {
        (count + 1, bytes + bytes_of(block))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_a_quarter_of_a_power_of_two_apart() {
        let class_bytes = [80, 96, 112, 128, 160, 192, 224, 256].map(|kib| kib << 10);
        assert_eq!(class_bytes.last(), Some(&MAX_CLASS_BYTES));
        assert_eq!(class_below(MIN_BYTES), None);
        assert_eq!(class_below((80 << 10) - 1), None);
        let mut larger_than = MIN_BYTES - 1;
        for (index, bytes) in class_bytes.into_iter().enumerate() {
            assert_eq!(class_below(bytes), Some(index));
            assert_eq!(class_above(larger_than + 1), (index, bytes));
            assert_eq!(class_above(bytes), (index, bytes));
            assert_eq!(class_below(bytes + 1), Some(index));
            larger_than = bytes;
        }
    }
}
