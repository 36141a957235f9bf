//! Pages that the decay thread frees for another thread.
//!
//! The kernel takes 0.1 to 0.3 s to free a gibibyte. A thread of the program that purges
//! a large range moves the page tables to other addresses instead, which takes
//! microseconds, and the decay thread unmaps those.

use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::Duration;

use crate::table::UNIT_BYTES;
use crate::{decay_thread, moves, sys};

/// A range that was moved away.
struct Slot {
    /// 0: free; CLAIMED: a thread is filling it; otherwise the range's length.
    bytes: AtomicUsize,
    at: AtomicUsize,
}

const CLAIMED: usize = 1;

/// The size that an entry two levels above the pages maps, where pages have 4 KiB.
const UPPER_UNIT_BYTES: usize = 1 << 30;

static SLOTS: [Slot; 64] = [const {
    Slot {
        bytes: AtomicUsize::new(0),
        at: AtomicUsize::new(0),
    }
}; 64];

/// Moves the pages away and leaves the range empty. Returns false if the kernel refuses or
/// too many ranges are pending; the range is as before.
///
/// # Safety
///
/// The range must lie in the heap, and nobody may use its contents.
pub(crate) unsafe fn move_away((at, bytes): sys::Part) -> bool {
    let can_move = || sys::can_move((at, bytes)) && sys::bytes_of_mapping((at, bytes)) == bytes;
    if !decay_thread::is_running() || !moves::may_try() || !can_move() {
        return false;
    }
    let free = |slot: &&Slot| {
        let claim = slot.bytes.compare_exchange(0, CLAIMED, Acquire, Relaxed);
        claim.is_ok()
    };
    let Some(slot) = SLOTS.iter().find(free) else {
        return false;
    };
    // SAFETY: nobody uses the contents, as the caller ensures.
    let Some(target) = (unsafe { to_elsewhere((at, bytes)) }) else {
        slot.bytes.store(0, Release);
        return false;
    };
    slot.at.store(target, Relaxed);
    slot.bytes.store(bytes, Release);
    decay_thread::run_now();
    true
}

/// # Safety
///
/// As for [`move_away`].
unsafe fn to_elsewhere((at, bytes): sys::Part) -> Option<usize> {
    // The same offset within what an entry of a higher page table maps, so that entries
    // move in place of page tables: 3 GiB take 0.06 ms in place of 0.6.
    let reserve = |unit: usize| {
        let whole = bytes.checked_add(unit)?;
        let start = sys::reserve(whole).ok()?;
        Some((start, whole, start + at.wrapping_sub(start) % unit))
    };
    let is_small = bytes < UPPER_UNIT_BYTES;
    let upper = (!is_small).then(|| reserve(UPPER_UNIT_BYTES)).flatten();
    let (start, whole, target) = upper.or_else(|| reserve(UNIT_BYTES))?;
    // SAFETY: the target was reserved above; the source's contents may go.
    if unsafe { sys::move_pages((at, bytes), target) }.is_err() {
        // The kernel may have unmapped a part of the target already, and another mapping
        // may lie there: the addresses stay reserved.
        moves::record_refusal();
        return None;
    }
    // A child has its own slots, which are empty.
    sys::keep_from_children((target, bytes));
    let end = target + bytes;
    for part in [(start, target - start), (end, start + whole - end)] {
        if part.1 > 0 {
            // SAFETY: reserved above, and no other code knows the addresses.
            unsafe { sys::unmap(part) };
        }
    }
    Some(target)
}

/// Frees what was moved away. Returns the bytes.
pub(crate) fn free_all() -> usize {
    let mut freed_bytes = 0;
    for slot in &SLOTS {
        let bytes = slot.bytes.load(Acquire);
        if bytes <= CLAIMED
            || slot
                .bytes
                .compare_exchange(bytes, CLAIMED, Acquire, Relaxed)
                .is_err()
        {
            continue;
        }
        // SAFETY: the claim makes the range this thread's, and no other code knows its
        // addresses.
        unsafe { sys::unmap_in_chunks((slot.at.load(Relaxed), bytes)) };
        slot.bytes.store(0, Release);
        freed_bytes += bytes;
    }
    freed_bytes
}

/// Waits until other threads have freed what they are freeing, but no longer than a second.
pub(crate) fn wait() {
    const PAUSE: Duration = Duration::from_millis(1);
    const MAX_PAUSES: usize = 1000;
    let is_claimed = |slot: &Slot| slot.bytes.load(Acquire) == CLAIMED;
    for _ in 0..MAX_PAUSES {
        if !SLOTS.iter().any(is_claimed) {
            return;
        }
        sys::sleep(PAUSE);
    }
}

/// Returns the bytes that wait to be freed.
pub(crate) fn bytes() -> usize {
    let bytes = SLOTS.iter().map(|slot| slot.bytes.load(Relaxed));
    bytes.filter(|bytes| *bytes > CLAIMED).sum()
}

/// Forgets the parent's ranges, which a child does not have.
pub(crate) fn reset() {
    for slot in &SLOTS {
        slot.bytes.store(0, Relaxed);
    }
}
