//! The addresses that belong to the heap, in units of 2 MiB.
//!
//! Each mapping of the heap covers whole units, and is never unmapped, so a flag for each
//! unit tells the heap's blocks from all others. There are two levels, because addresses
//! have 48 bits: a root of 32 KiB, and a leaf for each 64 GiB in use, of which one page
//! covers 8 GiB.

use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicUsize, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release, Ordering::SeqCst,
};

use crate::entry::WORDS;
use crate::sys;

/// The heap maps addresses in multiples of this, the size of a huge page where pages have
/// 4 KiB.
pub(crate) const UNIT_BYTES: usize = 2 << 20;

const LEAF_BYTES: usize = 64 << 30;
const LEAF_UNITS: usize = LEAF_BYTES / UNIT_BYTES;
const ROOT_ENTRIES: usize = (1 << 48) / LEAF_BYTES;

/// The unit belongs to the heap.
pub(crate) const OWNED: u8 = 1;
/// The unit was advised to have a huge page.
pub(crate) const HUGE: u8 = 2;
/// Page tables of a block that begins in the unit were moved there.
pub(crate) const MOVED: u8 = 4;
/// A large block begins where the unit does.
pub(crate) const LARGE: u8 = 8;
/// A large block that began where the unit does was freed, and none has begun there since.
pub(crate) const FREED: u8 = 16;

static ROOT: [AtomicPtr<AtomicU8>; ROOT_ENTRIES] =
    [const { AtomicPtr::new(null_mut()) }; ROOT_ENTRIES];

#[inline]
fn unit(address: usize) -> Option<&'static AtomicU8> {
    let leaf = ROOT.get(address / LEAF_BYTES)?.load(Acquire);
    if leaf.is_null() {
        return None;
    }
    let index = address % LEAF_BYTES / UNIT_BYTES;
    // SAFETY: a leaf has LEAF_UNITS entries, of which the index is one, and is never
    // unmapped.
    Some(unsafe { &*leaf.add(index) })
}

/// The start of a range of UNIT_BYTES that jemalloc took before the heap gave it addresses,
/// on whatever boundary; before it is known, an address that no mapping has.
static EARLY: AtomicUsize = AtomicUsize::new(NOWHERE);
const NOWHERE: usize = usize::MAX / 2;

/// Sets the start of the range that jemalloc took by itself.
pub(crate) fn set_early(address: usize) {
    EARLY.store(address, Relaxed);
}

/// Has the span begin with the range that has the first blocks, and with all that the heap has
/// mapped beside it. Called once.
pub(crate) fn start_span((first, bytes): sys::Part) {
    let (mut start, mut end) = (first, first + bytes);
    // Mappings that jemalloc made before it had hooks need not be aligned to units.
    if first.is_multiple_of(UNIT_BYTES) {
        while owns(start - UNIT_BYTES) {
            start -= UNIT_BYTES;
        }
        while owns(end) {
            end += UNIT_BYTES;
        }
    }
    WORDS.span.is_changing.store(false, Release);
    WORDS.span.add(start, end - start, true);
}

/// One range of the heap's addresses, so that most look-ups need two comparisons. The start
/// must be read before the end.
#[doc(hidden)]
#[derive(Debug)]
#[repr(C)]
pub struct Span {
    pub start: AtomicUsize,
    pub end: AtomicUsize,
    is_changing: AtomicBool,
}

impl Span {
    /// Nothing is added before [`start_span`].
    pub(crate) const fn before_start() -> Self {
        Self {
            is_changing: AtomicBool::new(true),
            ..Self::new()
        }
    }

    const fn new() -> Self {
        Self {
            start: AtomicUsize::new(usize::MAX),
            end: AtomicUsize::new(0),
            is_changing: AtomicBool::new(false),
        }
    }

    #[inline]
    fn contains(&self, address: usize) -> bool {
        address >= self.start.load(Acquire) && address < self.end.load(Acquire)
    }

    /// Adds addresses that lie right below the span, or has them be the span if they lie
    /// lower and are as many, and it may move.
    ///
    /// Both of the span's ends only ever fall, the upper one first. So a reader with the old
    /// start and a new end has an empty span, and one with a new start has the new end.
    fn add(&self, start: usize, bytes: usize, may_move: bool) {
        if self.is_changing.swap(true, Acquire) {
            // Look-ups find these addresses in the table.
            return;
        }
        let (old_start, old_end) = (self.start.load(Relaxed), self.end.load(Relaxed));
        let end = start + bytes;
        let is_larger = end < old_start && bytes >= old_end.saturating_sub(old_start);
        let moves = may_move && is_larger;
        if moves {
            self.end.store(end, Release);
        }
        if moves || end == old_start {
            self.start.store(start, Release);
        }
        self.is_changing.store(false, Release);
    }
}

/// Returns whether the address lies in the heap, for most addresses of large heaps: false says
/// nothing.
#[inline]
pub(crate) fn is_in_span(address: usize) -> bool {
    WORDS.span.contains(address)
}

/// Returns whether the address lies in the heap.
#[inline]
pub(crate) fn owns(address: usize) -> bool {
    is_in_span(address)
        || unit(address).is_some_and(|unit| unit.load(Relaxed) != 0)
        || address.wrapping_sub(EARLY.load(Relaxed)) < UNIT_BYTES
}

/// Records that the range, of whole units, belongs to the heap and will have blocks. Returns
/// whether there is memory for that.
pub(crate) fn add(at: usize, bytes: usize) -> bool {
    add_units(at, bytes, true)
}

/// Records that the range, of whole units, belongs to the heap, which needs it for itself. Returns
/// whether there is memory for that.
pub(crate) fn add_metadata(at: usize, bytes: usize) -> bool {
    add_units(at, bytes, false)
}

fn add_units(at: usize, bytes: usize, has_blocks: bool) -> bool {
    let units = || (at..at + bytes).step_by(UNIT_BYTES);
    if !units().all(has_leaf) {
        return false;
    }
    for address in units() {
        set(address, OWNED);
    }
    WORDS.span.add(at, bytes, has_blocks);
    true
}

fn has_leaf(address: usize) -> bool {
    let Some(entry) = ROOT.get(address / LEAF_BYTES) else {
        return false;
    };
    if !entry.load(Acquire).is_null() {
        return true;
    }
    let Ok(leaf) = sys::map(null_mut(), LEAF_UNITS) else {
        return false;
    };
    let leaf_pointer = std::ptr::with_exposed_provenance_mut(leaf);
    if entry
        .compare_exchange(null_mut(), leaf_pointer, SeqCst, SeqCst)
        .is_err()
    {
        // SAFETY: mapped above, and no other code knows the address.
        unsafe { sys::unmap((leaf, LEAF_UNITS)) };
    }
    true
}

/// Sets flags of the unit in which the address lies. Returns whether any was new.
pub(crate) fn set(address: usize, flags: u8) -> bool {
    unit(address).is_some_and(|unit| unit.fetch_or(flags, Relaxed) & flags != flags)
}

/// Clears flags of the unit in which the address lies. Returns whether any was set.
pub(crate) fn clear(address: usize, flags: u8) -> bool {
    unit(address).is_some_and(|unit| unit.fetch_and(!flags, Relaxed) & flags != 0)
}

/// Returns whether the unit in which the address lies has one of the flags.
pub(crate) fn has(address: usize, flags: u8) -> bool {
    unit(address).is_some_and(|unit| unit.load(Relaxed) & flags != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owns_is_true_for_added_units_only() {
        // Addresses that no mapping has: only their numbers are used.
        let at = (3 * LEAF_BYTES) - 2 * UNIT_BYTES;
        assert!(!owns(at));
        assert!(add(at, 4 * UNIT_BYTES));
        assert!(owns(at) && owns(at + 4 * UNIT_BYTES - 1));
        assert!(!owns(at - 1) && !owns(at + 4 * UNIT_BYTES));
        assert!(set(at, HUGE) && !set(at, HUGE) && has(at, HUGE));
        assert!(clear(at, HUGE) && !clear(at, HUGE) && owns(at));
    }

    #[test]
    fn span_grows_downwards_and_moves_to_larger_ranges() {
        let span = Span::new();
        let ends = || (span.start.load(Relaxed), span.end.load(Relaxed));
        assert!(!span.contains(0) && !span.contains(usize::MAX));
        span.add(100, 10, true);
        assert!(span.contains(100) && span.contains(109) && !span.contains(110));
        span.add(90, 10, false);
        assert_eq!(ends(), (90, 110));
        // Smaller, higher, without blocks, and while another thread changes it.
        span.add(50, 19, true);
        span.add(200, 50, true);
        span.add(50, 30, false);
        span.is_changing.store(true, Relaxed);
        span.add(80, 10, true);
        assert_eq!(ends(), (90, 110));
        span.is_changing.store(false, Relaxed);
        span.add(50, 20, true);
        assert_eq!(ends(), (50, 70));
    }

    #[test]
    fn owns_of_address_past_48_bits_is_false() {
        assert!(!owns(usize::MAX) && !owns(1 << 48) && !owns(0));
        assert!(!add(1 << 48, UNIT_BYTES));
    }
}
