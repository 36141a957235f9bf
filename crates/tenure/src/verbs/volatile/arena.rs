//! Room for many buffers, as one mapping of the kernel's.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::at;
use super::buffer::VolatileBuffer;
use super::engine::{ENGINE, Engine, can_offer};
use super::registration::{explain_register, protect_children, unmerge};
use super::runs::FreeRuns;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Losing, advise_losing};
use crate::ground::sys::{map, page_size};

/// Address space for [`VolatileBuffer`]s, watched as a whole: each buffer is
/// volatile or not by itself, and yet all of them together take one mapping of
/// the kernel's, where 65,530 are all that a process may have
/// (`vm.max_map_count`).
///
/// The address space is reserved at once (`mmap(2)` with MAP_NORESERVE); memory
/// is taken by what is written. Buffers keep the arena alive. Their memory is of
/// base pages.
///
/// ```
/// use tenure::VolatileArena;
///
/// let arena = VolatileArena::new(1 << 30)?;
/// let mut thumbnails = Vec::new();
/// for _ in 0..1000 {
///     let mut thumbnail = arena.buffer(16 << 10)?;
///     thumbnail.as_mut_slice()?.fill(7);
///     thumbnail.mark_volatile();
///     thumbnails.push(thumbnail);
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct VolatileArena(Arc<Room>);

/// The address space, unmapped when the last buffer is gone, too.
#[derive(Debug)]
struct Room(PageRange);

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: no buffer is left. What cannot be unmapped stays reserved.
        let _ = unsafe { self.0.munmap() };
    }
}

impl VolatileArena {
    /// Reserves address space for buffers of `len` bytes in all, rounded up to
    /// whole pages each.
    ///
    /// # Errors
    ///
    /// * [`Error::EmptyMapping`] and [`Error::Overflow`] as for a mapping,
    /// * [`Error::System`] when there is no such room (RLIMIT_AS, strict
    ///   overcommit).
    pub fn new(len: usize) -> Result<Self> {
        if len == 0 {
            return Err(Error::EmptyMapping);
        }
        let rounded = len
            .checked_next_multiple_of(page_size())
            .filter(|&rounded| isize::try_from(rounded).is_ok())
            .ok_or(Error::Overflow { addr: 0, len })?;
        let range = map::reserve_writable(rounded).map_err(|errno| Error::System {
            call: "mmap",
            errno,
        })?;
        let arena = Self(Arc::new(Room(range)));
        ENGINE.lock().add_arena(range)?;
        Ok(arena)
    }

    /// All addresses of the arena.
    pub fn range(&self) -> PageRange {
        self.0.0
    }

    /// Takes a buffer of at least `len` bytes of zeros.
    ///
    /// # Errors
    ///
    /// * [`Error::EmptyMapping`] for no bytes,
    /// * [`Error::ArenaFull`] when no free part is as long,
    /// * [`Error::SystemAt`] when the kernel cannot map its pages (ENOMEM).
    pub fn buffer(&self, len: usize) -> Result<VolatileBuffer> {
        if len == 0 {
            return Err(Error::EmptyMapping);
        }
        let range = ENGINE.lock().take_place(self.range(), len)?;
        let place = Place {
            range,
            arena: self.clone(),
        };
        Ok(VolatileBuffer::in_arena(place, len))
    }
}

/// A part of an arena that is one buffer's.
#[derive(Debug)]
pub(super) struct Place {
    range: PageRange,
    arena: VolatileArena,
}

impl Place {
    pub(super) fn range(&self) -> PageRange {
        self.range
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        ENGINE
            .lock()
            .give_place_back(self.arena.range(), self.range);
    }
}

/// The arenas, by their first address.
pub(super) type Arenas = BTreeMap<usize, Region>;

/// What the engine knows of an arena.
pub(super) struct Region {
    pub(super) range: PageRange,
    free: FreeRuns,
    /// Registered with the userfaultfd as a whole; every page of a buffer is
    /// there. Ends with the userfaultfd.
    pub(super) is_watched: bool,
}

impl Engine {
    /// Watches an arena as a whole, while nothing is in it. Without a userfaultfd
    /// to be had, its buffers are barred when they are purged, as others are.
    fn add_arena(&mut self, range: PageRange) -> Result<()> {
        protect_children()?;
        let is_watched = can_offer();
        if is_watched {
            // A process may have all of its memory merged (PR_SET_MEMORY_MERGE).
            unmerge(range)?;
            let uffd = self.open()?;
            uffd.register(range)
                .map_err(|errno| explain_register(range, errno))?;
        }
        let region = Region {
            range,
            free: FreeRuns::new(range),
            is_watched,
        };
        self.arenas.insert(range.start(), region);
        Ok(())
    }

    /// Takes a part of an arena, all of whose pages read as zeros.
    fn take_place(&mut self, arena: PageRange, len: usize) -> Result<PageRange> {
        let full = |longest_bytes| Error::ArenaFull {
            arena,
            asked_bytes: len,
            longest_bytes,
        };
        let region = self.arenas.get_mut(&arena.start()).ok_or(full(0))?;
        let free = &mut region.free;
        let rounded = len.checked_next_multiple_of(page_size());
        let place = rounded.and_then(|rounded| free.take(rounded));
        let place = place.ok_or_else(|| full(free.longest()))?;
        // Where a missing page is SIGBUS, a page that is in use must be there.
        let filled = match &self.uffd {
            Some(uffd) if self.protects(place.start()) => uffd.fill_with_zeros(place),
            _ => Ok(()),
        };
        filled.map_err(|errno| {
            self.give_place_back(arena, place);
            at("UFFDIO_ZEROPAGE", place)(errno)
        })?;
        Ok(place)
    }

    fn give_place_back(&mut self, arena: PageRange, place: PageRange) {
        self.forget_contents(place);
        // SAFETY: it was a buffer's, which is gone.
        let emptied = unsafe { advise_losing(place, Losing::DontNeed) };
        // What cannot be emptied (locked by somebody) is not used again.
        if let (Ok(()), Some(region)) = (emptied, self.arenas.get_mut(&arena.start())) {
            region.free.put_back(place);
        }
    }
}
