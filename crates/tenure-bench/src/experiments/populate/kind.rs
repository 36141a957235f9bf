//! The kinds of memory that are populated, and how each is mapped.

use std::{fs::File, os::fd::AsFd, rc::Rc};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use tenure::{Access, HugePages, Mapping, MemfdPages};

use super::content::Content;
use crate::{machine::restore::Setting, measure::prelude::*};

/// Kinds of memory.
#[derive(Clone)]
pub enum Kind {
    /// Private anonymous memory of base pages.
    PrivateBase,
    /// Private anonymous memory of transparent huge pages.
    PrivateHuge,
    SharedAnonymous,
    /// A new, empty memfd, mapped shared or else private, of huge pages where there is a pool.
    Memfd(bool, Option<Rc<Setting>>),
    /// A memfd with contents, mapped private.
    FullMemfd(Rc<Content>),
    /// A file with contents in the page cache, mapped read-only.
    WarmFile(Rc<Content>),
    /// A file with contents that are not in the page cache, mapped read-only.
    ColdFile(Rc<Content>),
    /// A file with contents and holes, mapped shared and writable.
    FileWithHoles(Rc<Content>),
}

impl Kind {
    /// Returns the contents; `None` for zeros.
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

    /// Brings all to the state that each sample starts from, and returns how many blocks
    /// the file has then.
    pub fn reset(&self) -> Result<Option<u64>> {
        match self {
            Self::ColdFile(content) => files::drop_from_cache(&content.file)?,
            Self::FileWithHoles(content) => content.punch_holes()?,
            _ => {}
        }
        self.content().map(Content::blocks).transpose()
    }

    /// Maps memory of this kind with the plain system calls.
    pub fn map_raw(&self, len: usize, more: MapFlags) -> Result<RawMapping> {
        let (private, shared) = (MapFlags::PRIVATE | more, MapFlags::SHARED | more);
        let (read, read_write) = (ProtFlags::READ, ProtFlags::READ | ProtFlags::WRITE);
        let (memfd, protection, flags) = match self {
            // With MAP_POPULATE it would be too late to refuse huge pages, and that way is
            // only there when nothing has to be refused.
            Self::PrivateBase if more.is_empty() => return RawMapping::base_pages(len),
            Self::PrivateBase => return RawMapping::anonymous(len, private),
            Self::PrivateHuge => {
                let mut mapping = RawMapping::anonymous(len, private)?;
                mapping.advise(Advice::LinuxHugepage)?;
                return Ok(mapping);
            }
            Self::SharedAnonymous => return RawMapping::anonymous(len, shared),
            Self::Memfd(is_shared, pool) => {
                let huge = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
                let huge = pool.as_ref().map_or(MemfdFlags::empty(), |_| huge);
                let memfd = memfd_create("tenure-bench", MemfdFlags::CLOEXEC | huge);
                let memfd = File::from(memfd.context("memfd_create")?);
                memfd.set_len(len as u64).context("ftruncate")?;
                let flags = if *is_shared { shared } else { private };
                (Some(memfd), read_write, flags)
            }
            Self::FullMemfd(_) => (None, read_write, private),
            Self::FileWithHoles(_) => (None, read_write, shared),
            Self::WarmFile(_) | Self::ColdFile(_) => (None, read, shared),
        };
        let file = memfd
            .as_ref()
            .or(self.content().map(|content| &content.file));
        let file = file.context("a kind without a file")?.as_fd();
        // SAFETY: the file has at least `len` bytes, and is only written to through one
        // mapping, the only one.
        unsafe { RawMapping::of_file(file, len, protection, flags) }
    }

    /// Maps memory of this kind with tenure.
    pub fn map_with_tenure(&self, len: usize) -> Result<Mapping, tenure::Error> {
        // SAFETY: the file has at least `len` bytes, and is only written to through one
        // mapping, the only one.
        let of = |file| unsafe { Mapping::file(file) }.len(len);
        let mapping = match self {
            Self::PrivateBase => Mapping::anonymous(len).huge_pages(HugePages::Never),
            Self::PrivateHuge => Mapping::anonymous(len).huge_pages(HugePages::Always),
            Self::SharedAnonymous => Mapping::shared_anonymous(len),
            Self::Memfd(is_shared, pool) => {
                let huge = pool.as_ref().map(|_| MemfdPages::Huge2M);
                let memfd = Mapping::memfd(len, huge.unwrap_or(MemfdPages::Base));
                if *is_shared { memfd } else { memfd.private() }
            }
            Self::FullMemfd(content) => of(&content.file).private().read_write(),
            Self::FileWithHoles(content) => of(&content.file).read_write(),
            Self::WarmFile(content) | Self::ColdFile(content) => of(&content.file),
        };
        mapping.map()
    }

    /// Says whether MAP_POPULATE does what is measured: it faults private writable
    /// mappings in for writing and all others for reading, and with the huge pages that the
    /// system's mode gives.
    pub fn has_map_populate(&self, access: Access) -> bool {
        let is_always = kernel::huge_page_mode() == "always";
        let for_writing = match self {
            Self::PrivateBase if is_always => return false,
            Self::PrivateHuge if !is_always => return false,
            Self::PrivateBase | Self::PrivateHuge | Self::FullMemfd(_) => true,
            Self::Memfd(is_shared, _) => !is_shared,
            _ => false,
        };
        for_writing == (access == Access::Write)
    }
}
