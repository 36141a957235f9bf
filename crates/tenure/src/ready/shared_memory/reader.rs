//! `SharedReader`: an arena that this process cannot change.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};

use super::buffer::{generation_of, index_of};
use super::file;
use super::layout::{Entry, Kind};
use super::stats::SharedStats;
use super::table::{Table, refused};
use super::word::State;
use crate::ground::error::{Error, Result};
use crate::ground::sys::{Errno, shared_file};

/// A [`SharedArena`](super::SharedArena) that is mapped read-only: this process reads buffers,
/// and can neither pin, change nor purge any. It is not attached, and takes no slot.
///
/// ```
/// use std::os::fd::AsFd;
/// use tenure::{SharedArena, SharedReader, volatile::Priority};
///
/// let arena = SharedArena::new(64, 1 << 20)?;
/// let (buffer, pin) = arena.allocate(6, Priority::Normal)?;
/// pin.write(0, b"shared")?;
///
/// // In another process, which gets the descriptor, also one that is open for reading only:
/// let reader = SharedReader::from_fd(arena.as_fd().try_clone_to_owned()?)?;
/// let mut bytes = [0; 6];
/// if reader.read(buffer.id(), 0, &mut bytes)? {
///     assert_eq!(&bytes, b"shared");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SharedReader {
    table: Table,
}

/// A buffer as the reader has seen it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    state: State,
    generation: u64,
    /// How often its contents have gone.
    gone: u64,
}

impl Seen {
    fn of(entry: &Entry) -> Self {
        let state = entry.word.read().state();
        Self {
            state,
            generation: entry.generation().load(Ordering::Acquire),
            gone: entry.tag.load(Ordering::Acquire),
        }
    }
}

impl SharedReader {
    /// Opens the arena of a name for reading.
    ///
    /// # Errors
    ///
    /// As for [`SharedArena::open`](super::SharedArena::open); ENOENT if there is no such name.
    pub fn open(name: &str) -> Result<Self> {
        let none = || refused(name, "there is no such name", Errno::NOENT);
        Self::of(file::open_read_only(name)?.ok_or_else(none)?)
    }

    /// Opens the arena of a descriptor that another process has passed on.
    ///
    /// # Errors
    ///
    /// As for [`SharedArena::from_fd`](super::SharedArena::from_fd).
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        Self::of(file::open_memfd_read_only(fd)?)
    }

    fn of(table: Table) -> Result<Self> {
        if table.geometry.kind == Kind::Cache {
            return Err(table.refused("it is a cache", Errno::PROTO));
        }
        Ok(Self { table })
    }

    /// Copies bytes of a buffer, by its [number](super::SharedBuffer::id): `pread(2)`. Returns
    /// whether they are the buffer's contents: not if it was purged, before or meanwhile; the
    /// bytes are then of no use. Nobody waits for the reader; a process that has pinned the
    /// buffer may write it at the same time.
    ///
    /// # Errors
    ///
    /// * [`Error::OutOfBounds`],
    /// * [`Error::SharedMemory`] (ENOENT) if there is no such buffer (any more), (EPROTO) if the
    ///   file was truncated, (EBADF) if the program has closed its descriptor,
    /// * [`Error::System`] if the kernel cannot read the file.
    pub fn read(&self, id: u64, at: usize, bytes: &mut [u8]) -> Result<bool> {
        self.table.check()?;
        self.table.check_descriptor()?;
        let (entry, len, place) = self.entry(id)?;
        let end = at.checked_add(bytes.len());
        end.filter(|&end| end as u64 <= len)
            .ok_or(Error::OutOfBounds {
                from: at,
                to: at.saturating_add(bytes.len()),
                len: len as usize,
            })?;
        let seen = Seen::of(entry);
        if seen.state != State::Live {
            return Ok(false);
        }
        let read = shared_file::read(self.table.fd(), bytes, place + at as u64);
        read.map_err(|errno| Error::System {
            call: "pread",
            errno,
        })?;
        // A purge claims the word first, and counts before it frees pages.
        fence(Ordering::SeqCst);
        Ok(Seen::of(entry) == seen && seen.generation == generation_of(id))
    }

    /// Returns the number of bytes of a buffer.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    pub fn len(&self, id: u64) -> Result<usize> {
        self.table.check()?;
        self.entry(id).map(|(_, len, _)| len as usize)
    }

    /// Returns what the arena has, and what was purged, by all processes.
    ///
    /// # Errors
    ///
    /// [`Error::SharedMemory`] if the file was truncated.
    pub fn stats(&self) -> Result<SharedStats> {
        self.table.check()?;
        SharedStats::of(&self.table)
    }

    fn entry(&self, id: u64) -> Result<(&Entry, u64, u64)> {
        let found = self.table.entry(index_of(id)).filter(|(entry, ..)| {
            let word = entry.word.read();
            let is_object = word.state() != State::Free && !word.is_doomed();
            is_object && entry.generation().load(Ordering::Acquire) == generation_of(id)
        });
        found.ok_or_else(|| self.table.refused("there is no such buffer", Errno::NOENT))
    }
}

impl fmt::Debug for SharedReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReader")
            .field("name", &self.table.name)
            .finish_non_exhaustive()
    }
}
