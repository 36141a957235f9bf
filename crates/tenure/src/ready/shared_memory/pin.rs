//! Pins of the buffers of a shared arena.

use std::fmt;

use super::buffer::SharedBuffer;
use super::core::{Attached, NOWHERE};
use crate::ground::error::{Error, Result};
use crate::ground::sys::{Errno, shared_file};

/// A pin of a [`SharedBuffer`]: nobody purges it as long as this value lives.
///
/// Other processes that have pinned it may write it at the same time: it is for the programs
/// to agree on that. So there is no slice of the bytes: [`read`](Self::read) and
/// [`write`](Self::write) copy, and [`as_ptr`](Self::as_ptr) is for those who know more.
pub struct SharedPin {
    pub(super) buffer: SharedBuffer,
    /// Of the process that has the pin.
    pub(super) generation: usize,
    pub(super) is_intact: bool,
}

impl SharedPin {
    /// Whether the contents are what they were. Otherwise the buffer was purged, as a whole,
    /// and this pin has made it of zeros. (The pins of others that come later are intact.)
    pub fn is_intact(&self) -> bool {
        self.is_intact
    }

    /// Returns the pinned buffer.
    pub fn buffer(&self) -> &SharedBuffer {
        &self.buffer
    }

    /// Copies bytes from the buffer: `pread(2)`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`], and [`Error::SharedMemory`] in a child of the process that
    /// pinned it (EBADF), or if the file was truncated.
    pub fn read(&self, at: usize, bytes: &mut [u8]) -> Result<()> {
        let start = self.start(at, bytes.len())?;
        let read = shared_file::read(self.buffer.core.table.fd(), bytes, start);
        read.map_err(|errno| Error::System {
            call: "pread",
            errno,
        })
    }

    /// Copies bytes to the buffer: `pwrite(2)`.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<()> {
        let start = self.start(at, bytes.len())?;
        let attached = self.attached().ok_or_else(|| self.not_pinned())?;
        let table = &self.buffer.core.table;
        let mut turn = table.turn_or_go(&attached.caller());
        let written = turn.write(bytes, start);
        written.map_err(|errno| Error::System {
            call: "pwrite",
            errno,
        })
    }

    /// Returns the address of the buffer in this process, a page boundary; null in a child of
    /// the process that pinned it. It is mapped as long as any value of this arena lives. Once
    /// the buffer is not pinned any more, and purged, an access is SIGBUS, and from a system
    /// call EFAULT.
    pub fn as_ptr(&self) -> *mut u8 {
        let start = self.attached().and_then(|attached| {
            let table = &self.buffer.core.table;
            let offset = self.buffer.place().ok()? - table.geometry.table_bytes() as u64;
            Some(attached.places()?.wrapping_add(offset as usize))
        });
        start.unwrap_or(NOWHERE)
    }

    /// Returns the offset of the bytes in the file.
    fn start(&self, at: usize, len: usize) -> Result<u64> {
        let buffer = &self.buffer;
        let end = at.checked_add(len).filter(|&end| end <= buffer.len());
        end.ok_or(Error::OutOfBounds {
            from: at,
            to: at.saturating_add(len),
            len: buffer.len(),
        })?;
        if self.attached().is_none() {
            return Err(self.not_pinned());
        }
        buffer.core.table.check_descriptor()?;
        Ok(buffer.place()? + at as u64)
    }

    fn not_pinned(&self) -> Error {
        let table = &self.buffer.core.table;
        table.refused("another process has pinned it", Errno::BADF)
    }

    fn attached(&self) -> Option<&Attached> {
        self.buffer.core.attached_in(self.generation)
    }
}

impl Drop for SharedPin {
    fn drop(&mut self) {
        // A child does not have its parent's pins.
        if let Some(attached) = self.attached() {
            attached.unpin(self.buffer.index);
        }
    }
}

impl fmt::Debug for SharedPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedPin")
            .field("id", &self.buffer.id())
            .field("is_intact", &self.is_intact)
            .finish_non_exhaustive()
    }
}
