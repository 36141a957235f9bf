//! The address space of an arena: which parts of it buffers use.

use std::sync::Weak;

use super::blocks::Blocks;
use super::free_extents::FreeExtents;
use super::memory::ArenaMemory;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::discard_each;
use crate::ground::sys::{Errno, page_size};
use crate::verbs::volatile::engine::Engine;

/// How many dropped places are emptied together, and how many pages of them at least: what
/// a cache evicts must be free soon.
const DROPPED_PLACES: usize = 64;
const DROPPED_PAGES: usize = 64;

/// Larger places are emptied by themselves, when they are dropped.
pub(super) const SMALL_PAGES: usize = 16;

/// How much is made ready for small places at a time.
const READY_PAGES: usize = 64;

/// The part of an arena that the ENGINE lock guards.
#[derive(Debug)]
pub(crate) struct Space {
    /// Dead while the arena is unmapped.
    pub(super) memory: Weak<ArenaMemory>,
    pub(super) range: PageRange,
    free: FreeExtents,
    /// A part of which every page can be used at once, for the next small places.
    ready: PageRange,
    /// Places of buffers that are gone, with their pages.
    dropped: Vec<PageRange>,
    /// The blocks that are registered with the userfaultfd of `epoch`.
    pub(super) blocks: Blocks,
    /// The engine's epoch in which `blocks` and the offers in the arena are protected.
    pub(super) epoch: u64,
    /// Something may have been offered in that epoch.
    pub(super) was_protected: bool,
    /// This is a child that could not register what it inherited: what was offered is
    /// inaccessible instead.
    pub(super) is_inaccessible: bool,
}

impl Space {
    /// Returns `None` if there is no memory for it.
    pub(super) fn new(memory: Weak<ArenaMemory>, range: PageRange, epoch: u64) -> Option<Self> {
        let mut dropped = Vec::new();
        dropped.try_reserve_exact(DROPPED_PLACES).ok()?;
        Some(Self {
            memory,
            range,
            free: FreeExtents::new(range),
            ready: PageRange::between(range.start(), range.start()),
            dropped,
            blocks: Blocks::none_of(range)?,
            epoch,
            was_protected: false,
            is_inaccessible: false,
        })
    }

    /// Takes a place for `len` bytes, a whole number of pages, all of whose pages can be
    /// used and read as zeros; `None` if no free part is as long.
    pub(super) fn take(&mut self, len: usize, engine: &Engine) -> Result<Option<PageRange>, Errno> {
        let is_small = len <= SMALL_PAGES * page_size();
        if is_small && len <= self.ready.len() {
            return Ok(Some(self.take_ready(len)));
        }
        let max_len = if is_small {
            READY_PAGES * page_size()
        } else {
            len
        };
        let Some(part) = self.take_part(len, max_len) else {
            return Ok(None);
        };
        if let Err(errno) = self.make_usable(part, engine) {
            self.free.put_back(part);
            return Err(errno);
        }
        if !is_small {
            return Ok(Some(part));
        }
        self.put_back_ready();
        self.ready = part;
        Ok(Some(self.take_ready(len)))
    }

    fn take_ready(&mut self, len: usize) -> PageRange {
        let middle = self.ready.start() + len;
        let place = PageRange::between(self.ready.start(), middle);
        self.ready = PageRange::between(middle, self.ready.end());
        place
    }

    fn put_back_ready(&mut self) {
        if !self.ready.is_empty() {
            self.free.put_back(self.ready);
            self.ready = PageRange::between(self.ready.end(), self.ready.end());
        }
    }

    /// Takes a free part of at least `len` bytes, and of `max_len` at most.
    fn take_part(&mut self, len: usize, max_len: usize) -> Option<PageRange> {
        self.free.take_up_to(len, max_len).or_else(|| {
            self.put_back_ready();
            self.empty_dropped();
            self.free.take_up_to(len, max_len)
        })
    }

    /// Returns the length of the longest free part, in bytes.
    pub(super) fn longest(&self) -> usize {
        self.free.longest()
    }

    /// Gives every page of a free part its zero page where an absent one would be SIGBUS:
    /// `ioctl(UFFDIO_ZEROPAGE)`. Whole blocks are unregistered instead, so that a large
    /// place takes no page tables before it is used: `ioctl(UFFDIO_UNREGISTER)`.
    fn make_usable(&mut self, part: PageRange, engine: &Engine) -> Result<(), Errno> {
        let Some(uffd) = engine.uffd_of(self.epoch) else {
            return Ok(());
        };
        if part.len() > READY_PAGES * page_size() {
            let whole = self.blocks.within(part);
            if self.blocks.registered(whole).next().is_some() {
                uffd.unregister(whole)?;
                self.blocks.set(whole, false);
            }
        }
        for registered in self.blocks.registered(part) {
            uffd.fill_with_zeros(registered)?;
        }
        Ok(())
    }

    /// Takes the place of a buffer that is gone, with its pages. Small ones are emptied
    /// together, so that a drop costs a fraction of a system call; up to 512 KiB of pages
    /// of 4 KiB stay until then. A large place has been emptied by the caller.
    pub(super) fn put_back(&mut self, place: PageRange) {
        if place.pages() > SMALL_PAGES {
            self.free.put_back(place);
            return;
        }
        let dropped_pages: usize = self.dropped.iter().map(|place| place.pages()).sum();
        if self.dropped.len() == DROPPED_PLACES || dropped_pages >= DROPPED_PAGES {
            self.empty_dropped();
        }
        self.dropped.push(place);
    }

    /// Empties all dropped places, and makes them free: `process_madvise(MADV_DONTNEED)`, or
    /// `madvise` for neighbours together.
    pub(super) fn empty_dropped(&mut self) {
        self.dropped.sort_unstable_by_key(|place| place.start());
        self.dropped.dedup_by(|next, all| {
            let is_next = all.end() == next.start();
            if is_next {
                *all = PageRange::between(all.start(), next.end());
            }
            is_next
        });
        // A place that cannot be emptied is not used again.
        // SAFETY: the places belonged to buffers that are gone.
        unsafe { discard_each(&self.dropped, |part| self.free.put_back(part)) };
        self.dropped.clear();
    }
}
