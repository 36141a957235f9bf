//! Reserved addresses for later mappings, and how to tell whose they are after
//! the kernel has refused to map there.
//!
//! `mmap` with MAP_FIXED and `mremap` with MREMAP_FIXED unmap the target
//! *before* they find that they cannot map anything there (all kernels, 6.18
//! included, though not for every reason). The target is then a hole, and the
//! next `mmap` of any thread may land in it: to unmap the reservation as a
//! whole would unmap another thread's memory. After such a refusal,
//! [`Reservation::map_failed`] reserves the target again if it is free. If it
//! is not, the reservation checks whether target and a reserved page beside it
//! are still one mapping, which says that the kernel never unmapped it.
//! (Reservations are MADV_DONTFORK, so that mappings of other threads do not
//! merge with them.) In doubt the target is left alone: that leaks addresses,
//! not memory.

use rustix::io::Errno;

use super::advise::{Advice, advise};
use super::{map, vma};
use crate::PageRange;

/// Reserved addresses: an inaccessible mapping that only its owner maps over.
#[derive(Debug)]
pub(crate) struct Reservation {
    range: PageRange,
    /// Parts that another thread has mapped, or may have, in order.
    foreign: Vec<PageRange>,
}

impl Reservation {
    /// Reserves addresses with an inaccessible mapping, for which the kernel
    /// charges no memory. On failure, returns the call that the kernel refused.
    pub(crate) fn new(len: usize) -> Result<Self, (&'static str, Errno)> {
        let range = map::reserve(len).map_err(|errno| ("mmap", errno))?;
        let reservation = Self {
            range,
            foreign: Vec::new(),
        };
        // This distinguishes the reservation from adjacent mappings of other
        // threads, so the kernel never merges them.
        match advise(range, Advice::DontFork) {
            Ok(()) => Ok(reservation),
            Err(errno) => {
                // SAFETY: reserved above, and no other code knows the
                // addresses.
                unsafe { reservation.unmap() };
                Err(("madvise(MADV_DONTFORK)", errno))
            }
        }
    }

    /// Returns all of it, including parts that another thread may have mapped.
    pub(crate) fn range(&self) -> PageRange {
        self.range
    }

    /// Determines who owns `part`, after the kernel has refused to map over it
    /// or to move memory there. `part` must not be the whole reservation.
    pub(crate) fn map_failed(&mut self, part: PageRange) {
        if map::reserve_at(part).is_ok() {
            // Even if this fails, the addresses are reserved.
            let _ = advise(part, Advice::DontFork);
        } else if !self.is_still_reserved(part) {
            self.foreign.push(part);
        }
    }

    /// Gives up a part to the mapping that is, or may be, there.
    pub(crate) fn disown(&mut self, part: PageRange) {
        self.foreign.push(part);
    }

    /// Returns whether the part and a reserved page beside it are still one
    /// mapping.
    fn is_still_reserved(&self, part: PageRange) -> bool {
        let page = super::page_size();
        let before = PageRange::between(part.start() - page, part.end());
        let behind = PageRange::between(part.start(), part.end() + page);
        [before, behind]
            .into_iter()
            .filter(|&both| self.range.contains(both))
            .any(|both| vma::cover(both).is_ok_and(|vmas| vmas.len() == 1))
    }

    /// Returns the parts of the reservation that are certainly its own, in
    /// order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = PageRange> {
        let starts =
            std::iter::once(self.range.start()).chain(self.foreign.iter().map(|other| other.end()));
        let ends = self
            .foreign
            .iter()
            .map(|other| other.start())
            .chain([self.range.end()]);
        starts
            .zip(ends)
            .map(|(start, end)| PageRange::between(start, end))
            .filter(|part| !part.is_empty())
    }

    /// Unmaps all parts that are the reservation's own: `munmap(2)`. A part
    /// that the kernel cannot unmap (splitting a mapping would exceed
    /// `vm.max_map_count`) stays reserved.
    ///
    /// # Safety
    ///
    /// Nothing may use what is mapped in the reservation's own parts.
    pub(crate) unsafe fn unmap(self) {
        for part in self.parts() {
            // SAFETY: `parts` returns only the reservation's own parts, and the
            // caller promises that nothing uses them.
            let _ = unsafe { map::unmap(part) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::sys::page_size;

    const PAGES: usize = 16;

    fn pages(of: PageRange, from: usize, to: usize) -> PageRange {
        let start = of.start();
        PageRange::between(start + from * page_size(), start + to * page_size())
    }

    fn reserved() -> (Reservation, PageRange) {
        let reservation = Reservation::new(PAGES * page_size()).unwrap();
        let range = reservation.range();
        (reservation, range)
    }

    /// Unmaps a target, as the kernel does before it refuses.
    fn unmap(range: PageRange) {
        // SAFETY: the test's own addresses.
        unsafe { map::unmap(range) }.unwrap();
    }

    #[test]
    fn map_failed_on_untouched_part_keeps_it() {
        let (mut reservation, range) = reserved();
        reservation.map_failed(pages(range, 3, 7));
        assert!(reservation.parts().eq([range]));
        // SAFETY: nothing is there.
        unsafe { reservation.unmap() };
        assert!(vma::cover(range).is_err());
    }

    #[test]
    fn map_failed_on_free_hole_reserves_it_again() {
        let (mut reservation, range) = reserved();
        for part in [pages(range, 0, 4), pages(range, 9, 16)] {
            unmap(part);
            reservation.map_failed(part);
            assert_eq!(vma::cover(range).unwrap().len(), 1);
        }
        assert!(reservation.parts().eq([range]));
        // SAFETY: nothing is there.
        unsafe { reservation.unmap() };
    }

    #[test]
    fn map_failed_on_foreign_mapping_leaves_it() {
        // All of the hole, or one page of it.
        for (from, to) in [(3, 7), (3, 4), (6, 7), (5, 6)] {
            let (mut reservation, range) = reserved();
            let hole = pages(range, 3, 7);
            unmap(hole);
            let foreign = pages(range, from, to);
            map::reserve_at(foreign).unwrap();
            reservation.map_failed(hole);
            assert!(
                reservation
                    .parts()
                    .eq([pages(range, 0, 3), pages(range, 7, 16)])
            );
            // SAFETY: nothing uses the reservation.
            unsafe { reservation.unmap() };
            assert_eq!(vma::within(range).unwrap().len(), 1);
            assert_eq!(vma::cover(foreign).unwrap()[0].range, foreign);
            unmap(foreign);
        }
    }
}
