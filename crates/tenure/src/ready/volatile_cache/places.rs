//! Where the values lie.

use crate::ground::error::{Error, Result};
use crate::ground::sys::{map, page_size};
use crate::verbs::{VolatileArena, VolatileBuffer};

/// The first arena has so many bytes, and ...
const FIRST_BYTES: usize = 64 << 20;
/// ... each further one as many as all before together, up to this.
const MOST_BYTES: usize = 4 << 30;

/// Where address space is short, at least this part of what the cache has taken
/// is left to others.
const LEFT_PART: usize = 8;

/// Arenas of address space. A new one doubles what there is, so that a process
/// with a limit on its address space (RLIMIT_AS), or one whose kernel charges all
/// of it (strict overcommit), spends no more than twice what its values have once
/// taken; and a terabyte of values is in less than 300 mappings.
#[derive(Default)]
pub(super) struct Places {
    arenas: Vec<VolatileArena>,
    /// The one to ask first.
    current: usize,
}

impl Places {
    /// Takes a buffer of `len` bytes, which is not zero.
    pub(super) fn take(&mut self, len: usize) -> Result<VolatileBuffer> {
        if len > FIRST_BYTES {
            // Few of these make many bytes: each may well have a mapping of its own.
            return VolatileBuffer::new(len);
        }
        for _ in 0..self.arenas.len() {
            match self.arenas[self.current].buffer(len) {
                Err(Error::ArenaFull { .. }) => {
                    self.current = (self.current + 1) % self.arenas.len();
                }
                answer => return answer,
            }
        }
        let arena = self.arena_for(len)?;
        let buffer = arena.buffer(len);
        self.current = self.arenas.len();
        self.arenas.push(arena);
        buffer
    }

    fn arena_for(&self, len: usize) -> Result<VolatileArena> {
        let all: usize = self.arenas.iter().map(|arena| arena.range().len()).sum();
        let mut bytes = all.clamp(FIRST_BYTES, MOST_BYTES);
        let least = len.next_multiple_of(page_size()).max(all / LEFT_PART);
        loop {
            match VolatileArena::new(bytes).and_then(leave_as_much) {
                Err(_) if bytes / 2 >= least => bytes /= 2,
                answer => return answer,
            }
        }
    }

    /// Gives the address space back, now or with the last buffer in it.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Gives the arena back unless there is room for another one as large.
fn leave_as_much(arena: VolatileArena) -> Result<VolatileArena> {
    let left = map::reserve_writable(arena.range().len()).map_err(|errno| Error::System {
        call: "mmap",
        errno,
    })?;
    // SAFETY: it was reserved a moment ago, and nobody knows of it.
    let _ = unsafe { map::unmap(left) };
    Ok(arena)
}
