//! Moving pages from one private anonymous mapping to another without changing either:
//! UFFDIO_MOVE (Linux 6.8).
//!
//! A page moves only to where none is, which the kernel checks under the lock of the page
//! table: a write of another thread to the destination is never lost.

use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd as _, OwnedFd};

use linux_raw_sys::general::{
    UFFD_FEATURE_MOVE, UFFD_FEATURE_PAGEFAULT_FLAG_WP, UFFD_FEATURE_SIGBUS,
    UFFDIO_REGISTER_MODE_MISSING, UFFDIO_REGISTER_MODE_WP, uffdio_move, uffdio_range,
    uffdio_register,
};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use super::features::Features;
use super::fork::{self, ForkGuard};
use super::userfaultfd::{MAGIC, REGISTER, UNREGISTER, identity, open_with, uffdio};
use crate::PageRange;

const MOVE: Opcode = opcode::read_write::<uffdio_move>(MAGIC, 5);

/// Whether this kernel and container have UFFDIO_MOVE.
pub(crate) fn is_supported() -> bool {
    let features = Features::get();
    features.pagemap_scan.is_ok()
        && features
            .userfaultfd
            .is_ok_and(|features| features & u64::from(FEATURES) == u64::from(FEATURES))
}

/// SIGBUS mode has no access wait for this process.
const FEATURES: u32 = UFFD_FEATURE_MOVE | UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_SIGBUS;

/// A userfaultfd for some moves. It is opened for each use, so that a program that closes all
/// descriptors is not left with a stale one, and forks wait until it is closed: with an
/// inherited one a child could write to the memory of its parent.
pub(crate) struct PageMover {
    fd: ManuallyDrop<OwnedFd>,
    /// Device and inode of the descriptor when it was opened: each has its own inode since
    /// Linux 5.12.
    identity: (u64, u64),
    _forks_blocked: ForkGuard<()>,
}

/// A destination of moves: registered with a userfaultfd, as UFFDIO_MOVE requires, until it
/// is dropped.
pub(crate) struct Destination<'a> {
    mover: &'a PageMover,
    range: PageRange,
}

impl PageMover {
    pub(crate) fn open() -> Result<Self, Errno> {
        Self::open_with(fork::block_forks()?)
    }

    /// As [`PageMover::open`], for a thread that a fork may wait for: EBUSY while one is
    /// under way.
    pub(crate) fn open_unless_forking() -> Result<Self, Errno> {
        Self::open_with(fork::block_forks_unless_forking().ok_or(Errno::BUSY)?)
    }

    fn open_with(forks_blocked: ForkGuard<()>) -> Result<Self, Errno> {
        let (fd, _) = open_with(FEATURES)?;
        Ok(Self {
            identity: identity(&fd)?,
            fd: ManuallyDrop::new(fd),
            _forks_blocked: forks_blocked,
        })
    }

    /// Makes memory a destination. Its faults are handled as before: it is registered for
    /// write protection, and no page of it is protected. EBUSY where another userfaultfd has
    /// the range.
    pub(crate) fn register(&self, range: PageRange) -> Result<Destination<'_>, Errno> {
        self.register_for(UFFDIO_REGISTER_MODE_WP, range)
    }

    /// Makes memory that nobody touches a destination: any access to a missing page of it is
    /// SIGBUS, and the kernel populates none (`mlockall`). It is registered for missing pages:
    /// the end of a registration for write protection visits each page, which took a sixth of
    /// the CPU time of recycling base pages.
    pub(crate) fn register_untouched(&self, range: PageRange) -> Result<Destination<'_>, Errno> {
        self.register_for(UFFDIO_REGISTER_MODE_MISSING, range)
    }

    fn register_for(&self, mode: u32, range: PageRange) -> Result<Destination<'_>, Errno> {
        let mut register = uffdio_register {
            range: uffdio(range),
            mode: u64::from(mode),
            ioctls: 0,
        };
        // SAFETY: the code belongs to this structure, which outlives the call.
        unsafe {
            ioctl(
                &*self.fd,
                Updater::<REGISTER, uffdio_register>::new(&mut register),
            )
        }?;
        Ok(Destination { mover: self, range })
    }
}

impl Drop for PageMover {
    /// Closes the descriptor, unless another thread of the program has closed all: then its
    /// number may be another file's. (A program that closes and reuses it between the two
    /// calls is not noticed.)
    fn drop(&mut self) {
        if identity(&self.fd) == Ok(self.identity) {
            // SAFETY: the check above says that the number is still this file's, and nobody
            // uses it any more.
            unsafe { rustix::io::close(self.fd.as_raw_fd()) };
        }
    }
}

impl Destination<'_> {
    /// Moves the pages of `from` to the address `to` in this destination, until one of them
    /// cannot move: EEXIST where a page is at the destination, ENOENT where there is none at
    /// the source, EBUSY for a page that a child shares. Returns the bytes moved, and why
    /// they are not all.
    ///
    /// # Safety
    ///
    /// Nothing may rely on the contents of `from`, which may appear at the destination in
    /// place of zeros.
    pub(crate) unsafe fn move_pages(
        &self,
        from: PageRange,
        to: usize,
    ) -> (usize, Result<(), Errno>) {
        debug_assert!(self.range.contains(PageRange::between(to, to + from.len())));
        let mut done = 0;
        while done < from.len() {
            let mut request = uffdio_move {
                dst: (to + done) as u64,
                src: (from.start() + done) as u64,
                len: (from.len() - done) as u64,
                mode: 0,
                move_: 0,
            };
            // SAFETY: the code belongs to this structure, which outlives the call; nothing
            // relies on the contents of `from`, and pages move only to where none is.
            let answer = unsafe {
                ioctl(
                    &*self.mover.fd,
                    Updater::<MOVE, uffdio_move>::new(&mut request),
                )
            };
            let moved = usize::try_from(request.move_).unwrap_or(0);
            done += moved;
            match answer {
                Ok(()) => {}
                // Interrupted, or the kernel ended early; the next call tells why.
                Err(Errno::AGAIN) if moved > 0 => {}
                Err(errno) => return (done, Err(errno)),
            }
        }
        (done, Ok(()))
    }
}

impl Drop for Destination<'_> {
    fn drop(&mut self) {
        let mut range: uffdio_range = uffdio(self.range);
        // Closing the descriptor would end the registration as well.
        // SAFETY: the code belongs to this structure, which outlives the call.
        let _ = unsafe {
            ioctl(
                &*self.mover.fd,
                Updater::<UNREGISTER, uffdio_range>::new(&mut range),
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::mapping::{HugePages, Mapping};
    use crate::ground::sys::page_size;

    fn filled(pages: usize, byte: u8) -> Mapping {
        let memory = Mapping::anonymous(pages * page_size());
        let mut memory = memory.huge_pages(HugePages::Never).map().unwrap();
        memory.as_mut_slice().unwrap().fill(byte);
        memory
    }

    #[test]
    fn pages_move_to_missing_ones_only() {
        if !is_supported() {
            return;
        }
        let from = filled(4, 7);
        let mut to = Mapping::anonymous(4 * page_size()).map().unwrap();
        to.as_mut_slice().unwrap()[2 * page_size()] = 9;
        let mover = PageMover::open().unwrap();
        let Ok(destination) = mover.register(to.range()) else {
            return;
        };
        // SAFETY: the test's own memory.
        let moved = unsafe { destination.move_pages(from.range(), to.range().start()) };
        assert_eq!(moved, (2 * page_size(), Err(Errno::EXIST)));
        drop(destination);
        assert!(
            to.as_slice()[..2 * page_size()]
                .iter()
                .all(|&byte| byte == 7)
        );
        assert_eq!(to.as_slice()[2 * page_size()], 9);
        assert_eq!(to.as_slice()[3 * page_size()], 0);
        assert!(
            from.as_slice()[2 * page_size()..]
                .iter()
                .all(|&byte| byte == 7)
        );
    }

    #[test]
    fn untouched_destination_gets_pages_and_is_as_before_afterwards() {
        if !is_supported() {
            return;
        }
        let from = filled(4, 7);
        let mut to = Mapping::anonymous(8 * page_size()).map().unwrap();
        let mover = PageMover::open().unwrap();
        let destination = mover.register_untouched(to.range()).unwrap();
        // SAFETY: the test's own memory.
        let moved = unsafe { destination.move_pages(from.range(), to.range().start()) };
        assert_eq!(moved, (from.range().len(), Ok(())));
        drop(destination);
        let (moved, rest) = to.as_mut_slice().unwrap().split_at_mut(4 * page_size());
        assert!(moved.iter().all(|&byte| byte == 7));
        rest.fill(1);
    }

    #[test]
    fn descriptor_closed_by_the_program_is_not_closed_again() {
        if !is_supported() {
            return;
        }
        let mover = PageMover::open().unwrap();
        let to = Mapping::anonymous(2 * page_size()).map().unwrap();
        let destination = mover.register(to.range()).unwrap();
        let number = mover.fd.as_raw_fd();
        // The number is another file's from here on, as if the program had closed and reused
        // it; no other thread sees it free.
        let file = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: the test ends the userfaultfd as a program would.
        assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number);
        // SAFETY: the test's own memory.
        let moved = unsafe { destination.move_pages(to.range(), to.range().start()) };
        assert_eq!(moved, (0, Err(Errno::NOTTY)));
        drop(destination);
        drop(mover);
        // SAFETY: nobody else owns the number.
        assert_eq!(unsafe { libc::close(number) }, 0, "it was closed");
    }

    #[test]
    fn missing_source_stops_the_move() {
        if !is_supported() {
            return;
        }
        let from = Mapping::anonymous(2 * page_size()).map().unwrap();
        let to = Mapping::anonymous(2 * page_size()).map().unwrap();
        let mover = PageMover::open().unwrap();
        let destination = mover.register(to.range()).unwrap();
        // SAFETY: the test's own memory.
        let moved = unsafe { destination.move_pages(from.range(), to.range().start()) };
        assert_eq!(moved, (0, Err(Errno::NOENT)));
    }
}
