//! Memory mapped with the plain system calls, for the older ways.

use std::{ffi::c_void, ops::Range, os::fd::BorrowedFd, ptr::NonNull};

use anyhow::{Context as _, Result};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

/// A mapping made by mmap, readable and writable unless it says otherwise,
/// unmapped by munmap when dropped.
pub struct RawMapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned and is not tied to the thread that made it.
unsafe impl Send for RawMapping {}

impl RawMapping {
    /// Maps `len` bytes of anonymous memory.
    pub fn anonymous(len: usize, flags: MapFlags) -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without MAP_FIXED the kernel picks an address that is free.
        let start = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), len, protection, flags) };
        Self::adopt(start, len)
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
        Self::adopt(start, len)
    }

    fn adopt(start: rustix::io::Result<*mut c_void>, len: usize) -> Result<Self> {
        let start = start.with_context(|| format!("mmap of {len} bytes"))?;
        let start = NonNull::new(start.cast()).context("mmap returned address 0")?;
        Ok(Self { start, len })
    }

    /// Returns the address of the first byte.
    pub fn start(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is readable and lives as long as `self`; only
        // `&mut self` writes to it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Returns the bytes for writing.
    ///
    /// # Safety
    /// - The mapping was made writable.
    pub unsafe fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: writable says the caller; borrowed for as long as `self`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Calls madvise on the whole mapping.
    pub fn advise(&mut self, advice: Advice) -> Result<()> {
        self.advise_part(0..self.len, advice)
    }

    /// Calls madvise on the bytes `part`, whose start is a whole page.
    pub fn advise_part(&mut self, part: Range<usize>, advice: Advice) -> Result<()> {
        // SAFETY: `&mut self` says that nobody holds a reference to the bytes,
        // whose contents some advice changes; slicing checks the bounds.
        unsafe {
            let bytes = std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len);
            let bytes = &mut bytes[part];
            mm::madvise(bytes.as_mut_ptr().cast(), bytes.len(), advice)
                .with_context(|| format!("madvise({advice:?}) of {} bytes", bytes.len()))
        }
    }

    /// Calls mlock on the whole mapping.
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
        // SAFETY: owned, and about to be gone. It can only fail for want of
        // kernel memory, and then there is nothing better to do than go on.
        let _ = unsafe { mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::kernel::is_mapped;

    #[test]
    fn a_dropped_mapping_is_gone() {
        let mapping = RawMapping::base_pages(16 * tenure::page_size()).unwrap();
        let start = mapping.start();
        assert!(is_mapped(start).unwrap());
        drop(mapping);
        assert!(!is_mapped(start).unwrap());
    }

    #[test]
    fn discarded_memory_reads_zero() {
        let mut mapping = RawMapping::base_pages(4 * tenure::page_size()).unwrap();
        // SAFETY: `base_pages` maps writable memory.
        unsafe { mapping.bytes_mut() }.fill(7);
        mapping.advise(Advice::LinuxDontNeed).unwrap();
        assert!(mapping.bytes().iter().all(|&byte| byte == 0));
    }
}
