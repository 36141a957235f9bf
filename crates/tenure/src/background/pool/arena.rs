//! The addresses of the pool.

use super::BLOCK_BYTES;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{
    Advice, DestructiveAdvice, LockState, advise, advise_destructive, discard_contents, lock_state,
};
use crate::ground::sys::registration::unmerge;
use crate::ground::sys::zero::write_zeros;
use crate::ground::sys::{Errno, lock, map, page_size, pmd_bytes, table_bytes};

/// One mapping, with a place for each block.
///
/// It begins with a page that never moves and has been written: the kernel merges the parts
/// into which registrations split the mapping only while they share what that page has given
/// them (`anon_vma`), and a mapping that moves as a whole loses it.
#[derive(Debug)]
pub(super) struct Arena {
    whole: PageRange,
    first: usize,
}

/// Adjacent places, from a number on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: usize,
    pub(super) count: usize,
}

impl Run {
    pub(super) fn numbers(self) -> std::ops::Range<usize> {
        self.first..self.first + self.count
    }

    pub(super) fn bytes(self) -> usize {
        self.count * BLOCK_BYTES
    }
}

impl Arena {
    /// Maps an arena with so many places, which children do not inherit: `mmap(2)`.
    ///
    /// # Errors
    ///
    /// The call that the kernel refused, and its error.
    pub(super) fn map(places: usize) -> Result<Self, (&'static str, Errno)> {
        let bytes = places * BLOCK_BYTES;
        let granule = table_bytes(bytes);
        let len = bytes.checked_add(2 * granule);
        let len = len.ok_or(("mmap", Errno::NOMEM))?;
        let reserved = map::reserve_charged(len).map_err(|errno| ("mmap", errno))?;
        let first = (reserved.start() + page_size()).next_multiple_of(granule);
        let arena = Self {
            whole: PageRange::between(first - page_size(), first + bytes),
            first,
        };
        for rest in [
            PageRange::between(reserved.start(), arena.whole.start()),
            PageRange::between(arena.whole.end(), reserved.end()),
        ] {
            // Addresses that cannot be unmapped stay reserved, without access.
            // SAFETY: reserved above, and no other code knows the addresses.
            let _ = (!rest.is_empty()).then(|| unsafe { map::unmap(rest) });
        }
        match arena.make_ready() {
            Ok(()) => Ok(arena),
            Err(refused) => {
                // SAFETY: no other code knows the addresses.
                let _ = unsafe { arena.unmap() };
                Err(refused)
            }
        }
    }

    fn make_ready(&self) -> Result<(), (&'static str, Errno)> {
        let whole = self.whole;
        // Under mlockall(MCL_FUTURE) it is locked; without access nothing was faulted in.
        if lock_state(whole) == Ok(LockState::Locked) {
            lock::munlock(whole).map_err(|errno| ("munlock", errno))?;
        }
        advise(whole, Advice::DontFork).map_err(|errno| ("madvise(MADV_DONTFORK)", errno))?;
        advise(whole, Advice::DontDump).map_err(|errno| ("madvise(MADV_DONTDUMP)", errno))?;
        // Where all memory is mergeable (PR_SET_MEMORY_MERGE), its zeros would be merged, and
        // merged pages do not move.
        unmerge(whole).map_err(|errno| ("madvise(MADV_UNMERGEABLE)", errno))?;
        if pmd_bytes() > BLOCK_BYTES {
            // A huge page would be many blocks. A kernel without huge pages answers EINVAL.
            let _ = advise(whole, Advice::NoHugePage);
        }
        // SAFETY: the arena belongs to the pool.
        unsafe { map::protect_read_write(whole) }.map_err(|errno| ("mprotect", errno))?;
        // SAFETY: the first page is writable now, and nothing else uses it.
        unsafe { whole.as_ptr().write_volatile(1) };
        Ok(())
    }

    pub(super) fn range(&self, run: Run) -> PageRange {
        let start = self.first + run.first * BLOCK_BYTES;
        PageRange::between(start, start + run.bytes())
    }

    /// Unmaps the arena. Its pages are free even where the kernel does not unmap it.
    ///
    /// # Safety
    ///
    /// Nothing may use it any more.
    pub(super) unsafe fn unmap(&self) -> Result<(), Errno> {
        // SAFETY: nothing uses the arena any more (the caller's contract).
        unsafe {
            discard(self.whole);
            map::unmap(self.whole).inspect_err(|_| {
                // Addresses without access take no memory, and count in no figure.
                let _ = map::protect_none(self.whole);
            })
        }
    }
}

/// Returns memory of the arena to the kernel. Returns whether the kernel has taken all of it:
/// a filter of system calls may refuse that, and kernels before 5.18 do for locked memory.
/// Pages that stay keep their contents.
///
/// # Safety
///
/// The caller must have claimed the places, or be the only one that knows the arena.
pub(super) unsafe fn discard(range: PageRange) -> bool {
    // Short calls, for which other threads' `mmap` waits.
    range
        .chunks(16 * BLOCK_BYTES)
        .fold(true, |are_taken, chunk| {
            // SAFETY: the caller owns the places.
            let is_taken = unsafe { discard_contents(chunk) }.is_ok();
            are_taken && is_taken
        })
}

/// Empties places that may hold what a program has written. What the kernel does not take
/// becomes zeros: an empty place is populated as it is.
///
/// # Safety
///
/// As for [`discard`].
pub(super) unsafe fn discard_dirty(range: PageRange) {
    // SAFETY: the conditions are the same, and the arena is writable.
    unsafe {
        if !discard(range) {
            write_zeros(range);
        }
    }
}

/// Has the kernel take the memory of places when it needs any. Returns whether it may.
///
/// # Safety
///
/// The caller must have claimed the places, which must be zeros.
pub(super) unsafe fn free_lazily(range: PageRange) -> bool {
    let free = |chunk| {
        // SAFETY: the caller owns the places; zeros stay zeros.
        unsafe { advise_destructive(chunk, DestructiveAdvice::Free) }.is_ok()
    };
    range.chunks(16 * BLOCK_BYTES).all(free)
}
