//! How a mapping is made.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::Mapping;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Harmless, Losing, advise, advise_losing};
use crate::ground::sys::map::{self, Backing};
use crate::ground::sys::process::LockLimit;
use crate::ground::sys::{Errno, page_size};

/// Whether a mapping is to be made of transparent huge pages.
///
/// Without either choice the system's own default holds
/// (`/sys/kernel/mm/transparent_hugepage/enabled`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePages {
    /// Wherever they fit: `MADV_HUGEPAGE`. Anonymous memory that is long enough
    /// begins on a boundary of huge pages.
    Always,
    /// Nowhere: `MADV_NOHUGEPAGE`.
    Never,
}

/// Which pages a memfd is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemfdPages {
    /// Pages of the base size.
    Base,
    /// 2 MiB pages from the hugetlb pool (`vm.nr_hugepages`).
    Huge2M,
}

const HUGE_2M_BYTES: usize = 2 << 20;

#[derive(Clone, Copy, Debug)]
enum Source<'a> {
    Anonymous,
    SharedAnonymous,
    Memfd(MemfdPages),
    File { file: BorrowedFd<'a>, offset: u64 },
}

/// Says what a [`Mapping`] shall be; [`map`](MappingBuilder::map) makes it.
#[derive(Clone, Debug)]
#[must_use = "a builder maps nothing until `map` is called"]
pub struct MappingBuilder<'a> {
    source: Source<'a>,
    /// In bytes; `None` is the rest of the file.
    len: Option<usize>,
    private: bool,
    writable: bool,
    huge_pages: Option<HugePages>,
    no_dump: bool,
    wipe_on_fork: bool,
}

impl Mapping {
    /// Begins private anonymous memory of `len` bytes: zeros, this process's
    /// own, copied on write after fork.
    pub fn anonymous(len: usize) -> MappingBuilder<'static> {
        MappingBuilder::new(Source::Anonymous, Some(len))
    }

    /// Begins shared anonymous memory of `len` bytes: zeros, one copy for this
    /// process and the children that it forks later.
    pub fn shared_anonymous(len: usize) -> MappingBuilder<'static> {
        MappingBuilder::new(Source::SharedAnonymous, Some(len))
    }

    /// Begins a memfd of `len` bytes, mapped shared. The mapping keeps its
    /// descriptor; a [`private`](MappingBuilder::private) one does not.
    ///
    /// With [`MemfdPages::Huge2M`] whole huge pages are mapped and reserved;
    /// [`map`](MappingBuilder::map) fails when the pool has not enough of them.
    pub fn memfd(len: usize, pages: MemfdPages) -> MappingBuilder<'static> {
        MappingBuilder::new(Source::Memfd(pages), Some(len))
    }

    /// Begins a mapping of a file's contents: shared, read-only, from the start
    /// to the end of the file, unless the builder is told otherwise.
    ///
    /// # Safety
    ///
    /// While the mapping lives nobody may
    /// * shorten the file: touching a page behind its end is SIGBUS;
    /// * change the bytes mapped, through another mapping or descriptor, in a
    ///   moment in which a reference to them exists.
    pub unsafe fn file(file: &File) -> MappingBuilder<'_> {
        let source = Source::File {
            file: file.as_fd(),
            offset: 0,
        };
        MappingBuilder {
            writable: false,
            ..MappingBuilder::new(source, None)
        }
    }
}

impl MappingBuilder<'_> {
    fn new(source: Source<'_>, len: Option<usize>) -> MappingBuilder<'_> {
        MappingBuilder {
            source,
            len,
            private: matches!(source, Source::Anonymous),
            writable: true,
            huge_pages: None,
            no_dump: false,
            wipe_on_fork: false,
        }
    }

    /// Maps a memfd or file copy-on-write: what is written stays in this
    /// mapping. Shared anonymous memory becomes private.
    pub fn private(mut self) -> Self {
        self.private = true;
        self
    }

    /// Maps a file for writing as well. The file must be open for both, unless
    /// the mapping is [`private`](MappingBuilder::private).
    pub fn read_write(mut self) -> Self {
        self.writable = true;
        self
    }

    /// Begins the mapping of a file `offset` bytes behind its start, a multiple
    /// of the page size. Other memory has no offset and ignores it.
    pub fn offset(mut self, bytes: u64) -> Self {
        if let Source::File { offset, .. } = &mut self.source {
            *offset = bytes;
        }
        self
    }

    /// Maps `len` bytes instead of the length known so far. A part behind the
    /// end of a file cannot be touched.
    pub fn len(mut self, len: usize) -> Self {
        self.len = Some(len);
        self
    }

    /// Chooses transparent huge pages, or none (`MADV_HUGEPAGE`,
    /// `MADV_NOHUGEPAGE`).
    pub fn huge_pages(mut self, choice: HugePages) -> Self {
        self.huge_pages = Some(choice);
        self
    }

    /// Leaves the mapping out of core dumps (`MADV_DONTDUMP`).
    pub fn no_dump(mut self) -> Self {
        self.no_dump = true;
        self
    }

    /// Gives children zeros instead of the contents (`MADV_WIPEONFORK`, Linux
    /// 4.14; private anonymous memory only).
    pub fn wipe_on_fork(mut self) -> Self {
        self.wipe_on_fork = true;
        self
    }

    /// Makes the mapping: `mmap(2)` and the advice asked for.
    ///
    /// # Errors
    ///
    /// * [`Error::EmptyMapping`] for no bytes or an empty file.
    /// * [`Error::Unaligned`] for an offset that is not whole pages.
    /// * [`Error::Overflow`] for a length that no address space has.
    /// * [`Error::ProcessLockLimit`] when [`lock_all`](crate::lock_all) holds for
    ///   future mappings and the limit does not allow another.
    /// * [`Error::System`] with what the kernel answered: ENOMEM (no room, or
    ///   no huge pages), EACCES (a file that is not open for what is asked),
    ///   ENODEV (a file that cannot be mapped), EINVAL (advice that this kernel
    ///   or this kind of memory does not know).
    ///
    /// On an error nothing stays mapped.
    pub fn map(self) -> Result<Mapping> {
        let len = self.len_bytes()?;
        if len == 0 {
            return Err(Error::EmptyMapping);
        }
        let granule = match self.source {
            Source::Memfd(MemfdPages::Huge2M) => HUGE_2M_BYTES,
            _ => page_size(),
        };
        let rounded = len
            .checked_next_multiple_of(granule)
            .filter(|&rounded| isize::try_from(rounded).is_ok())
            .ok_or(Error::Overflow { addr: 0, len })?;
        let (range, file) = self.mmap(rounded)?;
        let mapping = Mapping {
            range,
            len,
            writable: self.writable,
            file,
        };
        // From here on an error drops, and so unmaps, the mapping.
        self.give_advice(range)?;
        Ok(mapping)
    }

    fn len_bytes(&self) -> Result<usize> {
        let Source::File { file, offset } = self.source else {
            return Ok(self.len.unwrap_or(0));
        };
        let page_bytes = page_size();
        if !offset.is_multiple_of(page_bytes as u64) {
            return Err(Error::Unaligned {
                addr: offset as usize,
                len: self.len.unwrap_or(0),
                page_bytes,
            });
        }
        if let Some(len) = self.len {
            return Ok(len);
        }
        let file_len = map::file_len(file).map_err(system("fstat"))?;
        Ok(file_len.saturating_sub(offset) as usize)
    }

    /// Maps, and keeps a descriptor of the file that writing will write to.
    fn mmap(&self, len: usize) -> Result<(PageRange, Option<(OwnedFd, u64)>)> {
        let map = |backing| {
            let shared = !self.private;
            match (backing, self.huge_pages) {
                (Backing::Anonymous, Some(HugePages::Always)) => {
                    map::map_for_huge_pages(len, shared, self.writable)
                }
                _ => map::map(backing, len, shared, self.writable),
            }
            .map_err(|errno| explain_mmap(len, errno))
        };
        let written = self.writable && !self.private;
        match self.source {
            Source::Anonymous | Source::SharedAnonymous => Ok((map(Backing::Anonymous)?, None)),
            Source::File { file: fd, offset } => {
                let range = map(Backing::File { fd, offset })?;
                let kept = written.then(|| fd.try_clone_to_owned()).transpose();
                // Without it (no descriptor to be had) one strategy of populate
                // is missing.
                Ok((range, kept.ok().flatten().map(|file| (file, offset))))
            }
            Source::Memfd(pages) => {
                let memfd = map::memfd(len, pages == MemfdPages::Huge2M)
                    .map_err(|(call, errno)| Error::System { call, errno })?;
                let range = map(Backing::File {
                    fd: memfd.as_fd(),
                    offset: 0,
                })?;
                Ok((range, written.then_some((memfd, 0))))
            }
        }
    }

    fn give_advice(&self, range: PageRange) -> Result<()> {
        let harmless = [
            self.huge_pages.map(|choice| match choice {
                HugePages::Always => (Harmless::HugePage, "madvise(MADV_HUGEPAGE)"),
                HugePages::Never => (Harmless::NoHugePage, "madvise(MADV_NOHUGEPAGE)"),
            }),
            self.no_dump
                .then_some((Harmless::DontDump, "madvise(MADV_DONTDUMP)")),
        ];
        for (advice, call) in harmless.into_iter().flatten() {
            match advise(range, advice) {
                // A kernel built without huge pages has none to refuse.
                Err(Errno::INVAL) if advice == Harmless::NoHugePage => {}
                answer => answer.map_err(system(call))?,
            }
        }
        if self.wipe_on_fork {
            // SAFETY: the mapping is new, and its owner asked for the wiping.
            unsafe { advise_losing(range, Losing::WipeOnFork) }
                .map_err(system("madvise(MADV_WIPEONFORK)"))?;
        }
        Ok(())
    }
}

/// EAGAIN is the limit on locked memory, which counts here when all future
/// mappings are locked.
pub(crate) fn explain_mmap(len: usize, errno: Errno) -> Error {
    match (errno, LockLimit::now()) {
        (Errno::AGAIN, Some(limit)) => Error::ProcessLockLimit {
            verb: "map memory that is locked because of lock_all",
            limit_bytes: limit.limit_bytes,
            used_bytes: limit.used_bytes,
            asked_bytes: len,
        },
        _ => system("mmap")(errno),
    }
}

fn system(call: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::System { call, errno }
}
