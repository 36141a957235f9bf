//! The volatile memory of all caches of the process: arenas for each size of pages, so that
//! thousands of pages are a few mappings, and pages of one size take the places of others.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use tenure::{Error, VolatileArena, VolatileBuffer, may_map, page_size};

use crate::page::OVERRUN_BYTES;

/// The size of the first arena. Each further one doubles what there is, up to a size.
const FIRST_ARENA_BYTES: usize = 64 << 20;
const MAX_ARENA_BYTES: usize = 4 << 30;
/// Where address space is short, arenas are smaller, but not smaller than this.
const MIN_ARENA_BYTES: usize = 1 << 20;

/// Where address space has a limit (RLIMIT_AS, RLIMIT_DATA, and RLIMIT_MEMLOCK under
/// `mlockall(MCL_FUTURE)`), all arenas leave so many times what they take to the rest of the
/// process, which fails where these pages make place. Of that each connection past the limit
/// takes `cache_size` pages, as with SQLite's own cache.
const LEFT_PER_ARENA_BYTES: usize = 7;

const ALLOCATIONS_PER_FAILURE: usize = 256;

/// More than a terabyte in arenas of the largest size.
const MAX_ARENAS: usize = 300;

/// SQLite's pages are powers of two from 512 to 65,536 bytes.
const SIZES: usize = 8;

static ARENAS: [Arenas; SIZES] = [const { Arenas::new() }; SIZES];

/// The arenas for pages of one size. They stay as long as the process. There is no lock,
/// which another thread could hold while the process forks.
struct Arenas {
    list: [AtomicPtr<VolatileArena>; MAX_ARENAS],
    /// The arena to try first.
    current: AtomicUsize,
    /// After a failure so many allocations add no arena: each try takes dozens of system calls.
    until_add: AtomicUsize,
}

/// Allocates a page, of zeros, behind which SQLite may read; `None` if there is no memory or
/// no address space.
pub(crate) fn allocate(page_bytes: usize) -> Option<VolatileBuffer> {
    let size = page_bytes.next_power_of_two().ilog2().saturating_sub(9) as usize;
    ARENAS[size.min(SIZES - 1)].allocate(page_bytes)
}

/// Returns [`VolatileArena::deferrable_bytes`], which is the same for all arenas.
pub(crate) fn deferrable_bytes() -> usize {
    let arena = ARENAS.iter().find_map(|arenas| arenas.known().next());
    arena.map_or(0, VolatileArena::deferrable_bytes)
}

impl Arenas {
    const fn new() -> Self {
        Self {
            list: [const { AtomicPtr::new(null_mut()) }; MAX_ARENAS],
            current: AtomicUsize::new(0),
            until_add: AtomicUsize::new(0),
        }
    }

    /// Returns the arenas there are: they are added at the end.
    fn known(&self) -> impl Iterator<Item = &'static VolatileArena> {
        let arenas = self.list.iter();
        // SAFETY: the list has pointers to leaked arenas.
        arenas.map_while(|arena| unsafe { arena.load(Ordering::Acquire).as_ref() })
    }

    fn allocate(&self, page_bytes: usize) -> Option<VolatileBuffer> {
        loop {
            let count = self.known().count();
            let first = self.current.load(Ordering::Relaxed);
            for index in (first..count).chain(0..first.min(count)) {
                let arena = self.known().nth(index)?;
                match arena.buffer(page_bytes) {
                    Err(Error::ArenaFull { .. }) => {}
                    answer => {
                        self.current.store(index, Ordering::Relaxed);
                        return answer.ok();
                    }
                }
            }
            let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
            let one_less = |left: usize| left.checked_sub(1);
            if self
                .until_add
                .fetch_update(success, failure, one_less)
                .is_ok()
            {
                return None;
            }
            if self.add(count, page_bytes).is_none() {
                self.until_add
                    .store(ALLOCATIONS_PER_FAILURE, Ordering::Relaxed);
                return None;
            }
        }
    }

    fn bytes(&self) -> usize {
        self.known().map(|arena| arena.range().len()).sum()
    }

    /// Adds an arena after the first `count`, unless another thread does.
    fn add(&self, count: usize, page_bytes: usize) -> Option<()> {
        let slot = self.list.get(count)?;
        let all: usize = ARENAS.iter().map(Self::bytes).sum();
        let mut bytes = self.bytes().clamp(FIRST_ARENA_BYTES, MAX_ARENA_BYTES);
        let arena = loop {
            let left_bytes = all
                .saturating_add(bytes)
                .saturating_mul(LEFT_PER_ARENA_BYTES);
            match new_arena(bytes, page_bytes, left_bytes) {
                Some(arena) => break arena,
                None if bytes / 2 < MIN_ARENA_BYTES => return None,
                None => bytes /= 2,
            }
        };
        let arena = Box::into_raw(Box::new(arena));
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        if slot
            .compare_exchange(null_mut(), arena, success, failure)
            .is_err()
        {
            // SAFETY: leaked above, and not published.
            drop(unsafe { Box::from_raw(arena) });
        }
        Some(())
    }
}

/// Makes an arena, if so much address space is left afterwards where it has a limit.
fn new_arena(bytes: usize, page_bytes: usize, left_bytes: usize) -> Option<VolatileArena> {
    // First, since other threads miss the addresses of an arena that does not stay.
    if !may_map(bytes.saturating_add(left_bytes)) {
        return None;
    }
    let unused_bytes = page_bytes.next_multiple_of(page_size()) - page_bytes;
    let make = match unused_bytes < OVERRUN_BYTES {
        true => VolatileArena::with_overrun,
        false => VolatileArena::new,
    };
    let arena = make(bytes).ok()?;
    arena.defer_offers();
    Some(arena)
}
