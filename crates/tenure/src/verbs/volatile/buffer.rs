//! A buffer that is volatile as a whole, or not at all.

use std::sync::Arc;

use super::arena::Place;
use super::engine::ENGINE;
use super::objects::Object;
use super::word::{State, Word};
use super::{Outcome, Priority, Stamp, Unmarked, at, keeper};
use crate::ground::error::{Error, Refused, Result};
use crate::ground::mapping::Mapping;
use crate::ground::range::PageRange;
use crate::ground::sys::{Errno, copy};
use crate::observation::stats;

/// Memory whose contents can be let go and asked for again: marking it volatile
/// and unmarking it is a change of one word, without a system call, as long as
/// the kernel has not been offered it (see
/// [`set_hand_over_delay`](crate::set_hand_over_delay)).
///
/// Nothing is called when contents are lost, on no thread: the owner is told when
/// it unmarks the buffer, or asks whether it [is whole](VolatileBuffer::is_whole).
///
/// While it is volatile its bytes cannot be borrowed. It is made of private
/// anonymous memory, and unmapped when it is dropped.
///
/// ```
/// use tenure::{Outcome, VolatileBuffer};
///
/// let mut thumbnail = VolatileBuffer::new(1 << 20)?;
/// thumbnail.as_mut_slice()?.fill(7);
///
/// thumbnail.mark_volatile(); // the kernel may take it
///
/// match thumbnail.mark_nonvolatile()? {
///     Outcome::Intact => assert_eq!(thumbnail.as_slice()?[0], 7),
///     Outcome::Purged(runs) => println!("draw it again, {} parts are gone", runs.len()),
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Debug)]
pub struct VolatileBuffer {
    /// Dropped first: the keeper must not find what is unmapped.
    listed: Listed,
    memory: Memory,
}

/// What a buffer is made of.
#[derive(Debug)]
enum Memory {
    Own(Mapping),
    InArena {
        place: Place,
        /// What was asked for, in bytes.
        len: usize,
    },
}

/// An object in the keeper's list.
#[derive(Debug)]
struct Listed(Arc<Object>);

impl Drop for Listed {
    fn drop(&mut self) {
        let mut engine = ENGINE.lock();
        engine.objects.remove(&self.0);
        self.0.count();
        // The keeper may have noted it as due.
        self.0.word.settle(State::Nonvolatile);
    }
}

impl VolatileBuffer {
    /// Maps at least `len` bytes of zeros, in whole pages: `mmap(2)`.
    ///
    /// # Errors
    ///
    /// As for [`MappingBuilder::map`](crate::MappingBuilder::map).
    pub fn new(len: usize) -> Result<Self> {
        let mapping = Mapping::anonymous(len).map()?;
        Self::from_mapping(mapping).map_err(Error::from)
    }

    /// Makes a buffer of memory that is there.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::mark_volatile`], with the mapping given back.
    pub fn from_mapping(mapping: Mapping) -> Result<Self, Refused<Mapping>> {
        let mut engine = ENGINE.lock();
        if let Err(error) = engine.look_at(mapping.range()) {
            // The mapping may be dropped by whoever gets it: not with the engine
            // in hand.
            drop(engine);
            let value = mapping;
            return Err(Refused { value, error });
        }
        let listed = Listed(engine.objects.add(mapping.range()));
        let memory = Memory::Own(mapping);
        Ok(Self { listed, memory })
    }

    pub(super) fn in_arena(place: Place, len: usize) -> Self {
        let listed = Listed(ENGINE.lock().objects.add(place.range()));
        let memory = Memory::InArena { place, len };
        Self { listed, memory }
    }

    /// The length asked for, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> usize {
        match &self.memory {
            Memory::Own(mapping) => mapping.len(),
            Memory::InArena { len, .. } => *len,
        }
    }

    /// The pages.
    pub fn range(&self) -> PageRange {
        self.listed.0.range
    }

    fn word(&self) -> &Word {
        &self.listed.0.word
    }

    /// Whether it is volatile.
    pub fn is_volatile(&self) -> bool {
        self.word().read().state() != State::Nonvolatile
    }

    /// Borrows the bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Volatile`] while the buffer is volatile.
    pub fn as_slice(&self) -> Result<&[u8]> {
        self.check_nonvolatile()?;
        Ok(match &self.memory {
            Memory::Own(mapping) => mapping.as_slice(),
            Memory::InArena { place, len } => {
                let start = place.range().as_ptr();
                // SAFETY: the place is this buffer's own for as long as it lives,
                // readable and `len` bytes long at least. It is nonvolatile, so
                // that nobody else changes it, and to mark it takes `&mut self`.
                unsafe { std::slice::from_raw_parts(start, *len) }
            }
        })
    }

    /// Borrows the bytes to change them.
    ///
    /// # Errors
    ///
    /// [`Error::Volatile`] while the buffer is volatile.
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8]> {
        self.check_nonvolatile()?;
        match &mut self.memory {
            Memory::Own(mapping) => mapping.as_mut_slice(),
            Memory::InArena { place, len } => {
                let start = place.range().as_ptr();
                // SAFETY: as in `as_slice`; writable, and borrowed mutably.
                Ok(unsafe { std::slice::from_raw_parts_mut(start, *len) })
            }
        }
    }

    fn check_nonvolatile(&self) -> Result<()> {
        match self.is_volatile() {
            true => Err(Error::Volatile {
                range: self.range(),
            }),
            false => Ok(()),
        }
    }

    /// Lets the kernel take the contents when it needs memory, as
    /// [`PageRange::mark_volatile`] does. To mark it again renews the mark.
    pub fn mark_volatile(&mut self) {
        self.mark_volatile_with(Priority::default());
    }

    /// The same, with a priority.
    pub fn mark_volatile_with(&mut self, priority: Priority) {
        self.word().mark(priority, Stamp::now());
        self.listed.0.tally.marked();
        if keeper::delay().is_zero() {
            keeper::offer_now(&self.listed.0);
        }
        keeper::has_marked();
    }

    /// Makes the contents safe again and tells exactly which pages were lost;
    /// they read as zeros. A buffer that is not volatile is intact.
    ///
    /// # Errors
    ///
    /// [`Error::SystemAt`] when the kernel cannot take a page back (ENOMEM); the
    /// buffer stays volatile, and no loss is forgotten.
    pub fn mark_nonvolatile(&mut self) -> Result<Outcome> {
        let outcome = match self.word().unmark() {
            Unmarked::WasNot => return Ok(Outcome::Intact),
            Unmarked::Intact => Outcome::Intact,
            Unmarked::Ask => {
                let mut engine = ENGINE.lock();
                let age = Stamp::now().since(self.word().read().stamp());
                let outcome = engine.withdraw(self.range())?;
                let object = &self.listed.0;
                object.patience.learn(age, keeper::delay(), &outcome);
                object.word.settle(State::Nonvolatile);
                outcome
            }
        };
        self.listed.0.tally.unmarked();
        Ok(outcome)
    }

    /// Copies `into.len()` bytes from `offset` on, also while the buffer is
    /// volatile, which it stays: `process_vm_readv(2)` on this process, which
    /// answers EFAULT instead of faulting.
    ///
    /// # Errors
    ///
    /// * [`Error::OutOfBounds`] past the end,
    /// * [`Error::Purged`] when a page of the buffer is known to be lost, or one
    ///   of those asked for is; what `into` holds then is of no meaning.
    pub fn read_volatile_into(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(into.len());
        if end.is_none_or(|end| end > self.len()) {
            return Err(Error::OutOfBounds {
                from: offset,
                to: end.unwrap_or(usize::MAX),
                len: self.len(),
            });
        }
        if let Ok(bytes) = self.as_slice() {
            into.copy_from_slice(&bytes[offset..offset + into.len()]);
            return Ok(());
        }
        let purged = || Error::Purged {
            range: self.range(),
        };
        match copy::copy_from(self.range().start() + offset, into) {
            Ok(()) => {}
            Err(Errno::FAULT) => return Err(purged()),
            Err(errno) => return Err(at("process_vm_readv", self.range())(errno)),
        }
        // Zeros must not pass for contents where the protection has ended.
        match ENGINE.lock().vouches_for(self.range())? {
            true => Ok(()),
            false => Err(purged()),
        }
    }

    /// Tells whether all of the contents are there at this moment, without
    /// unmarking: free while the kernel has not been offered them, a look at the
    /// page tables afterwards (`PAGEMAP_SCAN`, Linux 6.7, `/proc/self/pagemap`
    /// before). What is volatile may be gone the next moment.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] when the kernel does not tell (no `/proc`).
    pub fn is_whole(&self) -> Result<bool> {
        match self.word().read().state() {
            State::Nonvolatile | State::Marked => Ok(true),
            State::Busy | State::Offered => {
                let engine = ENGINE.lock();
                Ok(!engine.has_lost(self.range()) && !engine.misses_pages(self.range())?)
            }
        }
    }

    /// Has the contents taken now, as memory pressure would, if the buffer is
    /// volatile.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::purge`].
    pub fn purge(&mut self) -> Result<()> {
        if !self.is_volatile() {
            return Ok(());
        }
        let mut engine = ENGINE.lock();
        if self.word().take_in_hand() || self.is_volatile() {
            // SAFETY: the buffer is volatile, and nothing can borrow from it.
            let purged = unsafe { engine.purge(self.range(), stats::PURGED_ON_REQUEST_BYTES) };
            self.word().settle(State::Offered);
            purged?;
        }
        Ok(())
    }
}
