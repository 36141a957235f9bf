//! The kinds of memory that are populated, and how each is mapped.

use std::{fs::File, os::fd::AsFd, rc::Rc};

use anyhow::{Context as _, Result};
use rustix::{
    fs::MemfdFlags,
    mm::{Advice, MapFlags, ProtFlags},
};
use tenure::{Access, HugePages, Mapping, MappingBuilder, MemfdPages};

use super::{
    super::{
        files,
        kernel::{self, HugePageMode},
        raw::RawMapping,
    },
    content::Content,
    huge_pool::HugePool,
};

/// Kinds of memory.
#[derive(Clone)]
pub enum Kind {
    /// Private anonymous memory of base pages.
    PrivateBase,
    /// Private anonymous memory of transparent huge pages.
    PrivateHuge,
    /// Shared anonymous memory.
    SharedAnonymous,
    /// A new, empty memfd.
    Memfd {
        /// Mapped shared, or private.
        shared: bool,
        /// Where its pages of 2 MiB come from; `None` for base pages.
        pool: Option<Rc<HugePool>>,
    },
    /// A memfd with contents, mapped private.
    FullMemfd(Rc<Content>),
    /// A file with contents in the page cache, mapped read-only.
    WarmFile(Rc<Content>),
    /// The same, but nothing is in the page cache.
    ColdFile(Rc<Content>),
    /// A file with contents and holes, mapped shared and writable.
    FileWithHoles(Rc<Content>),
}

impl Kind {
    /// Returns the contents, `None` for zeros.
    pub fn content(&self) -> Option<&Content> {
        match self {
            Self::FullMemfd(content)
            | Self::WarmFile(content)
            | Self::ColdFile(content)
            | Self::FileWithHoles(content) => Some(content),
            _ => None,
        }
    }

    /// Says whether the memory is private and anonymous.
    pub fn is_private_anonymous(&self) -> bool {
        matches!(self, Self::PrivateBase | Self::PrivateHuge)
    }

    /// Brings all to the state that each sample starts from, and returns how many
    /// blocks the file has then.
    pub fn reset(&self) -> Result<Option<u64>> {
        match self {
            Self::ColdFile(content) => files::drop_from_cache(content.as_file())?,
            Self::FileWithHoles(content) => content.punch_holes()?,
            _ => {}
        }
        self.content().map(Content::blocks).transpose()
    }

    /// Maps memory of this kind with the plain system calls.
    pub fn map_raw(&self, len: usize, more: MapFlags) -> Result<RawMapping> {
        let read_write = ProtFlags::READ | ProtFlags::WRITE;
        let map_file = |file: &File, protection, flags| {
            // SAFETY: the file has at least `len` bytes, and is only written to
            // through a mapping that is the only one.
            unsafe { RawMapping::of_file(file.as_fd(), len, protection, flags | more) }
        };
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
            Self::Memfd { shared, pool } => {
                let mut flags = MemfdFlags::CLOEXEC;
                if pool.is_some() {
                    flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
                }
                let memfd =
                    rustix::fs::memfd_create("tenure-bench", flags).context("memfd_create")?;
                let memfd = File::from(memfd);
                memfd.set_len(len as u64).context("ftruncate")?;
                let sharing = if *shared {
                    MapFlags::SHARED
                } else {
                    MapFlags::PRIVATE
                };
                map_file(&memfd, read_write, sharing)
            }
            Self::FullMemfd(content) => map_file(content.as_file(), read_write, MapFlags::PRIVATE),
            Self::WarmFile(content) | Self::ColdFile(content) => {
                map_file(content.as_file(), ProtFlags::READ, MapFlags::SHARED)
            }
            Self::FileWithHoles(content) => {
                map_file(content.as_file(), read_write, MapFlags::SHARED)
            }
        }
    }

    /// Maps memory of this kind with tenure.
    pub fn map_with_tenure(&self, len: usize) -> Result<Mapping, tenure::Error> {
        match self {
            Self::PrivateBase => Mapping::anonymous(len).huge_pages(HugePages::Never).map(),
            Self::PrivateHuge => Mapping::anonymous(len).huge_pages(HugePages::Always).map(),
            Self::SharedAnonymous => Mapping::shared_anonymous(len).map(),
            Self::Memfd { shared, pool } => {
                let pages = match pool {
                    Some(_) => MemfdPages::Huge2M,
                    None => MemfdPages::Base,
                };
                let memfd = Mapping::memfd(len, pages);
                if *shared { memfd } else { memfd.private() }.map()
            }
            Self::FullMemfd(content) => tenure_file(content, len).private().read_write().map(),
            Self::WarmFile(content) | Self::ColdFile(content) => tenure_file(content, len).map(),
            Self::FileWithHoles(content) => tenure_file(content, len).read_write().map(),
        }
    }

    /// Says whether MAP_POPULATE does what is measured: it faults private
    /// writable mappings in for writing and all others for reading, and with the
    /// huge pages that the system's mode gives.
    pub fn has_map_populate(&self, access: Access) -> bool {
        let for_writing = match self {
            Self::PrivateBase if kernel::huge_page_mode() == HugePageMode::Always => return false,
            Self::PrivateHuge if kernel::huge_page_mode() != HugePageMode::Always => return false,
            Self::PrivateBase | Self::PrivateHuge | Self::FullMemfd(_) => true,
            Self::Memfd { shared, .. } => !shared,
            _ => false,
        };
        for_writing == (access == Access::Write)
    }
}

fn tenure_file(content: &Content, len: usize) -> MappingBuilder<'_> {
    // SAFETY: the file has at least `len` bytes, and is only written to through
    // a mapping that is the only one.
    unsafe { Mapping::file(content.as_file()) }.len(len)
}
