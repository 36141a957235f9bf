//! Buffers of a shared arena.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::core::{Attached, Core};
use super::layout::Entry;
use super::pin::SharedPin;
use super::table::pages_of;
use super::word::{MAX_PRIORITY, State};
use crate::ground::error::{Error, Result};
use crate::ground::sys::Errno;

/// A buffer in a [`SharedArena`](super::SharedArena): volatile, except while any process has
/// [pinned](SharedBuffer::pin) it.
///
/// Dropping the value leaves the buffer to other processes; [`free`](SharedBuffer::free) frees it.
#[derive(Clone)]
pub struct SharedBuffer {
    pub(super) core: Arc<Core>,
    pub(super) index: usize,
    generation: u64,
    len: u64,
}

/// The bits of a buffer's number that are its place in the table.
const INDEX_BITS: u32 = 20;

/// Returns the place in the table of a buffer's number.
pub(super) fn index_of(id: u64) -> usize {
    (id & ((1 << INDEX_BITS) - 1)) as usize
}

/// Returns the generation of a buffer's number.
pub(super) fn generation_of(id: u64) -> u64 {
    id >> INDEX_BITS
}

/// How often a call looks again, because another process has changed the word.
const ATTEMPTS: u32 = 1000;

impl SharedBuffer {
    pub(super) fn of(core: Arc<Core>, index: usize, generation: u64, len: u64) -> Self {
        Self {
            core,
            index,
            generation,
            len,
        }
    }

    pub(super) fn find(core: &Arc<Core>, id: u64) -> Result<Self> {
        let index = index_of(id);
        let gone = || core.table.refused("there is no such buffer", Errno::NOENT);
        let (entry, len, _) = core.table.entry(index).ok_or_else(gone)?;
        let buffer = Self::of(Arc::clone(core), index, generation_of(id), len);
        let now = entry.word.read();
        let is_object = now.state() != State::Free && !now.is_doomed();
        match is_object && buffer.is_same(entry) {
            true => Ok(buffer),
            false => Err(gone()),
        }
    }

    /// Returns the number of the buffer, by which other processes find it in the arena. No
    /// other buffer has had it.
    pub fn id(&self) -> u64 {
        self.generation << INDEX_BITS | self.index as u64
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Pins the buffer: nobody purges it as long as the returned value lives, or until the
    /// process ends. If it was purged, it is made of zeros again, and
    /// [`SharedPin::is_intact`] says so.
    ///
    /// # Errors
    ///
    /// * [`Error::SharedMemory`] (EBUSY) while another process purges it, or makes it again:
    ///   nobody waits for that; (ENOENT) if it was freed; (EPROTO) if the file was truncated,
    /// * as for [`SharedArena::allocate`](super::SharedArena::allocate), if it was purged and
    ///   there is no memory.
    pub fn pin(&self) -> Result<SharedPin> {
        let attached = self.core.attached_to_change()?;
        let entry = self.entry()?;
        let mut is_cleared = false;
        for _ in 0..ATTEMPTS {
            if attached.pin(self.index) {
                let pin = self.adopt(attached, true);
                // While it is pinned it stays the same.
                return match self.is_same(entry) {
                    true => Ok(pin),
                    false => Err(self.gone()),
                };
            }
            let now = entry.word.read();
            if !self.is_same(entry) || now.is_doomed() || now.state() == State::Free {
                return Err(self.gone());
            }
            match now.state() {
                State::Purged => {
                    if let Some(pin) = self.make_again(attached, entry)? {
                        return Ok(pin);
                    }
                }
                State::Claimed if is_cleared => return Err(self.busy()),
                // The process that has claimed it may be dead.
                State::Claimed => {
                    self.core.table.evict(&attached.caller(), 0, 0);
                    is_cleared = true;
                }
                State::Live | State::Free => {}
            }
        }
        Err(self.busy())
    }

    /// Claims the purged buffer and makes it of zeros; `None` if another thread was faster.
    fn make_again(&self, attached: &Attached, entry: &Entry) -> Result<Option<SharedPin>> {
        let (attachment, table) = (&attached.caller(), &self.core.table);
        let admission = self
            .core
            .admit(attachment, pages_of(self.len), MAX_PRIORITY)?;
        let now = entry.word.read();
        if now.state() != State::Purged || !entry.word.claim(attachment.slot, now) {
            return Ok(None);
        }
        let give_back = || {
            entry
                .word
                .publish(attachment.slot, State::Purged, now.priority(), false);
        };
        if !self.is_same(entry) {
            give_back();
            return Err(self.gone());
        }
        let place = self.place()?;
        let mut turn = table.turn_or_go(attachment);
        let len = pages_of(self.len);
        // A purge that failed may have left some pages.
        let is_made = turn
            .punch(place, len)
            .and_then(|()| turn.allocate(place, len));
        if let Err(errno) = is_made {
            // Frees what was allocated.
            let _ = turn.punch(place, len);
            give_back();
            return Err(Error::System {
                call: "fallocate",
                errno,
            });
        }
        drop(turn);
        admission.mark_resident(usize::MAX);
        let mut pins = attached.lock_pins();
        let live = State::Live;
        if !entry
            .word
            .publish(attachment.slot, live, now.priority(), true)
        {
            return Ok(None);
        }
        *pins.entry(self.index).or_insert(0) += 1;
        drop(pins);
        let bytes = &table.header().bytes;
        bytes.fetch_add(pages_of(self.len), Ordering::Relaxed);
        Ok(Some(self.adopt(attached, false)))
    }

    /// Purges the buffer now. Returns whether its contents are gone: not if a live process has
    /// pinned it.
    ///
    /// # Errors
    ///
    /// As for [`pin`](Self::pin), and [`Error::System`] if the kernel frees no pages.
    pub fn purge(&self) -> Result<bool> {
        let attached = self.core.attached_to_change()?;
        let entry = self.entry()?;
        if entry.word.read().processes() != 0 {
            // Of dead processes, perhaps.
            self.core.table.evict(&attached.caller(), 0, 0);
        }
        let now = entry.word.read();
        if !self.is_same(entry) {
            return Err(self.gone());
        }
        let (attachment, table) = (&attached.caller(), &self.core.table);
        let mut turn = table.turn_or_go(attachment);
        let purged = table.purge(&mut turn, attachment, self.index, now);
        drop(turn);
        purged.map_err(|errno| Error::System {
            call: "fallocate(FALLOC_FL_PUNCH_HOLE)",
            errno,
        })?;
        let now = entry.word.read();
        Ok(now.state() != State::Live || !self.is_same(entry))
    }

    /// Frees the buffer, for all processes: now, or with its last pin.
    ///
    /// # Errors
    ///
    /// As for [`pin`](Self::pin).
    pub fn free(self) -> Result<()> {
        let attached = self.core.attached_to_change()?;
        let entry = self.entry()?;
        for _ in 0..ATTEMPTS {
            let now = entry.word.read();
            if now.state() == State::Purged && self.is_same(entry) {
                let (attachment, table) = (&attached.caller(), &self.core.table);
                if !entry.word.claim(attachment.slot, now) {
                    continue;
                }
                // It may have become another one before it was claimed.
                if !self.is_same(entry) {
                    entry.word.restore(attachment.slot, now);
                    return Err(self.gone());
                }
                entry.word.restore(attachment.slot, now.doomed());
                let mut turn = table.turn_or_go(attachment);
                table.free_doomed(&mut turn, attachment, self.index);
                return Ok(());
            }
            // Its own pin keeps it the same.
            let pin = self.pin()?;
            entry.word.doom();
            drop(pin);
            return Ok(());
        }
        Err(self.busy())
    }

    /// Makes the guard of a pin that the process has.
    pub(super) fn adopt(&self, attached: &Attached, is_intact: bool) -> SharedPin {
        SharedPin {
            buffer: self.clone(),
            generation: attached.generation,
            is_intact,
        }
    }

    fn entry(&self) -> Result<&Entry> {
        let entry = self.core.table.entries().get(self.index);
        entry.ok_or_else(|| self.gone())
    }

    pub(super) fn place(&self) -> Result<u64> {
        let place = self.core.table.geometry.place(self.index, 0, self.len);
        place.ok_or_else(|| self.gone())
    }

    fn is_same(&self, entry: &Entry) -> bool {
        entry.generation().load(Ordering::Acquire) == self.generation
    }

    fn gone(&self) -> Error {
        let table = &self.core.table;
        table.refused("there is no such buffer", Errno::NOENT)
    }

    fn busy(&self) -> Error {
        let table = &self.core.table;
        table.refused("another process purges or makes the buffer", Errno::BUSY)
    }
}

impl fmt::Debug for SharedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBuffer")
            .field("id", &self.id())
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
