//! Memory of our own, beside the program's allocators: for tenure itself, and for who
//! asks while the next allocator is being looked up.
//!
//! A verb may be called in the middle of an allocator, by a signal handler that has
//! interrupted it, or by the allocator when it gives memory back. There it must not
//! ask that allocator for memory: it would wait for a lock that its own thread has, or
//! find lists half changed.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::{copy_nonoverlapping, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use dlmalloc::Dlmalloc;

use crate::sys;

/// What may be in use at a time: the largest is a list of all mappings of a process
/// that has as many as it may.
const ROOM_BYTES: usize = 64 << 20;

/// By how much the room in use grows.
const STEP_BYTES: usize = 256 << 10;

/// Each block has its length before it.
const HEAD_BYTES: usize = 16;

/// Where the room is. Before there is one, a place that no pointer of a program has.
static START: AtomicUsize = AtomicUsize::new(NOWHERE);
const NOWHERE: usize = 1 << (usize::BITS - 1);

/// How much of it has been taken into use.
static USED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Whether a block was taken from here.
#[inline]
pub(crate) fn owns(ptr: *const u8) -> bool {
    ptr.addr().wrapping_sub(START.load(Ordering::Relaxed)) < ROOM_BYTES
}

/// Whether there is room at all: not where addresses are limited (RLIMIT_AS).
pub(crate) fn has_room() -> bool {
    let block = allocate(1, 1);
    if block.is_null() {
        return false;
    }
    // SAFETY: just taken, and not used.
    unsafe { free(block) };
    true
}

/// Takes a block; null when there is no more room.
pub(crate) fn allocate(size: usize, align: usize) -> *mut u8 {
    let pad = align.max(HEAD_BYTES);
    let Some(whole) = size.checked_add(pad).filter(|whole| *whole <= ROOM_BYTES) else {
        return null_mut();
    };
    // SAFETY: `pad` is a power of two, as every alignment is.
    let start = HEAP.with(|heap| unsafe { heap.c_memalign(pad, whole) });
    if start.is_null() {
        return null_mut();
    }
    // SAFETY: the block has at least a head before what is handed out.
    unsafe {
        let block = start.add(pad);
        block
            .sub(HEAD_BYTES)
            .cast::<[usize; 2]>()
            .write([size, pad]);
        block
    }
}

/// How many bytes were asked for.
///
/// # Safety
///
/// [`allocate`] must have answered this, and it must not have been freed.
pub(crate) unsafe fn size_of_block(block: *const u8) -> usize {
    // SAFETY: handed on to the caller.
    let [size, _] = unsafe { head(block) };
    size
}

/// # Safety
///
/// As for [`size_of_block`].
unsafe fn head(block: *const u8) -> [usize; 2] {
    // SAFETY: `allocate` has written it there.
    unsafe { block.sub(HEAD_BYTES).cast::<[usize; 2]>().read() }
}

/// Gives a block back.
///
/// # Safety
///
/// As for [`size_of_block`], and nothing may use it any more.
pub(crate) unsafe fn free(block: *mut u8) {
    // SAFETY: handed on to the caller.
    let [_, pad] = unsafe { head(block) };
    // SAFETY: as `allocate` got it.
    HEAP.with(|heap| unsafe { heap.c_free(block.sub(pad)) });
}

/// Has forks wait until no other thread is in here, so that the child finds the heap
/// whole. To be called before anybody else registers such handlers: what they hold
/// they may hold while they ask for memory.
pub(crate) fn stay_whole_in_children() {
    unsafe extern "C" fn prepare() {
        HEAP.lock();
    }
    unsafe extern "C" fn after() {
        // SAFETY: `prepare` has run in this thread, or in the one that this is a
        // copy of.
        unsafe { HEAP.unlock() };
    }
    // SAFETY: this library is never unloaded. Without memory for it, early in the
    // process, there is nothing to be done.
    unsafe { libc::pthread_atfork(Some(prepare), Some(after), Some(after)) };
}

struct Heap {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    heap: UnsafeCell<Dlmalloc<Room>>,
}

// SAFETY: the heap is used by who has the lock.
unsafe impl Sync for Heap {}

static HEAP: Heap = Heap {
    lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
    heap: UnsafeCell::new(Dlmalloc::new_with_allocator(Room)),
};

impl Heap {
    fn with<T>(&self, work: impl FnOnce(&mut Dlmalloc<Room>) -> T) -> T {
        self.lock();
        // SAFETY: this thread has the lock, and `work` does not come back here.
        let answer = work(unsafe { &mut *self.heap.get() });
        // SAFETY: locked above.
        unsafe { self.unlock() };
        answer
    }

    fn lock(&self) {
        // SAFETY: a mutex that is never moved.
        unsafe { libc::pthread_mutex_lock(self.lock.get()) };
    }

    /// # Safety
    ///
    /// This thread must have the lock.
    unsafe fn unlock(&self) {
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_unlock(self.lock.get()) };
    }
}

/// The addresses reserved, of which more and more are taken into use.
struct Room;

// SAFETY: what `alloc` answers is fresh memory that nobody else is given; none of it
// goes back to the system.
unsafe impl dlmalloc::Allocator for Room {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let none = (null_mut(), 0, 0);
        let used = USED_BYTES.load(Ordering::Relaxed);
        let size = size.next_multiple_of(STEP_BYTES);
        if size > ROOM_BYTES - used {
            return none;
        }
        if START.load(Ordering::Relaxed) == NOWHERE {
            let Some(start) = sys::reserve(ROOM_BYTES) else {
                return none;
            };
            START.store(start.expose_provenance(), Ordering::Relaxed);
        }
        let start = START.load(Ordering::Relaxed) + used;
        let start = std::ptr::with_exposed_provenance_mut::<c_void>(start);
        // SAFETY: a part of the reservation that has not been in use.
        if !unsafe { sys::make_usable(start, size) } {
            return none;
        }
        USED_BYTES.store(used + size, Ordering::Relaxed);
        (start.cast(), size, 0)
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        tenure::page_size()
    }
}

/// What everything in Rust in this library asks for memory.
struct Ours;

// SAFETY: blocks are as long and as aligned as is asked for, and each is handed out
// once.
unsafe impl GlobalAlloc for Ours {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocate(layout.size(), layout.align())
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: handed on to the caller.
        unsafe { free(block) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let new = allocate(new_size, layout.align());
        if !new.is_null() {
            // SAFETY: two blocks of these lengths; the caller gives the old one up.
            unsafe {
                copy_nonoverlapping(block, new, layout.size().min(new_size));
                free(block);
            }
        }
        new
    }
}

#[cfg(not(test))]
#[global_allocator]
static OURS: Ours = Ours;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_apart_aligned_and_know_their_length() {
        assert!(!owns(std::ptr::null()));
        let mut blocks = Vec::new();
        for (size, align) in [(1, 1), (0, 16), (100, 64), (5000, 4096), (3 << 20, 8)] {
            let block = allocate(size, align);
            assert!(!block.is_null() && owns(block));
            assert!(block.addr().is_multiple_of(align.max(16)));
            // SAFETY: just taken, so long.
            unsafe {
                block.write_bytes(size as u8, size);
                assert_eq!(size_of_block(block), size);
            }
            blocks.push((block, size));
        }
        for &(block, size) in &blocks {
            // SAFETY: written above.
            let bytes = unsafe { std::slice::from_raw_parts(block, size) };
            assert!(bytes.iter().all(|byte| *byte == size as u8));
        }
        for (block, _) in blocks {
            // SAFETY: taken above, and not used any more.
            unsafe { free(block) };
        }
        assert!(allocate(ROOM_BYTES, 16).is_null());
        assert!(allocate(usize::MAX, 16).is_null());
        assert!(!owns((&raw const OUTSIDE).cast()));
        assert!(!owns(std::ptr::null()));
    }

    static OUTSIDE: u8 = 0;

    #[test]
    fn what_is_freed_is_used_again() {
        let most = USED_BYTES.load(Ordering::Relaxed);
        for size in (0..10_000).map(|round| round * 7919 % 100_000) {
            let block = allocate(size, 8);
            assert!(!block.is_null());
            // SAFETY: just taken.
            unsafe { free(block) };
        }
        assert!(USED_BYTES.load(Ordering::Relaxed) <= most + (8 << 20));
    }
}
