//! Freed blocks of more than 64 KiB and up to 1 MiB that stay blocks until the decay thread's next
//! tick: few threads share a slot, whose block the next request of that size takes.
//!
//! jemalloc's threads keep no blocks of these sizes. It takes 0.4 µs to make its pages free and a
//! block again; a loop that copies 256 KiB into a block each time is 5 % slower by that.
//!
//! Only its address tells at first that a freed block may have such a size, and many small ones in
//! use have such addresses. So blocks are kept only while such sizes are requested often.

use std::cell::Cell;
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

/// Blocks are kept if as many are requested between two ticks, of a tenth of a second mostly.
const MIN_REQUESTS: usize = 100;

const MIN_BYTES: usize = late::MIN_COUNTED_BYTES + 1;
const MAX_BYTES: usize = 1 << 20;

/// Other threads' slots lie in other cache lines.
#[repr(align(128))]
struct Slot {
    /// The address of a block, with its size in units of [`ALIGN`] in the bits below; 0 if there
    /// is none.
    block: AtomicUsize,
    /// The requests since the last tick.
    requests: AtomicUsize,
}

const LOG_SLOTS: u32 = 4;
static SLOTS: [Slot; 1 << LOG_SLOTS] = [const {
    Slot {
        block: AtomicUsize::new(0),
        requests: AtomicUsize::new(0),
    }
}; 1 << LOG_SLOTS];

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

/// Takes the block that this thread or another of its slot has freed last, if it has the size. If
/// not, frees it: the next one is to lie where it was. Returns null then, or if there is none: the
/// caller requests one from jemalloc.
pub(crate) fn take(bytes: usize) -> *mut u8 {
    if bytes > MAX_BYTES {
        return std::ptr::null_mut();
    }
    let slot = slot();
    slot.requests.fetch_add(1, Relaxed);
    let block = slot.block.load(Relaxed);
    // jemalloc's sizes are a quarter of a power of two apart: the next smaller one is too small.
    let has_size = |block_bytes: usize| bytes <= block_bytes && bytes > block_bytes / 5 * 4;
    let exchange = || slot.block.compare_exchange(block, 0, AcqRel, Relaxed);
    if !has_size(bytes_of(block)) {
        free_in(slot);
    } else if exchange().is_ok() {
        return std::ptr::with_exposed_provenance_mut(block / ALIGN * ALIGN);
    }
    IS_KNOWN.set(true);
    std::ptr::null_mut()
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

/// Keeps a block that is freed, if it has one of the sizes and the decay thread runs, which
/// will free it. Returns the block that jemalloc is to free: this one, the one before, or null.
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
    let block = ptr.expose_provenance() | (bytes / ALIGN);
    let before = slot().block.swap(block, AcqRel);
    if before == block {
        misuse::abort(ptr, "free");
    }
    std::ptr::with_exposed_provenance_mut(before / ALIGN * ALIGN)
}

/// Frees all blocks that are kept, and has others be kept if there was use for that since the last
/// tick.
pub(crate) fn tick() {
    let requests = SLOTS.iter().map(|slot| slot.requests.swap(0, Relaxed));
    let is_open = requests.sum::<usize>() >= MIN_REQUESTS;
    WORDS
        .mask
        .store(if is_open { OPEN } else { CLOSED }, Relaxed);
    free_all();
}

/// Frees all blocks that are kept.
pub(crate) fn free_all() {
    SLOTS.iter().for_each(free_in);
}

fn free_in(slot: &Slot) {
    if slot.block.load(Relaxed) != 0 {
        let block = slot.block.swap(0, AcqRel) / ALIGN * ALIGN;
        // SAFETY: null, or a live block: the swap makes it this thread's.
        unsafe { je::free(std::ptr::with_exposed_provenance_mut(block)) };
    }
}

/// Returns how many blocks are kept, and their memory.
pub(crate) fn count() -> (usize, usize) {
    let blocks = SLOTS.iter().map(|slot| slot.block.load(Relaxed));
    let kept = blocks.filter(|block| *block != 0);
    kept.fold((0, 0), |(count, bytes), block| {
        (count + 1, bytes + bytes_of(block))
    })
}
