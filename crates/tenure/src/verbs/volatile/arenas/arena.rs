//! Address space for many buffers, as one mapping of the kernel's.

use std::sync::Arc;

use super::memory::{ArenaMemory, ArenaOwner};
use super::place::Place;
use super::purge::purge_places;
use super::reserve::deferrable_bytes;
use super::space::Space;
use super::table::Table;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::registration::unmerge;
use crate::ground::sys::{Errno, map, page_size};
use crate::observation::stats;
use crate::verbs::volatile::buffer::VolatileBuffer;
use crate::verbs::volatile::error::at;
use crate::verbs::volatile::registry::ENGINE;

/// How many places are purged together.
const PURGED_TOGETHER: usize = 64;

/// Address space for [`VolatileBuffer`]s: each buffer is volatile or not by itself, and
/// yet all of them together take few mappings of the kernel's, where 65,530 are all that a
/// process may have (`vm.max_map_count`).
///
/// [`new`](Self::new) reserves the address space at once (`mmap(2)` with
/// MAP_NORESERVE); only written pages take memory, and 24 bytes for each buffer. Buffers
/// keep the arena alive. Their memory consists of base pages. The pages of small buffers
/// that were dropped are freed together: up to 64 of them wait for the next ones, a second
/// at most while anything is volatile.
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
pub struct VolatileArena(Arc<ArenaOwner>);

impl VolatileArena {
    /// Reserves address space for buffers of `len` bytes in all, each rounded up to
    /// whole pages: `mmap(2)`.
    ///
    /// # Errors
    ///
    /// * [`Error::EmptyMapping`] and [`Error::Overflow`] as for a mapping,
    /// * [`Error::System`] when that much address space is not free (RLIMIT_AS, strict
    ///   overcommit).
    pub fn new(len: usize) -> Result<Self> {
        Self::reserve(len, 0)
    }

    /// Reserves address space as [`new`](Self::new) does, and one page more for each buffer,
    /// which lies behind it and takes no memory: it reads as zeros whatever is purged, for
    /// programs that read past the end of their buffers, as SQLite does by 16 bytes.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn with_overrun(len: usize) -> Result<Self> {
        Self::reserve(len, page_size())
    }

    /// Has volatile buffers of this arena offered late while enough memory is left: 100 times
    /// the [offer delay](crate::volatile::set_offer_delay) after their marks, 10 s unless that
    /// is set. For many small buffers, of which each hit within that time then takes no system
    /// call. Those that are used most stay, which the kernel does not heed: it reclaims what it
    /// was offered in the order of the offers.
    ///
    /// Enough is left while the machine and each cgroup around the process have 96 MiB for
    /// each CPU left over an eighth of their limits, page cache included, and the pressure is
    /// less than [`Level::Severe`](crate::pressure::Level::Severe). The offer thread looks at
    /// that 40 times a second, or 10 times with 256 MiB and more, and offers what is older than
    /// the offer delay as soon as it is not so.
    ///
    /// Marks of such buffers take less time, and have that of the clock's last tick (1 to 10
    /// ms).
    pub fn defer_offers(&self) {
        self.0.0.defer_offers();
    }

    /// Returns how many bytes more the process may take before
    /// [`defer_offers`](Self::defer_offers) no longer has an effect; 0 where it has none. A
    /// cache that stops to grow before has its buffers offered only where others take the
    /// memory. Reads the limits if the last reading is older than 100 ms.
    pub fn deferrable_bytes(&self) -> usize {
        match self.0.0.defers_offers() {
            true => deferrable_bytes(),
            false => 0,
        }
    }

    fn reserve(len: usize, overrun_bytes: usize) -> Result<Self> {
        if len == 0 {
            return Err(Error::EmptyMapping);
        }
        let rounded = len
            .checked_next_multiple_of(page_size())
            .filter(|&rounded| isize::try_from(rounded).is_ok())
            .ok_or(Error::Overflow { addr: 0, len })?;
        let failed = |(call, errno)| Error::System { call, errno };
        let table = Table::new(rounded / page_size()).map_err(failed)?;
        let range = map::reserve_writable(rounded).map_err(failed)?;
        let memory = Arc::new(ArenaMemory::new(range, table, overrun_bytes));
        let owner = Arc::new(ArenaOwner(memory.clone()));
        // A process may have all of its memory merged (PR_SET_MEMORY_MERGE).
        unmerge(range).map_err(at("madvise(MADV_UNMERGEABLE)", range))?;
        let mut registry = ENGINE.lock_to_insert()?;
        let weak = Arc::downgrade(&memory);
        let space = Space::new(weak, range, registry.engine.epoch());
        let Some(space) = space else {
            // ENGINE is unlocked first: dropping the memory locks it.
            drop(registry);
            return Err(failed(("mmap", Errno::NOMEM)));
        };
        registry.arenas.insert(space);
        drop(registry);
        Ok(Self(owner))
    }

    /// Has buffers that are dropped from now on leave their places as they are, because
    /// the arena is dropped with them: a million drops cost an `munmap`. No buffer is
    /// taken from it any more.
    pub(crate) fn close(&self) {
        self.0.0.close();
    }

    /// Purges what is volatile if a nonvolatile buffer keeps the arena alive, for a closed
    /// arena whose volatile buffers are dropped. (One may be in use still, by a thread that
    /// has just taken it: it finds itself purged.)
    pub(crate) fn purge_if_in_use(&self) {
        if self.0.0.has_nonvolatile() {
            let slots: Vec<usize> = (0..self.0.0.table.words().len()).collect();
            for slots in slots.chunks(PURGED_TOGETHER) {
                // A place that cannot be purged stays until the arena is unmapped.
                let _ = purge_places(&self.0.0, slots, stats::PURGED_ON_REQUEST_BYTES);
            }
        }
    }

    /// Returns all addresses of the arena.
    pub fn range(&self) -> PageRange {
        self.0.0.range
    }

    /// Takes a buffer of at least `len` bytes of zeros, where buffers were before:
    /// `ioctl(UFFDIO_ZEROPAGE)`, for several small ones together.
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
        Ok(VolatileBuffer::in_arena(Place::take(&self.0, len)?, len))
    }
}
