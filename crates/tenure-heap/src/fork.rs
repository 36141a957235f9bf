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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    use crate::classes::{bytes_of, class_of};
    use crate::shard;
    use crate::space::{Place, SPACE};
    use crate::{aging, allocate, allocate_zeroed, blunder, deallocate};

    /// Held by each test: one of them holds the heap's locks, and while one starts the
    /// heap the others get no blocks.
    static ALONE: Mutex<()> = Mutex::new(());

    /// Whether `body` is true in a child.
    fn is_true_in_child(body: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child does nothing but what is tested, and ends.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let is_true = body();
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!is_true)) };
        }
        let mut status = 0;
        // SAFETY: writes to a variable of this function.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        status == 0
    }

    /// Writes to memory that is nobody's, as a thread may that was quicker than a fork.
    fn write_at(address: usize) {
        let at = std::ptr::with_exposed_provenance_mut::<u8>(address);
        // SAFETY: a usable place, as the test has seen to.
        unsafe { at.write(7) };
    }

    #[test]
    fn a_child_does_not_wait_for_who_is_not_there() {
        const SIZE: usize = 900 << 10;
        let _alone = ALONE.lock().unwrap();
        let block = allocate(SIZE, 16);
        assert!(!block.is_null());
        // Whatever a thread of the parent may hold in this moment.
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
    fn a_child_takes_nothing_for_zeros_that_was_written_during_the_fork() {
        let _alone = ALONE.lock().unwrap();
        // A class that no other test uses.
        let number = class_of(1200 << 10);
        let (class, size) = (&CLASSES[number], bytes_of(number));
        let blocks: Vec<_> = (0..9).map(|_| allocate(size - (100 << 10), 16)).collect();
        let places: Vec<Place> = blocks
            .iter()
            .map(|&block| blunder::place_of(block, "a test"))
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
            .for_each(|place| assert!(aging::give_back(place) > 0));
        // In what was given back, behind what was touched, and where nobody has been.
        for place in places {
            write_at(place.address() + size - SPACE.page_bytes());
        }
        write_at(class.address(class.usable() - 1));
        assert!(is_true_in_child(|| {
            (0..20).all(|_| {
                let block = allocate_zeroed(size, 16);
                // SAFETY: a block of so many bytes.
                let bytes = unsafe { std::slice::from_raw_parts(block, size) };
                bytes.iter().all(|&byte| byte == 0)
            })
        }));
    }
}
