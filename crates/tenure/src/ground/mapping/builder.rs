//! `MappingBuilder`: the options of a mapping.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::Mapping;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Advice, DestructiveAdvice, advise, advise_destructive};
use crate::ground::sys::map::{self, Backing};
use crate::ground::sys::process::LockLimit;
use crate::ground::sys::{Errno, page_size, pending};

/// Whether a mapping uses transparent huge pages.
///
/// Without a choice, the system's default applies
/// (`/sys/kernel/mm/transparent_hugepage/enabled`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePages {
    /// Wherever they fit (`MADV_HUGEPAGE`). Anonymous memory that is long
    /// enough starts on a huge page boundary.
    Always,
    /// Nowhere (`MADV_NOHUGEPAGE`).
    Never,
}

/// The page size of a memfd.
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

/// The options of a [`Mapping`]; [`map`](MappingBuilder::map) creates it.
#[derive(Clone, Debug)]
#[must_use = "a builder maps nothing until `map` is called"]
pub struct MappingBuilder<'a> {
    source: Source<'a>,
    /// In bytes; `None` means up to the end of the file.
    len: Option<usize>,
    private: bool,
    writable: bool,
    huge_pages: Option<HugePages>,
    no_dump: bool,
    wipe_on_fork: bool,
}

impl Mapping {
    /// Starts a builder for `len` bytes of private anonymous memory: zeros,
    /// copied on write after fork.
    pub fn anonymous(len: usize) -> MappingBuilder<'static> {
        MappingBuilder::new(Source::Anonymous, Some(len))
    }

    /// Starts a builder for `len` bytes of shared anonymous memory: zeros,
    /// shared with the children that this process forks later.
    pub fn shared_anonymous(len: usize) -> MappingBuilder<'static> {
        MappingBuilder::new(Source::SharedAnonymous, Some(len))
    }

    /// Starts a builder for a memfd of `len` bytes, mapped shared. The mapping
    /// keeps its descriptor; a [`private`](MappingBuilder::private) one does
    /// not.
    ///
    /// With [`MemfdPages::Huge2M`], [`map`](MappingBuilder::map) maps and
    /// reserves whole huge pages, and fails when the pool has too few.
    pub fn memfd(len: usize, pages: MemfdPages) -> MappingBuilder<'static> {
        MappingBuilder::new(Source::Memfd(pages), Some(len))
    }

    /// Starts a builder for a mapping of a file's contents. By default it is
    /// shared and read-only, from the start to the end of the file.
    ///
    /// # Safety
    ///
    /// While the mapping lives nobody may
    /// * shorten the file: touching a page past its end is SIGBUS;
    /// * change the mapped bytes through another mapping or descriptor while a
    ///   reference to them exists.
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

    /// Maps a memfd or file copy-on-write: writes stay in this mapping. Shared
    /// anonymous memory becomes private.
    pub fn private(mut self) -> Self {
        self.private = true;
        self
    }

    /// Maps a file for reading and writing. The file must be open for both,
    /// unless the mapping is [`private`](MappingBuilder::private).
    pub fn read_write(mut self) -> Self {
        self.writable = true;
        self
    }

    /// Starts the mapping of a file at this offset, which must be a multiple of
    /// the page size. Other memory has no offset and ignores it.
    pub fn offset(mut self, bytes: u64) -> Self {
        if let Source::File { offset, .. } = &mut self.source {
            *offset = bytes;
        }
        self
    }

    /// Maps `len` bytes, whatever the length of the file. Pages past the end of
    /// the file cannot be touched.
    pub fn len(mut self, len: usize) -> Self {
        self.len = Some(len);
        self
    }

    /// Enables or disables transparent huge pages (`MADV_HUGEPAGE`,
    /// `MADV_NOHUGEPAGE`).
    pub fn huge_pages(mut self, choice: HugePages) -> Self {
        self.huge_pages = Some(choice);
        self
    }

    /// Excludes the mapping from core dumps (`MADV_DONTDUMP`).
    pub fn no_dump(mut self) -> Self {
        self.no_dump = true;
        self
    }

    /// Zeroes the contents in children after fork (`MADV_WIPEONFORK`, Linux
    /// 4.14; private anonymous memory only).
    pub fn wipe_on_fork(mut self) -> Self {
        self.wipe_on_fork = true;
        self
    }

    /// Creates the mapping: `mmap(2)`, then the `madvise(2)` calls of the
    /// options.
    ///
    /// # Errors
    ///
    /// * [`Error::EmptyMapping`] for zero bytes or an empty file.
    /// * [`Error::Unaligned`] for an offset that is not a multiple of the page
    ///   size.
    /// * [`Error::Overflow`] for a length that exceeds the address space.
    /// * [`Error::ProcessLockLimit`] when [`lock_all`](crate::lock::lock_all)
    ///   covers future mappings and `RLIMIT_MEMLOCK` does not allow another.
    /// * [`Error::System`] with the kernel's answer: ENOMEM (no address space,
    ///   or too few huge pages), EACCES (the file is not open for the requested
    ///   access), ENODEV (the file cannot be mapped), EINVAL (this kernel or
    ///   this kind of memory does not know the advice).
    ///
    /// On an error, nothing stays mapped.
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
        // From here on, returning an error drops the mapping, which unmaps it.
        self.apply_advice(range)?;
        Ok(mapping)
    }

    /// Returns the length of the mapping in bytes if it is private anonymous memory that is
    /// writable, and the caller's choice of huge pages.
    pub(crate) fn as_private_anonymous(&self) -> Option<(usize, Option<HugePages>)> {
        let len = self.len?.checked_next_multiple_of(page_size())?;
        let is_anonymous = matches!(self.source, Source::Anonymous);
        (is_anonymous && self.private && self.writable).then_some((len, self.huge_pages))
    }

    /// Makes the mapping of memory that is as `mmap(2)` would have made it, by the `madvise(2)`
    /// calls of the options. On an error, the memory is unmapped.
    ///
    /// # Safety
    ///
    /// No other code may know the memory, which must be as long as
    /// [`as_private_anonymous`](Self::as_private_anonymous) says.
    pub(crate) unsafe fn adopt(&self, range: PageRange) -> Result<Mapping> {
        let mapping = Mapping {
            range,
            len: self.len.unwrap_or(range.len()),
            writable: self.writable,
            file: None,
        };
        self.apply_advice(range)?;
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

    /// Maps the memory, and keeps a descriptor of the file that writes will
    /// reach.
    fn mmap(&self, len: usize) -> Result<(PageRange, Option<(OwnedFd, u64)>)> {
        let map = |backing| {
            let shared = !self.private;
            pending::retry(|| match (backing, self.huge_pages) {
                (Backing::Anonymous, Some(HugePages::Always)) => {
                    map::map_for_huge_pages(len, shared, self.writable)
                }
                _ => map::map(backing, len, shared, self.writable),
            })
            .map_err(|errno| explain_mmap(len, errno))
        };
        let written = self.writable && !self.private;
        match self.source {
            Source::Anonymous | Source::SharedAnonymous => Ok((map(Backing::Anonymous)?, None)),
            Source::File { file: fd, offset } => {
                let range = map(Backing::File { fd, offset })?;
                let kept = written.then(|| fd.try_clone_to_owned()).transpose();
                // Without the descriptor (EMFILE), one strategy of populate is
                // unavailable.
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

    fn apply_advice(&self, range: PageRange) -> Result<()> {
        let advice_calls = [
            self.huge_pages.map(|choice| match choice {
                HugePages::Always => (Advice::HugePage, "madvise(MADV_HUGEPAGE)"),
                HugePages::Never => (Advice::NoHugePage, "madvise(MADV_NOHUGEPAGE)"),
            }),
            self.no_dump
                .then_some((Advice::DontDump, "madvise(MADV_DONTDUMP)")),
        ];
        for (advice, call) in advice_calls.into_iter().flatten() {
            match advise(range, advice) {
                // A kernel built without huge pages answers EINVAL, and has
                // none to disable.
                Err(Errno::INVAL) if advice == Advice::NoHugePage => {}
                answer => answer.map_err(system(call))?,
            }
        }
        if self.wipe_on_fork {
            // SAFETY: the mapping is new, so nothing relies on its contents,
            // and the builder's caller requested the wiping.
            unsafe { advise_destructive(range, DestructiveAdvice::WipeOnFork) }
                .map_err(system("madvise(MADV_WIPEONFORK)"))?;
        }
        Ok(())
    }
}

/// Explains a failed `mmap`: EAGAIN means `RLIMIT_MEMLOCK`, which applies here
/// when all future mappings are locked.
pub(crate) fn explain_mmap(len: usize, errno: Errno) -> Error {
    match (errno, LockLimit::now()) {
        (Errno::AGAIN, Some(limit)) => Error::ProcessLockLimit {
            verb: "map memory that lock_all locks",
            limit_bytes: limit.limit_bytes,
            used_bytes: limit.used_bytes,
            requested_bytes: len,
        },
        _ => system("mmap")(errno),
    }
}

fn system(call: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::System { call, errno }
}
