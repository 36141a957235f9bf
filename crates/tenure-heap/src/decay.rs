//! The decay of freed blocks: dirty, then muzzy (MADV_FREE), then retained
//! (MADV_DONTNEED).

use std::sync::atomic::Ordering::Relaxed;

use crate::class::Class;
use crate::shard::{self, Shard};
use crate::space::{Place, SPACE};
use crate::stats::RETURNED_BYTES;
use crate::{limits, sys, vma_splits};

/// The state that a dirty block decays to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decay {
    ToMuzzy,
    ToRetained,
}

/// Decays all blocks that have been dirty for so many ticks. Returns how many bytes.
pub(crate) fn decay_dirty(ticks: u32, decay: Decay) -> usize {
    let mut bytes = 0;
    for_each_list(|shard, class| {
        while let Some(place) =
            shard.take_oldest(class, |timestamp| ticks_since(timestamp) >= ticks)
        {
            let more = match decay {
                Decay::ToMuzzy => free_lazily(place),
                Decay::ToRetained => return_to_kernel(place),
            };
            // A block that could not be returned is dirty again.
            if more == 0 {
                break;
            }
            bytes += more;
        }
        true
    });
    bytes
}

/// Returns dirty blocks to the kernel until `wanted_bytes` are freed, roughly the
/// oldest first. Returns how many bytes were freed.
pub(crate) fn return_oldest(wanted_bytes: usize) -> usize {
    let mut bytes = 0;
    for ticks in [4, 1, 0] {
        for_each_list(|shard, class| {
            while bytes < wanted_bytes {
                let place = shard.take_oldest(class, |timestamp| ticks_since(timestamp) >= ticks);
                match place.map(return_to_kernel) {
                    None | Some(0) => return true,
                    Some(more) => bytes += more,
                }
            }
            false
        });
    }
    bytes
}

/// Returns blocks that have been muzzy for so many ticks to the kernel.
pub(crate) fn decay_muzzy(ticks: u32) {
    for class in SPACE.classes() {
        while let Some(place) = oldest_muzzy(class, ticks) {
            if return_to_kernel(place) == 0 {
                break;
            }
        }
    }
}

fn oldest_muzzy(class: &'static Class, ticks: u32) -> Option<Place> {
    if class.muzzy.is_empty() {
        return None;
    }
    let held = class.lock.lock();
    let index = class
        .muzzy
        .pop_oldest(&held, class, |timestamp| ticks_since(timestamp) >= ticks)?;
    limits::subtract_muzzy(class.slot(index));
    Some(Place { class, index })
}

fn ticks_since(timestamp: u32) -> u32 {
    limits::tick().wrapping_sub(timestamp)
}

/// Visits the lists of dirty blocks, the largest class first, until `visit` returns
/// false.
fn for_each_list(mut visit: impl FnMut(&'static Shard, usize) -> bool) {
    for shard in shard::all() {
        if shard.counts.dirty_bytes.get() == 0 {
            continue;
        }
        for class in (0..SPACE.classes().len()).rev() {
            if !visit(shard, class) {
                return;
            }
        }
    }
}

/// Makes the memory of a claimed place muzzy (MADV_FREE).
fn free_lazily(place: Place) -> usize {
    let slot = place.slot();
    let bytes = slot.touched.get() * SPACE.page_bytes();
    // SAFETY: this thread has claimed the place. The kernel refuses locked memory,
    // which stays as it is.
    let _ = unsafe { sys::free_lazily((place.address(), bytes)) };
    slot.timestamp.store(limits::tick(), Relaxed);
    place.class.put_muzzy(&place.class.lock.lock(), place.index);
    bytes
}

/// Returns the memory of a claimed place to the kernel (MADV_DONTNEED). Returns how
/// many bytes; on failure 0, and the place is dirty again.
pub(crate) fn return_to_kernel(place: Place) -> usize {
    let slot = place.slot();
    let bytes = slot.touched.get() * SPACE.page_bytes();
    if vma_splits::has_any(slot) {
        vma_splits::remap(place);
    }
    if slot.touched.get() > 0 {
        // SAFETY: this thread has claimed the place.
        if unsafe { sys::discard((place.address(), bytes)) }.is_err() {
            shard::put_back(place);
            return 0;
        }
        slot.touched.set(0);
    }
    match place.class.lock.lock_timeout() {
        Some(held) => place.class.put_retained(&held, place.index),
        None => shard::put_back(place),
    }
    RETURNED_BYTES.fetch_add(bytes, Relaxed);
    bytes
}
