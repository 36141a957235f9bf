//! An open shared file, and its header and table in memory.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use super::file::system;
use super::layout::{Entry, FIXED_BYTES, Geometry, Header, Kind};
use super::word::Reading;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Advice, advise};
use crate::ground::sys::map::{self, Backing};
use crate::ground::sys::shared_file::{self, Facts};
use crate::ground::sys::{Errno, page_size};

/// A file whose layout has been checked.
pub(crate) struct Table {
    /// Closed unless the program has closed it, and reused its number.
    fd: ManuallyDrop<OwnedFd>,
    /// Device and inode.
    identity: (u64, u64),
    /// How errors name it.
    pub(super) name: String,
    pub(crate) geometry: Geometry,
    /// Header and entries.
    memory: PageRange,
    /// The file cannot be truncated.
    is_sealed: bool,
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`; references to it borrow the table.
        let _ = unsafe { map::unmap(self.memory) };
        if self.facts().is_ok() {
            // SAFETY: nobody uses it any more.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

/// Returns the error of a shared file.
pub(super) fn refused(name: &str, reason: &'static str, errno: Errno) -> Error {
    Error::SharedMemory {
        name: name.to_owned(),
        reason,
        errno,
    }
}

impl Table {
    /// Writes the header of a new file, which has the length of the geometry and nothing in it,
    /// and has the kernel allocate the table: later, a page that cannot be allocated would be
    /// SIGBUS.
    pub(super) fn format(fd: BorrowedFd<'_>, geometry: &Geometry) -> Result<()> {
        let bytes = geometry.table_bytes() as u64;
        shared_file::allocate(fd, 0, bytes).map_err(system("fallocate"))?;
        shared_file::write(fd, &geometry.to_bytes(), 0).map_err(system("pwrite"))
    }

    /// Checks a file and maps its table, to change it or to read it only.
    pub(super) fn open(fd: OwnedFd, name: String, is_writable: bool) -> Result<Self> {
        let corrupt = |reason| refused(&name, reason, Errno::PROTO);
        let facts = shared_file::facts(&fd).map_err(system("fstat"))?;
        let mut fixed = [0; FIXED_BYTES];
        shared_file::read(fd.as_fd(), &mut fixed, 0).map_err(|errno| match errno {
            // It is too short, or a kind of file that has no offsets.
            Errno::IO | Errno::SPIPE | Errno::ISDIR => corrupt("it is no shared memory of tenure"),
            errno => system("pread")(errno),
        })?;
        let geometry = Geometry::parse(fixed).map_err(corrupt)?;
        if facts.len != geometry.file_bytes() {
            return Err(corrupt("it was truncated, or is corrupt"));
        }
        if is_writable && !shared_file::may_have_len(facts.len) {
            return Err(refused(
                &name,
                "RLIMIT_FSIZE is too low for it",
                Errno::FBIG,
            ));
        }
        let backing = Backing::File {
            fd: fd.as_fd(),
            offset: 0,
        };
        let memory =
            map::map(backing, geometry.table_bytes(), true, is_writable).map_err(system("mmap"))?;
        let is_sealed = shared_file::is_sealed(&fd);
        Ok(Self {
            fd: ManuallyDrop::new(fd),
            identity: facts.identity,
            name,
            geometry,
            memory,
            is_sealed,
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Checks that the file still has its length: access to the table of a truncated file is
    /// SIGBUS. Each call of an interface begins with it. Memory that is sealed needs no check.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_sealed {
            return Ok(());
        }
        match self.facts()?.len >= self.geometry.file_bytes() {
            true => Ok(()),
            false => Err(self.refused("it was truncated", Errno::PROTO)),
        }
    }

    /// Checks that the descriptor is still the file's: programs close descriptors that they did
    /// not open, and then open others of the same number. Each call that changes the file
    /// begins with it.
    pub(crate) fn check_descriptor(&self) -> Result<()> {
        self.facts().map(drop)
    }

    /// As [`check_descriptor`](Self::check_descriptor), for calls that have begun with
    /// [`check`](Self::check) only, and read the file.
    pub(super) fn check_sealed_descriptor(&self) -> Result<()> {
        match self.is_sealed {
            true => self.check_descriptor(),
            false => Ok(()),
        }
    }

    fn facts(&self) -> Result<Facts> {
        match shared_file::facts(self.fd()) {
            Ok(facts) if facts.identity == self.identity => Ok(facts),
            _ => Err(self.refused("the program has closed its descriptor", Errno::BADF)),
        }
    }

    pub(crate) fn refused(&self, reason: &'static str, errno: Errno) -> Error {
        refused(&self.name, reason, errno)
    }

    pub(crate) fn header(&self) -> &Header {
        // SAFETY: the mapping begins with a header, on a page boundary, as long as `self`
        // lives; what other processes change in it is atomic.
        unsafe { &*self.memory.as_ptr().cast::<Header>() }
    }

    /// Returns the entries.
    pub(crate) fn entries(&self) -> &[Entry] {
        let start = self.memory.start() + Geometry::table_start();
        let start = std::ptr::with_exposed_provenance::<Entry>(start);
        // SAFETY: the mapping has so many entries behind the header, which is a multiple of
        // 4096 bytes, as long as `self` lives. Entries are atomics only.
        unsafe { std::slice::from_raw_parts(start, self.geometry.count) }
    }

    /// Returns the entry, and its contents' length and place. `None` if there is no such
    /// entry, or if its length is corrupt.
    pub(crate) fn entry(&self, index: usize) -> Option<(&Entry, u64, u64)> {
        let entry = self.entries().get(index)?;
        let (len, place) = self.contents(index, self.side(entry.word.read()))?;
        Some((entry, len, place))
    }

    /// Returns the side of the contents that are found.
    pub(crate) fn side(&self, word: Reading) -> usize {
        match self.geometry.kind {
            Kind::Arena { .. } => 0,
            Kind::Cache => word.side(),
        }
    }

    /// Returns the length and the place of the contents on one side, as
    /// [`entry`](Self::entry).
    pub(crate) fn contents(&self, index: usize, side: usize) -> Option<(u64, u64)> {
        let contents = self.entries().get(index)?.contents.get(side)?;
        let len = contents.len.load(Ordering::Relaxed);
        Some((len, self.geometry.place(index, side, len)?))
    }

    /// Maps the places of all objects, for this process and no child of it.
    pub(super) fn map_places(&self) -> Result<PageRange> {
        let start = self.geometry.table_bytes();
        let len = self.geometry.file_bytes() - start as u64;
        let len = usize::try_from(len).map_err(|_| Error::Overflow {
            addr: 0,
            len: usize::MAX,
        })?;
        let backing = Backing::File {
            fd: self.fd(),
            offset: start as u64,
        };
        let system = |call| move |errno| Error::System { call, errno };
        let range = map::map(backing, len, true, true).map_err(system("mmap"))?;
        advise(range, Advice::DontFork)
            .map_err(system("madvise(MADV_DONTFORK)"))
            .inspect_err(|_| {
                // SAFETY: mapped above, and nobody else knows the address.
                let _ = unsafe { map::unmap(range) };
            })?;
        Ok(range)
    }
}

/// Returns the memory that contents take.
pub(crate) fn pages_of(len: u64) -> u64 {
    len.max(1).next_multiple_of(page_size() as u64)
}
