//! The kinds of memory that are populated, and how each is mapped.

use std::{fs::File, os::fd::AsFd, rc::Rc};

use anyhow::{Context as _, Result};
use fastrand::Rng;
use rustix::{
    fs::MemfdFlags,
    mm::{Advice, MapFlags, ProtFlags},
};
use tenure::{Access, HugePages, Mapping, MemfdPages, page_size};

use super::super::{
    files,
    kernel::{self, HugePageMode},
    raw::RawMapping,
};

/// Contents that a populated mapping must show.
pub struct Content {
    file: File,
    /// The sum of all bytes, as 64-bit words.
    pub sum: u64,
    /// The first byte of each page.
    pub first_bytes: Vec<u8>,
}

impl Content {
    /// Fills `file` with `len` random bytes.
    pub fn write(file: File, len: usize, rng: &mut Rng) -> Result<Self> {
        files::write_random(&file, len, rng).context("filling a memfd")?;
        Self::read(file, len)
    }

    /// Looks at the first `len` bytes of `file`.
    pub fn read(file: File, len: usize) -> Result<Self> {
        // SAFETY: the file has no name and nobody else writes to it.
        let mapping = unsafe { files::map_for_reading(&file, len) }?;
        let first_bytes = mapping.bytes().iter().copied().step_by(page_size());
        let (first_bytes, sum) = (first_bytes.collect(), files::sum(mapping.bytes()));
        Ok(Self {
            file,
            sum,
            first_bytes,
        })
    }
}

/// Kinds of memory.
#[derive(Clone)]
pub enum Kind {
    /// Private anonymous memory of base pages.
    PrivateBase,
    /// Private anonymous memory of transparent huge pages.
    PrivateHuge,
    /// Shared anonymous memory.
    SharedAnonymous,
    /// A new, empty memfd, mapped shared.
    SharedMemfd,
    /// A memfd with contents, mapped private.
    PrivateMemfd(Rc<Content>),
    /// A file with contents, mapped read-only.
    File(Rc<Content>),
}

impl Kind {
    /// Returns the contents, `None` for zeros.
    pub fn content(&self) -> Option<&Content> {
        match self {
            Self::PrivateMemfd(content) | Self::File(content) => Some(content),
            _ => None,
        }
    }

    /// Maps memory of this kind with the plain system calls.
    pub fn map_raw(&self, len: usize, more: MapFlags) -> Result<RawMapping> {
        let read_write = ProtFlags::READ | ProtFlags::WRITE;
        match self {
            // With MAP_POPULATE it would be too late to refuse huge pages, and
            // that way is only there when nothing has to be refused.
            Self::PrivateBase if more.is_empty() => RawMapping::base_pages(len),
            Self::PrivateBase => RawMapping::anonymous(len, MapFlags::PRIVATE | more),
            Self::PrivateHuge => {
                let mut mapping = RawMapping::anonymous(len, MapFlags::PRIVATE | more)?;
                mapping.advise(Advice::LinuxHugepage)?;
                Ok(mapping)
            }
            Self::SharedAnonymous => RawMapping::anonymous(len, MapFlags::SHARED | more),
            Self::SharedMemfd => {
                let memfd = rustix::fs::memfd_create("tenure-bench", MemfdFlags::CLOEXEC)
                    .context("memfd_create")?;
                rustix::fs::ftruncate(&memfd, len as u64).context("ftruncate")?;
                let (fd, flags) = (memfd.as_fd(), MapFlags::SHARED | more);
                // SAFETY: just made with this length, and known to nobody else.
                unsafe { RawMapping::of_file(fd, len, read_write, flags) }
            }
            Self::PrivateMemfd(content) => {
                let (fd, flags) = (content.file.as_fd(), MapFlags::PRIVATE | more);
                // SAFETY: filled with `len` bytes; nobody writes to it any more.
                unsafe { RawMapping::of_file(fd, len, read_write, flags) }
            }
            Self::File(content) => {
                let (fd, flags) = (content.file.as_fd(), MapFlags::SHARED | more);
                // SAFETY: filled with `len` bytes; nobody writes to it any more.
                unsafe { RawMapping::of_file(fd, len, ProtFlags::READ, flags) }
            }
        }
    }

    /// Maps memory of this kind with tenure.
    pub fn map_with_tenure(&self, len: usize) -> Result<Mapping, tenure::Error> {
        match self {
            Self::PrivateBase => Mapping::anonymous(len).huge_pages(HugePages::Never).map(),
            Self::PrivateHuge => Mapping::anonymous(len).huge_pages(HugePages::Always).map(),
            Self::SharedAnonymous => Mapping::shared_anonymous(len).map(),
            Self::SharedMemfd => Mapping::memfd(len, MemfdPages::Base).map(),
            // SAFETY: filled with `len` bytes; nobody writes to it any more.
            Self::PrivateMemfd(content) => unsafe { Mapping::file(&content.file) }
                .private()
                .read_write()
                .map(),
            // SAFETY: filled with `len` bytes; nobody writes to it any more.
            Self::File(content) => unsafe { Mapping::file(&content.file) }.map(),
        }
    }

    /// Says whether MAP_POPULATE does what is measured: it faults private
    /// writable mappings in for writing and all others for reading, and with the
    /// huge pages that the system's mode gives.
    pub fn has_map_populate(&self, access: Access) -> bool {
        match self {
            Self::PrivateBase => kernel::huge_page_mode() != HugePageMode::Always,
            Self::PrivateHuge => kernel::huge_page_mode() == HugePageMode::Always,
            Self::PrivateMemfd(_) => access == Access::Write,
            Self::SharedAnonymous | Self::SharedMemfd | Self::File(_) => access == Access::Read,
        }
    }
}
