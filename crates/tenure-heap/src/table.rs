//! The addresses that belong to the heap, in units of 2 MiB.
//!
//! Each mapping of the heap covers whole units, and is never unmapped, so a flag for each
//! unit tells the heap's blocks from all others. There are two levels, because addresses
//! have 48 bits: a root of 32 KiB, and a leaf for each 64 GiB in use, of which one page
//! covers 8 GiB.

use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst,
};

use crate::sys;

/// The heap maps addresses in multiples of this, the size of a huge page.
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
static EARLY: AtomicUsize = AtomicUsize::new(usize::MAX / 2);

/// Sets the start of the range that jemalloc took by itself.
pub(crate) fn set_early(address: usize) {
    EARLY.store(address, Relaxed);
}

/// Returns whether the address lies in the heap.
#[inline]
pub(crate) fn owns(address: usize) -> bool {
    unit(address).is_some_and(|unit| unit.load(Relaxed) != 0)
        || address.wrapping_sub(EARLY.load(Relaxed)) < UNIT_BYTES
}

/// Records that the range, of whole units, belongs to the heap. Returns whether there is
/// memory for that.
pub(crate) fn add(at: usize, bytes: usize) -> bool {
    let units = || (at..at + bytes).step_by(UNIT_BYTES);
    if !units().all(has_leaf) {
        return false;
    }
    for address in units() {
        set(address, OWNED);
    }
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
    fn owns_of_address_past_48_bits_is_false() {
        assert!(!owns(usize::MAX) && !owns(1 << 48) && !owns(0));
        assert!(!add(1 << 48, UNIT_BYTES));
    }
}
