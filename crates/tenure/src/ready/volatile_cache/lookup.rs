//! Looking values up.

use std::borrow::Borrow;
use std::ptr::NonNull;
use std::sync::Arc;

use super::entries::entry_hash;
use super::lookups::Lookups;
use super::pinned::{Found, Pinned};
use super::segment::{Contents, PinResult, Segment};
use super::shard::Shard;
use super::state::{Cause, Garbage, State};
use crate::verbs::volatile::NewlyPinned;

/// How often a look-up begins anew, because others have changed the value meanwhile.
pub(super) const MAX_TRIES: usize = 16;

impl<K: Eq> Shard<K> {
    /// Finds a value that has not expired.
    #[inline]
    pub(super) fn find<Q: Eq + ?Sized>(
        state: &mut State<K>,
        hash: u32,
        key: &Q,
        garbage: &mut Garbage<K>,
    ) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        let number = state.entries.find(hash, key)?;
        if state.is_expired(number, state.now()) {
            state.give_up(number, Cause::Removed, garbage);
            return None;
        }
        Some(number)
    }

    /// Pins the value of the key, and counts a hit. The caller counts a miss.
    #[inline]
    pub(super) fn get<Q: Eq + ?Sized>(
        &self,
        hash: u64,
        key: &Q,
        lookups: &Lookups,
    ) -> Option<Pinned>
    where
        K: Borrow<Q>,
    {
        let (found, newly_pinned) = self.get_place(entry_hash(hash), key)?;
        lookups.count_hit(newly_pinned);
        // SAFETY: `get_place` has pinned the segment, in which this is the place of a value.
        Some(unsafe { Pinned::of(found) })
    }

    /// Does what [`get`](Self::get) does; the caller has the pin, and counts it.
    #[inline]
    fn get_place<Q: Eq + ?Sized>(&self, hash: u32, key: &Q) -> Option<(Found, NewlyPinned)>
    where
        K: Borrow<Q>,
    {
        let state = self.lock_shared();
        let now = state.now();
        if let Some(entry) = state.entries.find_entry(hash, key) {
            let is_live = now.is_none_or(|now| !entry.is_expired(now));
            if is_live && let Some(record) = state.segments.get(entry.segment) {
                let found = entry.place(record);
                prefetch(found);
                // SAFETY: the record, and with it the segment, stays while the shard is locked.
                if let Some(pinned) = unsafe { record.pins.try_pin_uncounted() } {
                    entry.count_find();
                    drop(state);
                    return Some((found, pinned));
                }
            }
            drop(state);
            // Another type than this one returns: the compiler would have that function write
            // to the memory of the result, and keep it there on the fast path as well.
            let (value, segment) = self.get_slowly(hash, key)?;
            let found = Found {
                start: value.cast(),
                len: value.len(),
                segment,
            };
            return Some((found, NewlyPinned::NOTHING));
        }
        None
    }

    /// Pins a value that the kernel has been offered, or removes one that has expired.
    #[cold]
    fn get_slowly<Q: Eq + ?Sized>(
        &self,
        hash: u32,
        key: &Q,
    ) -> Option<(NonNull<[u8]>, NonNull<Segment>)>
    where
        K: Borrow<Q>,
    {
        let mut garbage = Garbage::new();
        for _ in 0..MAX_TRIES {
            let mut state = self.lock();
            let number = Self::find(&mut state, hash, key, &mut garbage)?;
            let (_, id, record) = state.place(number)?;
            let segment = (*record.segment).clone();
            drop(state);
            // Without the shard's lock, because pinning calls the kernel.
            let result = segment.pin();
            let mut state = self.lock();
            match result {
                PinResult::Pinned => {
                    let number = Self::find(&mut state, hash, key, &mut garbage);
                    let place = number.and_then(|number| state.place(number));
                    if let Some((found, _, now)) = place
                        && Arc::ptr_eq(&now.segment, &segment)
                    {
                        if let Some(entry) = state.entries.get(number?) {
                            entry.count_find();
                        }
                        drop(state);
                        let value = NonNull::slice_from_raw_parts(found.start, found.len);
                        return Some((value, found.segment));
                    }
                    drop(state);
                    // SAFETY: this thread has just pinned it.
                    unsafe { Segment::unpin(&segment) };
                }
                PinResult::Purged | PinResult::Stale => {
                    state.give_up_all(id, Arc::as_ptr(&segment), Cause::Purged, &mut garbage);
                    drop(state);
                    garbage.records.clear();
                    if result == PinResult::Purged {
                        // SAFETY: as above.
                        unsafe { Segment::unpin(&segment) };
                    }
                    return None;
                }
                PinResult::Failed => return None,
            }
        }
        None
    }

    pub(super) fn contains<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let mut garbage = Garbage::new();
        let mut state = self.lock();
        let number = Self::find(&mut state, entry_hash(hash), key, &mut garbage);
        let place = number.and_then(|number| state.place(number));
        let segment = place.map(|(_, _, record)| (*record.segment).clone());
        drop(state);
        segment.is_some_and(|segment| segment.contents() == Contents::Intact)
    }
}

/// Begins to load the value into the CPU's caches, a small one as a whole, and what the guard's
/// drop reads of the segment, while that is pinned.
#[inline]
fn prefetch(found: Found) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        const LINE: usize = 64;
        let load = |at: *const u8| {
            // SAFETY: the instruction faults at no address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
        };
        let line = |nth: usize| load(found.start.as_ptr().wrapping_add(nth * LINE));
        load(found.segment.as_ptr().cast());
        line(0);
        if found.len > LINE {
            (1..4).for_each(line);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = found;
}
