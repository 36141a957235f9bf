//! `mmap(2)` with raw flags, and the preparation of the new mapping before its
//! caller sees it.

use std::os::fd::BorrowedFd;

use crate::background::pool;
use crate::ground::error::{Error, Result};
use crate::ground::mapping::explain_mmap;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Advice, DestructiveAdvice, advise, advise_destructive};
use crate::ground::sys::{map, page_size, vma};
use crate::verbs::lock::LockMode;
use crate::verbs::populate::Access;

/// The arguments of `mmap(2)`, in the kernel's own numbers, and how to prepare the
/// new mapping. It is made for interfaces to other languages: programs in Rust use
/// [`Mapping`](crate::Mapping), which owns its memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct MmapRequest<'a> {
    /// The length in bytes, rounded up to whole pages of the memory's kind.
    pub len: usize,
    /// `PROT_READ`, `PROT_WRITE`, ...
    pub prot: u32,
    /// `MAP_PRIVATE`, `MAP_SHARED`, ...; not `MAP_FIXED`, because the kernel
    /// chooses the address.
    pub flags: u32,
    /// The file and the offset of the mapping's first byte in it; `None` maps
    /// anonymous memory.
    pub file: Option<(BorrowedFd<'a>, u64)>,
    /// Excludes the mapping from core dumps (`MADV_DONTDUMP`).
    pub no_dump: bool,
    /// Gives children zeros instead of the contents (`MADV_WIPEONFORK`, Linux
    /// 4.14; private anonymous memory only).
    pub wipe_on_fork: bool,
    /// Locks the mapping.
    pub lock: Option<LockMode>,
    /// Faults the mapping in.
    pub populate: Option<Access>,
}

impl PageRange {
    /// Maps memory: `mmap(2)`, then the advice, the lock and the populating that
    /// the request names. The caller owns the mapping and ends it with
    /// [`munmap`](PageRange::munmap).
    ///
    /// # Errors
    ///
    /// With nothing mapped:
    /// * [`Error::EmptyMapping`] for a length of 0,
    /// * [`Error::System`] with the kernel's error, EINVAL for `MAP_FIXED`,
    /// * the errors of [`lock`](PageRange::lock) and
    ///   [`populate`](PageRange::populate_with).
    ///
    /// ```
    /// use tenure::{Access, MmapRequest, PageRange};
    ///
    /// let range = PageRange::mmap(&MmapRequest {
    ///     len: 1 << 20,
    ///     prot: 3,     // PROT_READ | PROT_WRITE
    ///     flags: 0x22, // MAP_PRIVATE | MAP_ANONYMOUS
    ///     populate: Some(Access::Write),
    ///     ..Default::default()
    /// })?;
    /// // SAFETY: no other code uses the mapping.
    /// unsafe { range.munmap() }?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn mmap(request: &MmapRequest<'_>) -> Result<Self> {
        if request.len == 0 {
            return Err(Error::EmptyMapping);
        }
        let len = request.len;
        if let Some(range) = request.take_from_pool() {
            let rest = MmapRequest {
                populate: None,
                ..*request
            };
            return make_ready_or_unmap(range, &rest);
        }
        let start = map::map_raw(len, request.prot, request.flags, request.file)
            .map_err(|errno| explain_mmap(len, errno))?;
        make_ready_or_unmap(whole_mapping(start, len), request)
    }
}

impl MmapRequest<'_> {
    /// Takes a populated mapping from the page pool, if the request is for plain memory and
    /// the pool has enough.
    fn take_from_pool(&self) -> Option<PageRange> {
        const PLAIN_PROT: i32 = libc::PROT_READ | libc::PROT_WRITE;
        const PLAIN_FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let is_plain = self.populate == Some(Access::Write)
            && self.lock.is_none()
            && self.file.is_none()
            && self.prot == PLAIN_PROT as u32
            && self.flags == PLAIN_FLAGS as u32;
        let len = self.len.checked_next_multiple_of(page_size())?;
        is_plain.then(|| pool::map_mapping(len, None)).flatten()
    }
}

fn make_ready_or_unmap(range: PageRange, request: &MmapRequest<'_>) -> Result<PageRange> {
    make_ready(range, request).map(|()| range).inspect_err(|_| {
        // SAFETY: the caller has not seen the mapping yet, so nothing uses it. If
        // it cannot be unmapped (vm.max_map_count), it stays.
        let _ = unsafe { range.munmap() };
    })
}

/// Returns the range of a new mapping: the kernel rounds its length up to the page
/// size of the memory.
fn whole_mapping(start: usize, len: usize) -> PageRange {
    let first_page = PageRange::between(start, start + page_size());
    let covered = vma::cover(first_page);
    let page_bytes = covered.map_or(page_size(), |vmas| vmas[0].page_bytes);
    PageRange::between(start, start + len.next_multiple_of(page_bytes))
}

fn make_ready(range: PageRange, request: &MmapRequest<'_>) -> Result<()> {
    let at = |call| move |errno| Error::SystemAt { call, range, errno };
    if request.no_dump {
        advise(range, Advice::DontDump).map_err(at("madvise(MADV_DONTDUMP)"))?;
    }
    if request.wipe_on_fork {
        // SAFETY: the mapping is new, so nothing relies on its contents in a child.
        unsafe { advise_destructive(range, DestructiveAdvice::WipeOnFork) }
            .map_err(at("madvise(MADV_WIPEONFORK)"))?;
    }
    if let Some(mode) = request.lock {
        // SAFETY: the mapping is new, so no other code locks or unlocks it.
        unsafe { range.lock(mode) }?;
    }
    if let Some(access) = request.populate {
        // SAFETY: the mapping is new, so no other code relies on missing pages.
        unsafe { range.populate(access) }?;
    }
    Ok(())
}
