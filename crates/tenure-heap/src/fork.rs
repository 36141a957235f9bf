//! Fork handling.
//!
//! A fork does not wait for the heap's locks: a thread that holds a lock of another
//! library while it frees a block would wait for the heap, and the heap for it. The
//! child may therefore find locks held and lists half changed. It resets all locks,
//! drops all lists, and rebuilds each class's lists from the places' states when it
//! first looks for memory there.
//!
//! A fork handler that was registered before the heap's runs before it, and may allocate
//! and free. So the child's first use of the heap notices by itself that it is in a child.

use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use tenure::Errno;

use crate::class::CLASSES;
use crate::shard::{self, Shard};
use crate::{decay_thread, limits, sys};

/// The process's generation plus one, or 0 in a child that has not reset the heap: in a
/// page that the kernel wipes on fork.
static GENERATION: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const FALLBACK).cast_mut());

/// In place of the page where the kernel wipes none (before Linux 4.14): there the handler
/// resets the heap, and not the first use.
static FALLBACK: AtomicU32 = AtomicU32::new(1);

/// The generation of the process that last reset the heap, one higher in each child. The
/// places' states have 24 bits for it.
static LAST_GENERATION: AtomicU32 = AtomicU32::new(0);
const MAX_GENERATION: u32 = (1 << 24) - 1;

fn word() -> &'static AtomicU32 {
    // SAFETY: it refers to a static, or to a page that is never unmapped and that children
    // have, too.
    unsafe { &*GENERATION.load(Acquire) }
}

/// Returns the process's generation. In a child the first call resets the heap, so it
/// comes before any use of a lock or a list.
#[inline]
pub(crate) fn generation() -> u32 {
    match word().load(Relaxed) {
        0 => reset_in_child(),
        more => more - 1,
    }
}

/// Has children reset the heap. Called by one thread at a time.
pub(crate) fn start() -> Result<(), Errno> {
    // A start that failed later on has been here.
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    if IS_DONE.load(Relaxed) {
        return Ok(());
    }
    let word = sys::wiped_on_fork()?;
    if !word.is_null() {
        // SAFETY: the page has just been mapped for reading and writing.
        unsafe { &*word }.store(1, Relaxed);
        GENERATION.store(word, Release);
    }
    sys::atfork_child(in_child)?;
    IS_DONE.store(true, Relaxed);
    Ok(())
}

unsafe extern "C" fn in_child() {
    FALLBACK.store(0, Relaxed);
    generation();
}

/// A signal handler that allocates meanwhile resets the heap, too, which does no harm.
#[cold]
fn reset_in_child() -> u32 {
    let generation = (LAST_GENERATION.load(Relaxed) + 1) & MAX_GENERATION;
    shard::all().iter().for_each(Shard::reset);
    for class in &CLASSES {
        class.reset();
    }
    limits::reset();
    decay_thread::reset();
    LAST_GENERATION.store(generation, Relaxed);
    word().store(generation + 1, Relaxed);
    generation
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    use crate::classes::{bytes_of, class_of};
    use crate::shard;
    use crate::space::{Place, SPACE};
    use crate::{allocate, allocate_zeroed, deallocate, decay, misuse};

    /// Runs before the heap registers its handler.
    #[used]
    #[unsafe(link_section = ".init_array.00100")]
    static AT_LOAD: extern "C" fn() = {
        extern "C" fn register() {
            sys::atfork_child(early_handler).unwrap();
        }
        register
    };

    /// The block that the early handler frees in a child.
    static EARLY_BLOCK: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

    unsafe extern "C" fn early_handler() {
        let block = EARLY_BLOCK.load(Relaxed);
        if !block.is_null() {
            // SAFETY: `alarm` has no preconditions; the test's own block.
            unsafe {
                libc::alarm(20);
                deallocate(block);
            }
            let other = allocate(900 << 10, 16);
            assert!(!other.is_null());
            // SAFETY: a block that nobody uses afterwards.
            unsafe { deallocate(other) };
        }
    }

    #[test]
    fn handler_before_the_heaps_allocates_although_locks_were_held() {
        let _alone = ALONE.lock().unwrap();
        let blocks = [(); 9].map(|()| allocate(900 << 10, 16));
        let _shards: Vec<_> = shard::all().iter().map(Shard::hold).collect();
        EARLY_BLOCK.store(blocks[0], Relaxed);
        let generation_before = generation();
        let is_true = is_true_in_child(|| generation() == generation_before + 1);
        EARLY_BLOCK.store(std::ptr::null_mut(), Relaxed);
        assert!(is_true);
    }

    /// Serialises the tests: one of them holds the heap's locks, and while one starts
    /// the heap the others get no blocks.
    static ALONE: Mutex<()> = Mutex::new(());

    /// Returns whether `body` is true in a child.
    fn is_true_in_child(body: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls `body` and `_exit` only.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let is_true = body();
            // SAFETY: `_exit` has no preconditions.
            unsafe { libc::_exit(i32::from(!is_true)) };
        }
        let mut status = 0;
        // SAFETY: `status` is a local variable.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        status == 0
    }

    /// Writes to unused memory, as a thread may that races with a fork.
    fn write_at(address: usize) {
        let at = std::ptr::with_exposed_provenance_mut::<u8>(address);
        // SAFETY: the callers pass addresses of usable places.
        unsafe { at.write(7) };
    }

    #[test]
    fn child_allocates_although_parent_locks_were_held() {
        const SIZE: usize = 900 << 10;
        let _alone = ALONE.lock().unwrap();
        let block = allocate(SIZE, 16);
        assert!(!block.is_null());
        // Every lock that a thread of the parent may hold at this moment.
        let class = &CLASSES[class_of(SIZE)];
        let _class = class.lock.lock();
        let _shards: Vec<_> = shard::all().iter().map(Shard::hold).collect();
        assert!(is_true_in_child(|| {
            let other = allocate(SIZE, 16);
            if other.is_null() {
                return false;
            }
            // SAFETY: two blocks that nobody uses afterwards.
            unsafe {
                other.write(1);
                deallocate(other);
                deallocate(block);
            }
            true
        }));
    }

    #[test]
    fn calloc_in_child_after_racing_writes_is_zero() {
        let _alone = ALONE.lock().unwrap();
        // No other test uses this class.
        let number = class_of(1200 << 10);
        let (class, size) = (&CLASSES[number], bytes_of(number));
        let blocks: Vec<_> = (0..9).map(|_| allocate(size - (100 << 10), 16)).collect();
        let places: Vec<Place> = blocks
            .iter()
            .map(|&block| misuse::place_of(block, "a test"))
            .collect();
        // SAFETY: blocks that nobody uses.
        blocks
            .iter()
            .for_each(|&block| unsafe { deallocate(block) });
        let taken: Vec<_> = (0..4)
            .filter_map(|_| shard::take(class, number, 1))
            .collect();
        taken
            .into_iter()
            .for_each(|place| assert!(decay::return_to_kernel(place) > 0));
        // In retained places, behind the touched pages, and in a place that was never
        // used.
        for place in places {
            write_at(place.address() + size - SPACE.page_bytes());
        }
        write_at(class.address(class.usable() - 1));
        assert!(is_true_in_child(|| {
            (0..20).all(|_| {
                let block = allocate_zeroed(size, 16);
                // SAFETY: a block of `size` bytes.
                let bytes = unsafe { std::slice::from_raw_parts(block, size) };
                bytes.iter().all(|&byte| byte == 0)
            })
        }));
    }
}
