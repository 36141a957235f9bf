//! Mappings made as `mmap(2)` is told, and made ready before anybody sees them.

use std::os::fd::BorrowedFd;

use crate::ground::error::{Error, Result};
use crate::ground::mapping::explain_mmap;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Harmless, Losing, advise, advise_losing};
use crate::ground::sys::{map, page_size, vma};
use crate::verbs::lock::LockMode;
use crate::verbs::populate::Access;

/// What `mmap(2)` is told, in the kernel's own numbers, and what is done with
/// the mapping besides. Programs in Rust have [`Mapping`](crate::Mapping), which
/// owns what it maps.
#[derive(Clone, Copy, Debug, Default)]
pub struct MmapRequest<'a> {
    /// In bytes; rounded up to whole pages of the memory's kind.
    pub len: usize,
    /// `PROT_READ`, `PROT_WRITE`, ...
    pub prot: u32,
    /// `MAP_PRIVATE`, `MAP_SHARED`, ...; not `MAP_FIXED`, for the kernel picks the
    /// place.
    pub flags: u32,
    /// The file, and the offset of the first byte in it; `None` is anonymous
    /// memory.
    pub file: Option<(BorrowedFd<'a>, u64)>,
    /// Leaves the mapping out of core dumps (`MADV_DONTDUMP`).
    pub no_dump: bool,
    /// Gives children zeros instead of the contents (`MADV_WIPEONFORK`, Linux
    /// 4.14; private anonymous memory only).
    pub wipe_on_fork: bool,
    /// Locks it.
    pub lock: Option<LockMode>,
    /// Faults it in.
    pub populate: Option<Access>,
}

impl PageRange {
    /// Maps memory: `mmap(2)`, then the advice, the lock and the faulting in that
    /// are asked for. The mapping belongs to the caller, who ends it with
    /// [`munmap`](PageRange::munmap).
    ///
    /// # Errors
    ///
    /// With nothing mapped:
    /// * [`Error::EmptyMapping`] for no bytes,
    /// * [`Error::System`] with what the kernel answered, EINVAL for `MAP_FIXED`
    ///   among it,
    /// * what [`lock`](PageRange::lock) and
    ///   [`populate`](PageRange::populate_with) answer.
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
    /// // SAFETY: nobody uses it.
    /// unsafe { range.munmap() }?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn mmap(request: &MmapRequest<'_>) -> Result<Self> {
        if request.len == 0 {
            return Err(Error::EmptyMapping);
        }
        let len = request.len;
        let start = map::map_as_told(len, request.prot, request.flags, request.file)
            .map_err(|errno| explain_mmap(len, errno))?;
        let range = whole_mapping(start, len);
        make_ready(range, request).map(|()| range).inspect_err(|_| {
            // SAFETY: nobody has seen the mapping yet. What cannot be unmapped
            // (no room to split a mapping) stays.
            let _ = unsafe { range.munmap() };
        })
    }
}

/// The kernel rounds up to the pages that the memory is made of.
fn whole_mapping(start: usize, len: usize) -> PageRange {
    let first_page = PageRange::between(start, start + page_size());
    let known = vma::cover(first_page);
    let page_bytes = known.map_or(page_size(), |vmas| vmas[0].page_bytes);
    PageRange::between(start, start + len.next_multiple_of(page_bytes))
}

fn make_ready(range: PageRange, request: &MmapRequest<'_>) -> Result<()> {
    let at = |call| move |errno| Error::SystemAt { call, range, errno };
    if request.no_dump {
        advise(range, Harmless::DontDump).map_err(at("madvise(MADV_DONTDUMP)"))?;
    }
    if request.wipe_on_fork {
        // SAFETY: the mapping is new, and its owner asked for the wiping.
        unsafe { advise_losing(range, Losing::WipeOnFork) }
            .map_err(at("madvise(MADV_WIPEONFORK)"))?;
    }
    if let Some(mode) = request.lock {
        // SAFETY: the mapping is the caller's own, who asked for the lock.
        unsafe { range.lock(mode) }?;
    }
    if let Some(access) = request.populate {
        // SAFETY: nobody else knows the mapping.
        unsafe { range.populate(access) }?;
    }
    Ok(())
}
