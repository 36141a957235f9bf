//! Address space for many buffers, as one mapping of the kernel's.

use std::sync::Arc;

use super::buffer::VolatileBuffer;
use super::place::{ArenaMemory, Place};
use super::registry::ENGINE;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::{map, page_size};

/// Address space for [`VolatileBuffer`]s, registered as a whole: each buffer is
/// volatile or not by itself, and yet all of them together take one mapping of
/// the kernel's, where 65,530 are all that a process may have
/// (`vm.max_map_count`).
///
/// [`new`](Self::new) reserves the address space at once (`mmap(2)` with
/// MAP_NORESERVE); only written pages take memory. Buffers keep the arena alive.
/// Their memory consists of base pages.
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
pub struct VolatileArena(Arc<ArenaMemory>);

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
        let arena = Self(Arc::new(ArenaMemory(range)));
        ENGINE.lock_to_insert()?.engine.add_arena(range)?;
        Ok(arena)
    }

    /// Returns all addresses of the arena.
    pub fn range(&self) -> PageRange {
        self.0.0
    }

    /// Takes a buffer of at least `len` bytes of zeros: `ioctl(UFFDIO_ZEROPAGE)`.
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
        let range = ENGINE.lock().engine.take_place(self.range(), len)?;
        let place = Place::new(range, self.0.clone());
        Ok(VolatileBuffer::in_arena(place, len))
    }
}
