//! How much may be warm, and how much room there is for what is new.
//!
//! Without swap nothing but us can take the memory of warm blocks: a program that
//! meets its limit while some are kept would be killed. The keeper reads the room, ten
//! times a second while anything is warm. In between whoever takes new memory counts
//! it, and gives warm blocks back himself where the room gets short.

use std::sync::atomic::{AtomicIsize, AtomicU32, AtomicUsize, Ordering::Relaxed};

use tenure::{Room, RoomBound};

use crate::options::HeapOptions;
use crate::slot::Slot;
use crate::space::SPACE;
use crate::{aging, keeper, sys};

/// Less than this nobody looks after: there may be no keeper yet.
const NEGLIGIBLE_BYTES: usize = 4 << 20;

/// What may be warm until the room has been read.
const AT_FIRST_BYTES: usize = 8 << 20;

/// The keeper's clock.
static TICK: AtomicU32 = AtomicU32::new(0);

/// The memory of all warm blocks, but for what shards have not told yet. Away from what
/// is read often and seldom changes.
static WARM: Apart = Apart(AtomicUsize::new(0));

#[repr(align(128))]
struct Apart(AtomicUsize);

impl std::ops::Deref for Apart {
    type Target = AtomicUsize;

    fn deref(&self) -> &AtomicUsize {
        &self.0
    }
}

/// A shard tells of changes of so many bytes: all that is not told is half of what may
/// be warm, at most.
static TOLD: AtomicUsize = AtomicUsize::new(0);
const MOST_TOLD_BYTES: usize = 8 << 20;

/// The memory of all places that are lazily free.
static LAZY: AtomicUsize = AtomicUsize::new(0);

/// What the options allow to be warm.
static MOST_WARM: AtomicUsize = AtomicUsize::new(0);

/// With more than this warm, the keeper gives back what was warm longest.
static SOFT: AtomicUsize = AtomicUsize::new(AT_FIRST_BYTES);

/// With more than this, whoever frees a block gives some back himself.
static HARD: AtomicUsize = AtomicUsize::new(AT_FIRST_BYTES);

/// How much new memory can be taken, as far as is known; 0 before anybody has read.
static ROOM: AtomicIsize = AtomicIsize::new(0);

/// With less room than this nothing new is taken while anything is warm.
static MARGIN: AtomicIsize = AtomicIsize::new(0);

/// Sets the limits as far as they can be known without a file to be read.
pub(crate) fn start(options: &HeapOptions) {
    MOST_WARM.store(options.warm_bytes, Relaxed);
    set_soft(AT_FIRST_BYTES.min(options.warm_bytes));
    HARD.store(sys::machine_bytes() / 4, Relaxed);
}

fn set_soft(bytes: usize) {
    SOFT.store(bytes, Relaxed);
    let told_bytes = bytes / (2 * sys::cpus());
    TOLD.store(told_bytes.min(MOST_TOLD_BYTES), Relaxed);
}

/// Of what changes a shard has to tell.
#[inline]
pub(crate) fn told_bytes() -> usize {
    TOLD.load(Relaxed)
}

#[inline]
pub(crate) fn tick() -> u32 {
    TICK.load(Relaxed)
}

pub(crate) fn advance() {
    TICK.fetch_add(1, Relaxed);
}

/// What may be warm, in bytes, before some is given back at once.
pub(crate) fn most_warm_bytes() -> usize {
    SOFT.load(Relaxed)
}

/// Notes that so many bytes more (or, wrapping, less) are warm.
pub(crate) fn warm_changed(by: usize) {
    WARM.fetch_add(by, Relaxed);
}

pub(crate) fn lazy_bytes() -> usize {
    LAZY.load(Relaxed)
}

pub(crate) fn lazy_put(slot: &Slot) {
    LAZY.fetch_add(slot.touched.get() * SPACE.page_bytes(), Relaxed);
}

pub(crate) fn lazy_taken(slot: &Slot) {
    LAZY.fetch_sub(slot.touched.get() * SPACE.page_bytes(), Relaxed);
}

/// After a block was freed: wakes the keeper if there is something to be kept an eye
/// on, and gives back what is far too much.
#[cold]
pub(crate) fn keep() {
    let warm = WARM.load(Relaxed);
    if warm < NEGLIGIBLE_BYTES {
        return;
    }
    if !keeper::is_wanted(warm > SOFT.load(Relaxed)) {
        // Nobody else will do it.
        HARD.store(SOFT.load(Relaxed), Relaxed);
    }
    let hard = HARD.load(Relaxed);
    if warm > hard {
        room_made(aging::give_back_oldest(warm - hard));
    }
}

/// Before so much new memory is taken: gives warm blocks back if there is little room
/// left. The little that nobody looks after, and for which nobody reads the room, stays
/// warm.
#[cold]
pub(crate) fn make_room(bytes: usize) {
    // No block is half as large as all addresses.
    let bytes = bytes as isize;
    let left = ROOM.fetch_sub(bytes, Relaxed) - bytes;
    let missing = MARGIN.load(Relaxed) - left;
    if missing > 0 && !is_negligible() {
        room_made(aging::give_back_oldest(missing.unsigned_abs()));
    }
}

fn room_made(bytes: usize) {
    ROOM.fetch_add(bytes as isize, Relaxed);
}

/// What is warm beyond the limit.
pub(crate) fn excess_bytes() -> usize {
    WARM.load(Relaxed).saturating_sub(SOFT.load(Relaxed))
}

/// Reads the room and sets the limits by it. For the keeper.
pub(crate) fn read_room() {
    let Ok(room) = Room::at_least() else {
        return forget_room();
    };
    let whole = match room.bound {
        RoomBound::Cgroup { limit_bytes, .. } => limit_bytes,
        _ => room.bytes,
    };
    let soft = MOST_WARM.load(Relaxed).min(room.bytes / 8);
    set_soft(soft);
    HARD.store(soft + whole / 4, Relaxed);
    MARGIN.store((whole / 8).min(512 << 20) as isize, Relaxed);
    ROOM.store(isize::try_from(room.bytes).unwrap_or(isize::MAX), Relaxed);
}

/// Nobody reads it from now on.
pub(crate) fn forget_room() {
    ROOM.store(0, Relaxed);
}

/// In the child of a fork nothing is warm, and nobody has found what is lazily free.
pub(crate) fn reset() {
    WARM.store(0, Relaxed);
    LAZY.store(0, Relaxed);
    forget_room();
}

/// Whether so little is warm that nobody needs to look after it.
pub(crate) fn is_negligible() -> bool {
    WARM.load(Relaxed) < NEGLIGIBLE_BYTES
}
