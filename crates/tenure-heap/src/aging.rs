//! What becomes of blocks that nobody has asked for again: warm, then lazily free,
//! then given back.

use std::sync::atomic::Ordering::Relaxed;

use crate::class::Class;
use crate::shard::{self, Shard};
use crate::space::{Place, SPACE};
use crate::stats::GIVEN_BACK;
use crate::{limits, seams, sys};

/// What a warm block is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Lazy,
    GivenBack,
}

/// Ages all blocks that have been warm for so many ticks. Returns how many bytes.
pub(crate) fn age_warm(ticks: u32, fate: Fate) -> usize {
    let mut bytes = 0;
    for_each_list(|shard, class| {
        while let Some(place) = shard.take_oldest(class, |stamp| age(stamp) >= ticks) {
            let more = match fate {
                Fate::Lazy => free_lazily(place),
                Fate::GivenBack => give_back(place),
            };
            // What cannot be given back is there again.
            if more == 0 {
                break;
            }
            bytes += more;
        }
        true
    });
    bytes
}

/// Gives warm blocks back until so much is free, the oldest first, more or less.
/// Returns how much is.
pub(crate) fn give_back_oldest(wanted_bytes: usize) -> usize {
    let mut bytes = 0;
    for ticks in [4, 1, 0] {
        for_each_list(|shard, class| {
            while bytes < wanted_bytes {
                let place = shard.take_oldest(class, |stamp| age(stamp) >= ticks);
                match place.map(give_back) {
                    None | Some(0) => return true,
                    Some(more) => bytes += more,
                }
            }
            false
        });
    }
    bytes
}

/// Gives back what has been lazily free for so many ticks.
pub(crate) fn age_lazy(ticks: u32) {
    for class in SPACE.classes() {
        while let Some(place) = oldest_lazy(class, ticks) {
            if give_back(place) == 0 {
                break;
            }
        }
    }
}

fn oldest_lazy(class: &'static Class, ticks: u32) -> Option<Place> {
    if class.lazy.is_empty() {
        return None;
    }
    let held = class.lock.lock();
    let index = class
        .lazy
        .pop_oldest(&held, class, |stamp| age(stamp) >= ticks)?;
    limits::lazy_taken(class.slot(index));
    Some(Place { class, index })
}

fn age(stamp: u32) -> u32 {
    limits::tick().wrapping_sub(stamp)
}

/// Looks at all lists of warm blocks, the largest first, until `look` says that it is
/// enough.
fn for_each_list(mut look: impl FnMut(&'static Shard, usize) -> bool) {
    for shard in shard::all() {
        if shard.tally.warm_bytes.get() == 0 {
            continue;
        }
        for class in (0..SPACE.classes().len()).rev() {
            if !look(shard, class) {
                return;
            }
        }
    }
}

/// Lets the kernel take the memory of a place in this thread's hands.
fn free_lazily(place: Place) -> usize {
    let slot = place.slot();
    let bytes = slot.touched.get() * SPACE.page_bytes();
    // SAFETY: nobody else has the place. What is locked is refused, and stays as it is.
    let _ = unsafe { sys::free_lazily((place.address(), bytes)) };
    slot.stamp.store(limits::tick(), Relaxed);
    place.class.put_lazy(&place.class.lock.lock(), place.index);
    bytes
}

/// Gives the memory of a place in this thread's hands back. Returns how much it was: 0
/// if it cannot be, and then the place is warm again.
pub(crate) fn give_back(place: Place) -> usize {
    let slot = place.slot();
    let bytes = slot.touched.get() * SPACE.page_bytes();
    if seams::has_any(slot) {
        seams::make_anew(place);
    }
    if slot.touched.get() > 0 {
        // SAFETY: nobody else has the place.
        if unsafe { sys::give_back((place.address(), bytes)) }.is_err() {
            shard::put_again(place);
            return 0;
        }
        slot.touched.set(0);
    }
    match place.class.lock.lock_soon() {
        Some(held) => place.class.put_given(&held, place.index),
        None => shard::put_again(place),
    }
    GIVEN_BACK.fetch_add(bytes, Relaxed);
    bytes
}
