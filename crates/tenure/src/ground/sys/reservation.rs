//! Addresses kept free for mappings to come, and whose they are once the kernel
//! has refused to put one there.

use rustix::io::Errno;

use super::advise::{Harmless, advise};
use super::{map, vma};
use crate::PageRange;

/// Addresses that nobody else uses.
///
/// `mmap` with MAP_FIXED and `mremap` with MREMAP_FIXED unmap what is at the
/// target *before* they find that they cannot put anything there (all kernels,
/// 6.18 included, if not for each reason). The target is a hole then, and the
/// next `mmap` of any thread may lie in it: to unmap the reservation as a whole
/// would unmap another's memory. [`Reservation::refused`] finds out.
#[derive(Debug)]
pub(crate) struct Reservation {
    range: PageRange,
    /// Parts that are, or may be, another's by now, in order.
    others: Vec<PageRange>,
}

impl Reservation {
    /// Reserves addresses: nothing can be read or written there, and no memory is
    /// charged for them. Says which call was refused.
    pub(crate) fn new(len: usize) -> Result<Self, (&'static str, Errno)> {
        let range = map::reserve(len).map_err(|errno| ("mmap", errno))?;
        let reservation = Self {
            range,
            others: Vec::new(),
        };
        // What others map beside it does not look the same, and so never becomes
        // one mapping with it.
        match advise(range, Harmless::DontFork) {
            Ok(()) => Ok(reservation),
            Err(errno) => {
                // SAFETY: reserved above; nobody knows of it.
                unsafe { reservation.unmap() };
                Err(("madvise(MADV_DONTFORK)", errno))
            }
        }
    }

    /// All of it, whosever parts of it are.
    pub(crate) fn range(&self) -> PageRange {
        self.range
    }

    /// Call it when the kernel has refused to map over, or to move to, a part of
    /// the reservation that is not all of it.
    pub(crate) fn refused(&mut self, part: PageRange) {
        if map::reserve_at(part).is_ok() {
            // Without the mark it is ours all the same.
            let _ = advise(part, Harmless::DontFork);
        } else if !self.is_still_reserved(part) {
            self.others.push(part);
        }
    }

    /// Leaves a part to whoever has mapped something there, or may have.
    pub(crate) fn give(&mut self, part: PageRange) {
        self.others.push(part);
    }

    /// Whether the part is one mapping with a page of ours beside it: as it was.
    fn is_still_reserved(&self, part: PageRange) -> bool {
        let page = super::page_size();
        let before = PageRange::between(part.start() - page, part.end());
        let behind = PageRange::between(part.start(), part.end() + page);
        [before, behind]
            .into_iter()
            .filter(|&both| self.range.contains(both))
            .any(|both| vma::cover(both).is_ok_and(|vmas| vmas.len() == 1))
    }

    /// The parts of the reservation that are certainly ours, in order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = PageRange> {
        let starts =
            std::iter::once(self.range.start()).chain(self.others.iter().map(|other| other.end()));
        let ends = self
            .others
            .iter()
            .map(|other| other.start())
            .chain([self.range.end()]);
        starts
            .zip(ends)
            .map(|(start, end)| PageRange::between(start, end))
            .filter(|part| !part.is_empty())
    }

    /// Gives the addresses up, all that are ours. What cannot be unmapped (no room
    /// to split a mapping) stays reserved.
    ///
    /// # Safety
    ///
    /// Nothing may use what has been mapped there.
    pub(crate) unsafe fn unmap(self) {
        for part in self.parts() {
            // SAFETY: the caller gives it up; and it is nobody else's.
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

    fn room() -> (Reservation, PageRange) {
        let room = Reservation::new(PAGES * page_size()).unwrap();
        let range = room.range();
        (room, range)
    }

    /// What the kernel does before it finds that it has to refuse.
    fn unmap(range: PageRange) {
        // SAFETY: the test's own addresses.
        unsafe { map::unmap(range) }.unwrap();
    }

    #[test]
    fn what_was_left_alone_is_still_ours() {
        let (mut room, range) = room();
        room.refused(pages(range, 3, 7));
        assert!(room.parts().eq([range]));
        // SAFETY: nothing is there.
        unsafe { room.unmap() };
        assert!(vma::cover(range).is_err());
    }

    #[test]
    fn a_hole_that_nobody_has_found_is_ours_again() {
        let (mut room, range) = room();
        for part in [pages(range, 0, 4), pages(range, 9, 16)] {
            unmap(part);
            room.refused(part);
            assert_eq!(vma::cover(range).unwrap().len(), 1);
        }
        assert!(room.parts().eq([range]));
        // SAFETY: nothing is there.
        unsafe { room.unmap() };
    }

    #[test]
    fn what_another_has_mapped_meanwhile_stays() {
        // Whether or not it can be accessed, all of the hole or a page of it.
        for (from, to) in [(3, 7), (3, 4), (6, 7), (5, 6)] {
            let (mut room, range) = room();
            let hole = pages(range, 3, 7);
            unmap(hole);
            let others = pages(range, from, to);
            map::reserve_at(others).unwrap();
            room.refused(hole);
            assert!(room.parts().eq([pages(range, 0, 3), pages(range, 7, 16)]));
            // SAFETY: nothing of ours is there.
            unsafe { room.unmap() };
            assert_eq!(vma::within(range).unwrap().len(), 1);
            assert_eq!(vma::cover(others).unwrap()[0].range, others);
            unmap(others);
        }
    }
}
