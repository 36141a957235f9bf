//! Registering arenas, and taking parts of them for buffers.

use super::state::{Engine, can_offer};
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{DestructiveAdvice, advise_destructive};
use crate::ground::sys::page_size;
use crate::ground::sys::registration::unmerge;
use crate::verbs::volatile::error::{at, explain_register};

impl Engine {
    /// Registers an arena as a whole, while nothing is in it: `ioctl(UFFDIO_REGISTER)`.
    /// Where userfaultfd is unavailable its buffers get guards when they are purged, as
    /// others do.
    pub(crate) fn add_arena(&mut self, range: PageRange) -> Result<()> {
        let is_registered = can_offer();
        if is_registered {
            // A process may have all of its memory merged (PR_SET_MEMORY_MERGE).
            unmerge(range).map_err(at("madvise(MADV_UNMERGEABLE)", range))?;
            let uffd = self.open()?;
            uffd.register(range)
                .map_err(|errno| explain_register(range, errno))?;
        }
        self.arenas.insert(range, is_registered);
        Ok(())
    }

    /// Takes a part of an arena, all of whose pages are present and read as zeros:
    /// `ioctl(UFFDIO_ZEROPAGE)`.
    pub(crate) fn take_place(&mut self, arena: PageRange, len: usize) -> Result<PageRange> {
        let full = |longest_bytes| Error::ArenaFull {
            arena,
            requested_bytes: len,
            longest_bytes,
        };
        let free = &mut self.arenas.get_mut(arena).ok_or(full(0))?.free;
        let rounded = len.checked_next_multiple_of(page_size());
        let place = rounded.and_then(|rounded| free.take(rounded));
        let place = place.ok_or_else(|| full(free.longest()))?;
        // Where a missing page is SIGBUS, every page of a buffer must be present.
        let filled = match &self.uffd {
            Some(uffd) if self.protects(place.start()) => uffd.fill_with_zeros(place),
            _ => Ok(()),
        };
        filled.map_err(|errno| {
            self.put_back_place(arena, place);
            at("UFFDIO_ZEROPAGE", place)(errno)
        })?;
        Ok(place)
    }

    /// Empties a part of an arena whose buffer is gone, and makes it free again:
    /// `madvise(MADV_DONTNEED)`.
    pub(crate) fn put_back_place(&mut self, arena: PageRange, place: PageRange) {
        self.forget_contents(place);
        // SAFETY: the place belonged to one buffer, which is gone.
        let emptied = unsafe { advise_destructive(place, DestructiveAdvice::DontNeed) };
        // A place that cannot be emptied (the program has locked it) is not used again.
        if let (Ok(()), Some(arena)) = (emptied, self.arenas.get_mut(arena)) {
            arena.free.put_back(place);
        }
    }
}
