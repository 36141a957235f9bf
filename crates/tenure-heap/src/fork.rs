//! What the child of a fork finds.
//!
//! Nothing is waited for before a fork: a thread that holds a lock of another library
//! while it frees a block would wait for us, and we for it. So the child may find
//! locks held and lists half changed. It sets all locks free, forgets all lists, and
//! finds what is free again by the states of the places, class by class, when it
//! first looks for memory there.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tenure::Errno;

use crate::class::CLASSES;
use crate::shard::{self, Shard};
use crate::{keeper, limits, sys};

/// Of the process: one more in each child. The states of places have 24 bits for it.
static GENERATION: AtomicU32 = AtomicU32::new(0);
const MOST: u32 = (1 << 24) - 1;

#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Relaxed)
}

/// Has children of this process see to themselves.
pub(crate) fn look_after_children() -> Result<(), Errno> {
    sys::in_children(child)
}

unsafe extern "C" fn child() {
    GENERATION.store((generation() + 1) & MOST, Relaxed);
    shard::all().iter().for_each(Shard::reset);
    for class in &CLASSES {
        class.reset();
    }
    limits::reset();
    keeper::reset();
}
