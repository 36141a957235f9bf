//! Memory mapped with the plain system calls, for the older ways, or with tenure.

use std::{ffi::c_void, ops::Range, os::fd::BorrowedFd, ptr::NonNull};

use anyhow::{Context as _, Result};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use tenure::{HugePages, Mapping};

/// A mapping made by mmap, unmapped by munmap when dropped.
pub struct RawMapping {
    start: NonNull<u8>,
    len: usize,
    is_writable: bool,
}

// SAFETY: the mapping is owned and is not tied to the thread that made it.
unsafe impl Send for RawMapping {}

impl RawMapping {
    /// Maps `len` bytes of anonymous memory for reading and writing.
    pub fn anonymous(len: usize, flags: MapFlags) -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without MAP_FIXED the kernel picks an address that is free.
        let start = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), len, protection, flags) };
        Self::adopt(start, len, protection)
    }

    /// Maps private anonymous memory that never gets huge pages.
    pub fn base_pages(len: usize) -> Result<Self> {
        let mut mapping = Self::anonymous(len, MapFlags::PRIVATE)?;
        mapping.advise(Advice::LinuxNoHugepage)?;
        Ok(mapping)
    }

    /// Maps the first `len` bytes of `file`; `protection` must allow reading.
    ///
    /// # Safety
    /// - The file has at least `len` bytes for as long as the mapping lives.
    /// - Nobody else writes to the file meanwhile.
    pub unsafe fn of_file(
        file: BorrowedFd<'_>,
        len: usize,
        protection: ProtFlags,
        flags: MapFlags,
    ) -> Result<Self> {
        // SAFETY: without MAP_FIXED the kernel picks an address that is free.
        let start = unsafe { mm::mmap(std::ptr::null_mut(), len, protection, flags, file, 0) };
        Self::adopt(start, len, protection)
    }

    fn adopt(
        start: rustix::io::Result<*mut c_void>,
        len: usize,
        protection: ProtFlags,
    ) -> Result<Self> {
        let start = start.with_context(|| format!("mmap of {len} bytes"))?;
        Ok(Self {
            start: NonNull::new(start.cast()).context("mmap returned address 0")?,
            len,
            is_writable: protection.contains(ProtFlags::WRITE),
        })
    }

    /// Takes over reserved addresses, and what has been moved there.
    ///
    /// # Safety
    /// Nobody else unmaps or uses them.
    pub unsafe fn of_reserved(start: *mut c_void, len: usize) -> Result<Self> {
        Self::adopt(Ok(start), len, ProtFlags::empty())
    }

    pub fn start(&self) -> usize {
        self.start.as_ptr() as usize
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is readable and lives as long as `self`; only
        // `&mut self` writes to it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Panics when the mapping was made read-only.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.is_writable, "the mapping is read-only");
        // SAFETY: the mapping is writable, and borrowed for as long as `self`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    pub fn advise(&mut self, advice: Advice) -> Result<()> {
        self.advise_part(0..self.len, advice)
    }

    /// Calls madvise on the bytes `part`, whose start is a whole page.
    pub fn advise_part(&mut self, part: Range<usize>, advice: Advice) -> Result<()> {
        // SAFETY: the mapping lives as long as `self`; nothing is read or written
        // through the slice.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) };
        madvise(&mut bytes[part], advice)
    }

    pub fn lock(&self) -> Result<()> {
        // SAFETY: locking changes neither contents nor protection.
        unsafe { mm::mlock(self.start.as_ptr().cast(), self.len) }
            .with_context(|| format!("mlock of {} bytes", self.len))
    }

    /// Calls munmap and returns its answer, which dropping cannot.
    pub fn unmap(self) -> Result<()> {
        let (start, len) = (self.start, self.len);
        std::mem::forget(self);
        // SAFETY: the mapping was owned and is gone: nothing refers to it.
        unsafe { mm::munmap(start.as_ptr().cast(), len) }
            .with_context(|| format!("munmap of {len} bytes"))
    }
}

impl Drop for RawMapping {
    fn drop(&mut self) {
        // SAFETY: owned, and about to be gone. munmap fails only where the kernel
        // lacks memory, and then there is nothing better to do than go on.
        let _ = unsafe { mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

fn madvise(bytes: &mut [u8], advice: Advice) -> Result<()> {
    // SAFETY: the bytes are borrowed mutably: nobody else holds a reference to them,
    // whose contents some advice changes.
    unsafe { mm::madvise(bytes.as_mut_ptr().cast(), bytes.len(), advice) }
        .with_context(|| format!("madvise({advice:?}) of {} bytes", bytes.len()))
}

/// Memory as one of the ways owns it.
pub enum Memory {
    Raw(RawMapping),
    Tenure(Mapping),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Owner {
    Raw,
    Tenure,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pages {
    Base,
    /// Transparent huge pages.
    Huge,
}

impl Memory {
    pub fn anonymous(owner: Owner, len: usize, pages: Pages) -> Result<Self> {
        let (advice, huge_pages) = match pages {
            Pages::Base => (Advice::LinuxNoHugepage, HugePages::Never),
            Pages::Huge => (Advice::LinuxHugepage, HugePages::Always),
        };
        Ok(match owner {
            Owner::Raw => {
                let mut mapping = RawMapping::anonymous(len, MapFlags::PRIVATE)?;
                mapping.advise(advice)?;
                Self::Raw(mapping)
            }
            Owner::Tenure => Self::Tenure(Mapping::anonymous(len).huge_pages(huge_pages).map()?),
        })
    }

    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Raw(mapping) => mapping.bytes(),
            Self::Tenure(mapping) => mapping.as_slice(),
        }
    }

    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        Ok(match self {
            Self::Raw(mapping) => mapping.bytes_mut(),
            Self::Tenure(mapping) => mapping.as_mut_slice()?,
        })
    }

    /// Calls madvise on the bytes `part`, whose start is a whole page.
    pub fn advise(&mut self, part: Range<usize>, advice: Advice) -> Result<()> {
        match self {
            Self::Raw(mapping) => mapping.advise_part(part, advice),
            Self::Tenure(mapping) => madvise(&mut mapping.as_mut_slice()?[part], advice),
        }
    }

    /// Unmaps the memory: with munmap, or in tenure's way in the background.
    pub fn unmap(self) -> Result<()> {
        match self {
            Self::Raw(mapping) => mapping.unmap(),
            Self::Tenure(mapping) => Ok(mapping.munmap()?),
        }
    }

    /// Gives the contents up: with MADV_DONTNEED, or in tenure's way in the background.
    pub fn discard(&mut self) -> Result<()> {
        match self {
            Self::Raw(mapping) => mapping.advise(Advice::LinuxDontNeed),
            Self::Tenure(mapping) => Ok(mapping.discard(..)?),
        }
    }
}
