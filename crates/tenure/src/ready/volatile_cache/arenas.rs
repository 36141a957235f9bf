//! The arenas in which the values lie.

use crate::ground::error::{Error, Result};
use crate::ground::mapping::{HugePages, Mapping};
use crate::ground::sys::address_limits::may_map;
use crate::ground::sys::{Errno, page_size};
use crate::verbs::volatile::{VolatileArena, VolatileBuffer};

/// The size of the first arena.
const FIRST_ARENA_BYTES: usize = 64 << 20;
/// The largest size of a further arena, which is otherwise as large as all before it
/// together.
const MAX_ARENA_BYTES: usize = 4 << 30;

/// Where address space is short, the cache leaves at least one part in so many of what
/// it has taken to other users.
const MIN_LEFT_DIVISOR: usize = 8;

/// Arenas of address space. Each new one doubles the total. So a process with a limit on
/// its address space (RLIMIT_AS), or whose kernel charges all of it (strict overcommit),
/// spends at most twice what its values have taken at one time, and a terabyte of values
/// takes less than 300 mappings.
#[derive(Default)]
pub(super) struct Arenas {
    arenas: Vec<VolatileArena>,
    /// The index of the arena to try first.
    current: usize,
}

impl Arenas {
    /// Allocates a buffer of `len` bytes, which is not zero.
    pub(super) fn allocate(&mut self, len: usize) -> Result<VolatileBuffer> {
        if len > FIRST_ARENA_BYTES {
            // Values of this size are few, so each may have a mapping of its own. Huge pages
            // populate faster.
            let mapping = Mapping::anonymous(len).huge_pages(HugePages::Always);
            return VolatileBuffer::from_mapping(mapping.map()?).map_err(Error::from);
        }
        for _ in 0..self.arenas.len() {
            match self.arenas[self.current].buffer(len) {
                Err(Error::ArenaFull { .. }) => {
                    self.current = (self.current + 1) % self.arenas.len();
                }
                result => return result,
            }
        }
        let arena = self.new_arena(len)?;
        let buffer = arena.buffer(len);
        self.current = self.arenas.len();
        self.arenas.push(arena);
        buffer
    }

    fn new_arena(&self, len: usize) -> Result<VolatileArena> {
        let total: usize = self.arenas.iter().map(|arena| arena.range().len()).sum();
        let mut bytes = total.clamp(FIRST_ARENA_BYTES, MAX_ARENA_BYTES);
        let min_bytes = len
            .next_multiple_of(page_size())
            .max(total / MIN_LEFT_DIVISOR);
        loop {
            // The address space must hold another of its size then.
            let arena = match may_map(bytes.saturating_mul(2)) {
                true => VolatileArena::new(bytes),
                false => Err(Error::System {
                    call: "mmap",
                    errno: Errno::NOMEM,
                }),
            };
            match arena {
                Err(_) if bytes / 2 >= min_bytes => bytes /= 2,
                result => return result,
            }
        }
    }

    /// Has values leave their memory as it is when they are dropped, because the caller
    /// drops all of them, and then the arenas.
    pub(super) fn close(&self) {
        self.arenas.iter().for_each(VolatileArena::close);
    }
}

impl Drop for Arenas {
    /// Releases the address space: empty arenas now, the others with their last buffer,
    /// until when they keep that buffer's memory only.
    fn drop(&mut self) {
        self.arenas.iter().for_each(VolatileArena::purge_if_in_use);
    }
}
