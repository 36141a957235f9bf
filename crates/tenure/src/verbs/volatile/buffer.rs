//! A buffer that is volatile as a whole, or not at all.

use std::ptr::NonNull;
use std::sync::Arc;

use super::arenas::Place;
use super::counts::COUNTS;
use super::error::at;
use super::offer_thread::{notify_marked, offer_delay, offer_object, resume_in_child};
use super::options::VolatileOptions;
use super::outcome::Outcome;
use super::priority::{Priority, Timestamp};
use super::registry::{
    Candidate, ENGINE, Object, contents_valid, lock_validated, misses_pages, purge, revoke_object,
};
use super::word::{State, Unmarked, Unpinned, Word};
use crate::ground::error::{Error, Refused, Result};
use crate::ground::mapping::Mapping;
use crate::ground::range::PageRange;
use crate::ground::sys::features::Features;
use crate::ground::sys::shard::Lease;
use crate::ground::sys::{Errno, copy, fork, page_runs};
use crate::observation::stats;

/// Memory that can be marked volatile and unmarked at the cost of one compare-and-swap,
/// without a lock or a system call, as long as the kernel has not been offered it (see
/// [`set_offer_delay`](crate::volatile::set_offer_delay)).
///
/// No callback runs when contents are purged: the owner learns it when it unmarks the
/// buffer, or asks whether the contents [are intact](VolatileBuffer::is_intact).
///
/// While the buffer is volatile its bytes cannot be borrowed. It consists of private
/// anonymous memory, which dropping the buffer unmaps.
///
/// ```
/// use tenure::{Outcome, VolatileBuffer};
///
/// let mut thumbnail = VolatileBuffer::new(1 << 20)?;
/// thumbnail.as_mut_slice()?.fill(7);
///
/// thumbnail.mark_volatile(); // the kernel may purge it
///
/// match thumbnail.mark_nonvolatile()? {
///     Outcome::Intact => assert_eq!(thumbnail.as_slice()?[0], 7),
///     Outcome::Purged(runs) => println!("draw it again, {} parts were purged", runs.len()),
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Debug)]
pub struct VolatileBuffer(Memory);

/// The memory of a buffer.
#[derive(Debug)]
enum Memory {
    Own {
        /// Dropped first: the offer thread must not find an object that is unmapped.
        listed: Listed,
        mapping: Mapping,
    },
    InArena {
        place: Place,
        /// The length that the caller wanted, in bytes.
        len: usize,
    },
}

/// An object in the registry's list, until this is dropped.
#[derive(Debug)]
struct Listed(Arc<Object>);

impl Drop for Listed {
    fn drop(&mut self) {
        let mut registry = ENGINE.lock();
        registry.objects.remove(&self.0);
        if self.0.word.read().state() != State::Nonvolatile {
            COUNTS.add_drop(self.0.range.len());
        }
        // The offer thread may have it in a list of due objects.
        self.0.word.publish(State::Nonvolatile);
    }
}

/// The pins of a buffer, at hand without a look at the buffer itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pins {
    word: NonNull<Word>,
    len: usize,
}

// SAFETY: the word is atomic.
unsafe impl Send for Pins {}
// SAFETY: as above.
unsafe impl Sync for Pins {}

impl Pins {
    /// Pins the buffer without a system call: it is nonvolatile as long as it has a pin.
    /// Returns `false` if the kernel has been offered it: then
    /// [`pin`](VolatileBuffer::pin) it.
    ///
    /// # Safety
    ///
    /// The buffer is alive.
    #[inline]
    pub(crate) unsafe fn try_pin(self) -> bool {
        // SAFETY: the caller's.
        let pinned = unsafe { self.try_pin_uncounted() };
        if let Some(pinned) = pinned {
            Lease::with(move |lease| pinned.count(lease));
        }
        pinned.is_some()
    }

    /// Does what [`try_pin`](Self::try_pin) does, and leaves it to the caller to count that,
    /// with what else the caller counts; `None` if the kernel has been offered the buffer.
    ///
    /// # Safety
    ///
    /// The buffer is alive.
    #[inline]
    pub(crate) unsafe fn try_pin_uncounted(self) -> Option<NewlyPinned> {
        // SAFETY: the word lives as long as the buffer.
        match unsafe { self.word.as_ref() }.try_pin() {
            Some(State::Nonvolatile) => Some(NewlyPinned::NOTHING),
            Some(_) => Some(NewlyPinned { bytes: self.len }),
            None => None,
        }
    }

    /// Subtracts a pin of the caller's. After [`Unpinned::Volatile`] another thread may have
    /// freed the buffer.
    ///
    /// # Safety
    ///
    /// The buffer is alive as long as it has a pin, and the caller has one.
    #[inline]
    pub(crate) unsafe fn unpin(self) -> Unpinned {
        // SAFETY: the buffer is pinned, so alive, until the word has changed; it is not
        // used after that.
        let unpinned = unsafe { self.word.as_ref() }.unpin();
        if unpinned == Unpinned::Volatile {
            Lease::with(move |lease| {
                COUNTS.add_unpinned(self.len, lease);
                notify_marked();
            });
        }
        unpinned
    }
}

/// The bytes that a pin has made nonvolatile, to be counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewlyPinned {
    bytes: usize,
}

impl NewlyPinned {
    /// There was another pin, or the pin is counted.
    pub(crate) const NOTHING: Self = Self { bytes: 0 };

    /// Counts it.
    #[inline]
    pub(crate) fn count(self, lease: Lease) {
        COUNTS.add_pinned(self.bytes, lease);
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

    /// Makes a buffer of existing memory.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::mark_volatile`], with the mapping given back.
    pub fn from_mapping(mapping: Mapping) -> Result<Self, Refused<Mapping>> {
        let validated = lock_validated(mapping.range());
        let validated = validated.map(|mut registry| Listed(registry.objects.add(mapping.range())));
        // ENGINE is unlocked again: the caller may drop a refused mapping, which locks it.
        match validated {
            Ok(listed) => Ok(Self(Memory::Own { listed, mapping })),
            Err(error) => {
                let value = mapping;
                Err(Refused { value, error })
            }
        }
    }

    /// Makes a buffer of a part of an arena.
    /// Faults the pages of a nonvolatile buffer in, if it has several, with one system call
    /// for each chunk, after which `after_chunk` gets the chunk's length:
    /// `madvise(MADV_POPULATE_WRITE)`. Before Linux 5.14 it does nothing.
    pub(crate) fn populate(&mut self, mut after_chunk: impl FnMut(usize)) -> Result<()> {
        /// One call takes about 1 ms, during which other threads' `mmap` waits.
        const CHUNK_BYTES: usize = 2 << 20;
        self.check_nonvolatile()?;
        let range = self.range();
        if range.pages() == 1 || Features::get().madv_populate.is_err() {
            return Ok(());
        }
        for chunk in range.chunks(CHUNK_BYTES) {
            let populated = page_runs::populate_write(chunk);
            populated.map_err(at("madvise(MADV_POPULATE_WRITE)", chunk))?;
            after_chunk(chunk.len());
        }
        Ok(())
    }

    /// Drops the buffer, and frees its pages before it returns.
    pub(crate) fn free_sync(self) {
        match self.0 {
            Memory::Own { listed, mapping } => {
                drop(listed);
                // If it cannot be unmapped (vm.max_map_count), dropping it tries again.
                drop(mapping.munmap_sync());
            }
            Memory::InArena { place, .. } => drop(place),
        }
    }

    pub(super) fn in_arena(place: Place, len: usize) -> Self {
        Self(Memory::InArena { place, len })
    }

    /// Returns the length that the caller wanted, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> usize {
        match &self.0 {
            Memory::Own { mapping, .. } => mapping.len(),
            Memory::InArena { len, .. } => *len,
        }
    }

    /// Returns the pages.
    pub fn range(&self) -> PageRange {
        match &self.0 {
            Memory::Own { listed, .. } => listed.0.range,
            Memory::InArena { place, .. } => place.range(),
        }
    }

    fn word(&self) -> &Word {
        match &self.0 {
            Memory::Own { listed, .. } => &listed.0.word,
            Memory::InArena { place, .. } => place.word(),
        }
    }

    fn defers_offers(&self) -> bool {
        match &self.0 {
            Memory::Own { .. } => false,
            Memory::InArena { place, .. } => place.memory().defers_offers(),
        }
    }

    /// Returns whether the buffer is volatile.
    pub fn is_volatile(&self) -> bool {
        self.word().read().state() != State::Nonvolatile
    }

    /// Returns whether the kernel has been offered the contents of the volatile buffer, so
    /// that it may have reclaimed pages, and unmarking takes a system call.
    pub fn is_offered(&self) -> bool {
        !matches!(
            self.word().read().unclaimed_state(),
            State::Nonvolatile | State::Marked
        )
    }

    /// Returns where the word of the buffer lies, for a prefetch before it is marked or
    /// unmarked. It must not be read.
    #[doc(hidden)]
    pub fn state_address(&self) -> *const u8 {
        std::ptr::from_ref(self.word()).cast()
    }

    /// Borrows the bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Volatile`] while the buffer is volatile.
    pub fn as_slice(&self) -> Result<&[u8]> {
        self.check_nonvolatile()?;
        Ok(match &self.0 {
            Memory::Own { mapping, .. } => mapping.as_slice(),
            Memory::InArena { place, len } => {
                let start = place.range().as_ptr();
                // SAFETY: the place is this buffer's own for as long as it lives,
                // readable and at least `len` bytes long. It is nonvolatile, so the
                // kernel does not change it, and marking it takes `&mut self`.
                unsafe { std::slice::from_raw_parts(start, *len) }
            }
        })
    }

    /// Borrows the bytes mutably.
    ///
    /// # Errors
    ///
    /// [`Error::Volatile`] while the buffer is volatile.
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8]> {
        self.check_nonvolatile()?;
        match &mut self.0 {
            Memory::Own { mapping, .. } => mapping.as_mut_slice(),
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

    /// Lets the kernel reclaim the contents when it needs memory, as
    /// [`PageRange::mark_volatile`] does. Marking again renews the mark.
    pub fn mark_volatile(&mut self) {
        self.mark_volatile_with(VolatileOptions::new());
    }

    /// Does what [`mark_volatile`](Self::mark_volatile) does, with a priority, or
    /// with the offer made inside the call.
    pub fn mark_volatile_with(&mut self, options: VolatileOptions) {
        let defers_offers = self.defers_offers();
        let timestamp = match defers_offers {
            true => Timestamp::coarse(),
            false => Timestamp::now(),
        };
        let was_nonvolatile = self.word().mark(options.priority, timestamp);
        match defers_offers {
            true => COUNTS.add_leased_mark(self.range().len(), was_nonvolatile),
            false => COUNTS.add_mark(self.range().len(), was_nonvolatile),
        }
        if options.offer_now || offer_delay().is_zero() {
            self.offer();
        }
        notify_marked();
    }

    /// Makes the buffer ordinary memory again and reports exactly which pages were
    /// purged; they read as zeros. A buffer that is not volatile is intact. Takes
    /// `madvise(MADV_POPULATE_WRITE)` if the kernel had been offered the buffer.
    ///
    /// # Errors
    ///
    /// [`Error::SystemAt`] when there is no memory to repopulate a page (ENOMEM), and
    /// [`Error::MappingLimit`] when thousands of neighbours that the kernel has been offered
    /// would have to be split; the buffer stays volatile, and the next call that succeeds
    /// reports the pages that this one found purged. (Buffers of an arena are not split.)
    pub fn mark_nonvolatile(&mut self) -> Result<Outcome> {
        resume_in_child();
        let outcome = match self.word().unmark() {
            Unmarked::WasNonvolatile => return Ok(Outcome::Intact),
            Unmarked::Intact => Outcome::Intact,
            Unmarked::NeedsEngine => match &self.0 {
                Memory::Own { listed, .. } => revoke_offer(&listed.0)?,
                Memory::InArena { place, .. } => place.revoke_offer()?,
            },
        };
        match self.defers_offers() {
            true => COUNTS.add_leased_unmark(self.range().len()),
            false => COUNTS.add_unmark(self.range().len()),
        }
        Ok(outcome)
    }

    /// Makes a filled, nonvolatile buffer pinned once: from now on pins, not its owner, mark
    /// and unmark it.
    pub(crate) fn set_pinned(&mut self, priority: Priority) {
        self.word().set_pinned(priority);
    }

    /// Returns the pins of the buffer, which are valid as long as it lives.
    pub(crate) fn pins(&self) -> Pins {
        Pins {
            word: NonNull::from(self.word()),
            len: self.range().len(),
        }
    }

    /// As [`Pins::try_pin`].
    pub(crate) fn try_pin(&self) -> bool {
        // SAFETY: the buffer is alive.
        unsafe { self.pins().try_pin() }
    }

    /// Pins the buffer, and returns which pages are purged, as
    /// [`mark_nonvolatile`](Self::mark_nonvolatile) does; `None`, without a pin, if another
    /// thread has found it purged. One thread at a time calls this.
    ///
    /// # Errors
    ///
    /// As for [`mark_nonvolatile`](Self::mark_nonvolatile).
    pub(crate) fn pin(&self) -> Result<Option<Outcome>> {
        resume_in_child();
        if self.try_pin() {
            return Ok(Some(Outcome::Intact));
        }
        if !self.is_volatile() {
            return Ok(None);
        }
        let outcome = match &self.0 {
            Memory::Own { listed, .. } => revoke_offer(&listed.0)?,
            Memory::InArena { place, .. } => place.revoke_offer()?,
        };
        let pinned = NewlyPinned {
            bytes: self.range().len(),
        };
        Lease::with(move |lease| pinned.count(lease));
        Ok(Some(outcome))
    }

    /// Has the last pin free the buffer. Returns `false` if there is none.
    pub(crate) fn detach(&self) -> bool {
        self.word().detach()
    }

    /// Offers the buffer now if it is marked.
    pub(crate) fn offer(&self) {
        match &self.0 {
            Memory::Own { listed, .. } => offer_object(&listed.0),
            Memory::InArena { place, .. } => place.offer(),
        }
    }

    /// Whether a purge is known, without a look at the pages.
    pub(crate) fn is_known_purged(&self) -> bool {
        let reading = self.word().read();
        reading.state() == State::Offered && reading.is_purged()
    }

    /// Returns the address of the first byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.range().as_ptr()
    }

    /// Copies `into.len()` bytes from `offset` on, also while the buffer is
    /// volatile, which it stays: `process_vm_readv(2)` on this process, which
    /// answers EFAULT instead of faulting.
    ///
    /// # Errors
    ///
    /// * [`Error::OutOfBounds`] past the end,
    /// * [`Error::Purged`] when a page of the buffer is known to be purged, or one
    ///   of the pages read is; the contents of `into` are then undefined.
    pub fn read_volatile_into(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(into.len());
        if end.is_none_or(|end| end > self.len()) {
            return Err(Error::OutOfBounds {
                from: offset,
                to: end.unwrap_or(usize::MAX),
                len: self.len(),
            });
        }
        resume_in_child();
        if let Ok(bytes) = self.as_slice() {
            into.copy_from_slice(&bytes[offset..offset + into.len()]);
            return Ok(());
        }
        // A child in whose handlers this runs has no protection yet.
        fork::start_child_in_handler();
        let purged = || Error::Purged {
            range: self.range(),
        };
        match copy::copy_from(self.range().start() + offset, into) {
            Ok(()) => {}
            Err(Errno::FAULT) => return Err(purged()),
            Err(errno) => return Err(at("process_vm_readv", self.range())(errno)),
        }
        // Where the protection has ended a purged page reads as zeros, without EFAULT.
        let is_valid = match &self.0 {
            Memory::Own { .. } => contents_valid(self.range())?,
            Memory::InArena { place, .. } => place.contents_valid(),
        };
        match is_valid {
            true => Ok(()),
            false => Err(purged()),
        }
    }

    /// Returns whether all of the contents are present at this moment, without
    /// unmarking: free of system calls while the kernel has not been offered them, a
    /// scan of the page tables afterwards (`PAGEMAP_SCAN`, Linux 6.7,
    /// `/proc/self/pagemap` before). The kernel may purge a volatile buffer the next
    /// moment.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] when the kernel does not tell (no `/proc`).
    pub fn is_intact(&self) -> Result<bool> {
        resume_in_child();
        match self.word().read().state() {
            State::Nonvolatile | State::Marked => Ok(true),
            State::Busy | State::Offered | State::Refused => {
                if let Memory::InArena { place, .. } = &self.0 {
                    return place.is_intact();
                }
                // Where the protection has ended a purged page reads as zeros: none misses.
                Ok(contents_valid(self.range())? && !misses_pages(self.range())?)
            }
        }
    }

    /// Purges the contents now, as memory pressure would, if the buffer is volatile:
    /// `madvise(MADV_DONTNEED)`.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::purge`].
    pub fn purge(&mut self) -> Result<()> {
        resume_in_child();
        if !self.is_volatile() {
            return Ok(());
        }
        let cause = stats::PURGED_ON_REQUEST_BYTES;
        match &self.0 {
            Memory::Own { listed, .. } => {
                purge(&Candidate::Object(listed.0.clone()), cause).map(drop)
            }
            Memory::InArena { place, .. } => place.purge(cause),
        }
    }
}

/// Revokes the offer of an object with its own mapping, and makes it nonvolatile.
fn revoke_offer(object: &Object) -> Result<Outcome> {
    revoke_object(object.range, |_, outcome| {
        let is_intact = *outcome == Outcome::Intact;
        (object.word).publish_revoked(Timestamp::now(), offer_delay(), is_intact);
    })
}
