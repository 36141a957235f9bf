//! Residency: how much of a range, or of a process, is in memory, and in what
//! way.
//!
//! smaps has figures for whole kernel mappings, and the kernel merges adjacent
//! mappings that are alike. Where the figures of a part do not follow from
//! those of the whole, the part is excluded from core dumps for a moment, which
//! splits it off. This never cuts a huge page, and leaves alone memory that is
//! never dumped. This CPU's MADV_FREE batch is flushed first.

mod part;
mod sum;

use crate::ground::error::{Error, Result};
use crate::ground::mapping::Mapping;
use crate::ground::range::PageRange;
use crate::ground::sys::smaps::{self, Figures, ProcessFigures};
use crate::ground::sys::{advise, pagemap};

/// How much of a process, or of a range of its addresses, is in memory, and in
/// what way. All figures are in bytes.
///
/// The answer holds for a moment only, and the kernel walks every page for it
/// (about 30 ms for each GiB in pages of 4 KiB).
///
/// A figure is `None` where the kernel does not tell it: `lazily_free_bytes`
/// before Linux 4.12, and four figures of a range that cuts a kernel mapping
/// which cannot be split ([`PageRange::residency`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Residency {
    /// Mapped addresses that some access is allowed to.
    ///
    /// With `reserved_bytes` they are `VmSize` for a process.
    pub mapped_bytes: usize,
    /// Mapped addresses without any access (PROT_NONE): guards, and addresses that are
    /// reserved for later, often terabytes. They use no memory.
    pub reserved_bytes: usize,
    /// Resident memory (`Rss`), including lazily free pages, without the zero
    /// page and hugetlb memory.
    pub resident_bytes: usize,
    /// Resident memory in which a page shared by N processes counts an N-th
    /// (`Pss`).
    pub proportional_bytes: Option<usize>,
    /// Memory in swap, including shared memory.
    pub swapped_bytes: Option<usize>,
    /// Memory that was freed lazily and has not been written since, so that it
    /// is resident only until the kernel needs it (`LazyFree`).
    ///
    /// It is exact except for the batch of each CPU: the kernel marks small
    /// pages 31 at a time, so up to 30 pages freed last on each other CPU are
    /// missing here. (A reading of the own process flushes this CPU's batch
    /// first.) Pages shared with a child after fork count as well, though the
    /// kernel gains nothing by reclaiming them from one of the two.
    pub lazily_free_bytes: Option<usize>,
    /// Memory charged to `RLIMIT_MEMLOCK`: `VmLck` for a process, the locked
    /// part for a range, resident or not. (`Locked` in smaps is another figure:
    /// the share of the resident memory.)
    pub locked_bytes: usize,
    /// Memory mapped in transparent huge pages, of all kinds.
    pub huge_page_bytes: Option<usize>,
    /// hugetlb memory, which otherwise counts in `mapped_bytes` only.
    pub hugetlb_bytes: usize,
}

impl Residency {
    /// Reads the residency of this process: `/proc/self/smaps_rollup` (Linux
    /// 4.14; the sum of smaps before), `/proc/self/status` and `/proc/self/maps`.
    ///
    /// # Errors
    ///
    /// [`Error::System`] without `/proc`.
    ///
    /// ```
    /// let process = tenure::Residency::of_this_process()?;
    /// if let Some(in_use) = process.resident_without_lazily_free_bytes() {
    ///     println!("{in_use} of {} bytes are in use", process.resident_bytes);
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn of_this_process() -> Result<Self> {
        advise::flush_lazyfree_batch();
        smaps::of_process(None).map(Self::of)
    }

    /// Reads the residency of process `pid`: `/proc/PID/smaps_rollup`,
    /// `/proc/PID/status` and `/proc/PID/maps`. All figures of a process without memory of its own
    /// (a zombie, a kernel thread) are zero.
    ///
    /// # Errors
    ///
    /// * [`Error::NoProcess`] when there is no such process,
    /// * [`Error::PermissionDenied`] for another user's process, without
    ///   CAP_SYS_PTRACE.
    pub fn of_process(pid: u32) -> Result<Self> {
        smaps::of_process(Some(pid)).map(Self::of)
    }

    /// Returns the resident bytes without the lazily free ones: the memory that
    /// the process really uses.
    pub fn resident_without_lazily_free_bytes(&self) -> Option<usize> {
        // The two figures may be from two moments.
        Some(self.resident_bytes.saturating_sub(self.lazily_free_bytes?))
    }

    fn of(process: ProcessFigures) -> Self {
        // The two figures may be from two moments.
        let accessible = process.mapped.saturating_sub(process.reserved);
        Self {
            reserved_bytes: process.reserved,
            ..Self::from_figures(accessible, process.locked, &process.figures)
        }
    }

    /// Converts figures from smaps.
    fn from_figures(mapped_bytes: usize, locked_bytes: usize, figures: &Figures) -> Self {
        Self {
            mapped_bytes,
            reserved_bytes: 0,
            resident_bytes: figures.resident,
            proportional_bytes: Some(figures.proportional),
            swapped_bytes: Some(figures.swapped),
            lazily_free_bytes: figures.lazily_free,
            locked_bytes,
            huge_page_bytes: Some(figures.huge_pages),
            hugetlb_bytes: figures.hugetlb,
        }
    }
}

impl PageRange {
    /// Reads the residency of the range: `/proc/self/smaps` and PAGEMAP_SCAN.
    /// Any kind of memory is allowed; holes count nowhere.
    ///
    /// smaps has figures for whole mappings only, and the kernel merges
    /// adjacent mappings that are alike. Where the range is a part of one and
    /// its figures do not follow from those of the whole (for example, because
    /// none of that is lazily free), this call splits the part off while it
    /// reads: it excludes the part from core dumps (`MADV_DONTDUMP`), which has
    /// no other effect, and includes it again afterwards. The range should stay
    /// mapped as it is during the call, and a fork waits.
    ///
    /// A part that cannot be split off (memory that is never dumped, the stack,
    /// a process at `vm.max_map_count`, the edge of the range inside a huge
    /// page) is read page by page, and figures that this does not tell are
    /// `None`.
    ///
    /// All figures of an empty range are zero.
    ///
    /// # Errors
    ///
    /// [`Error::System`] where smaps cannot be read.
    pub fn residency(self) -> Result<Residency> {
        advise::flush_lazyfree_batch();
        sum::of_range(self)
    }

    /// Returns the pages of the range that are neither in the page tables nor
    /// in swap, in order: PAGEMAP_SCAN (Linux 6.7; `/proc/self/pagemap`
    /// before).
    ///
    /// In private anonymous memory these are the pages that were never touched,
    /// or were reclaimed or discarded; they read as zeros. A page that was only
    /// ever read is not a hole: it is the zero page. In shared memory and in
    /// files the contents may well be in the page cache. Unmapped addresses are
    /// holes, too.
    ///
    /// # Errors
    ///
    /// [`Error::SystemAt`] where the kernel does not tell.
    ///
    /// ```
    /// use tenure::{Access, HugePages, Mapping, page_size};
    ///
    /// let memory = Mapping::anonymous(4 * page_size())
    ///     .huge_pages(HugePages::Never)
    ///     .map()?;
    /// memory.populate(page_size()..2 * page_size(), Access::Write)?;
    /// let holes = memory.range().holes()?;
    /// assert_eq!(holes.iter().map(|hole| hole.pages()).collect::<Vec<_>>(), [1, 2]);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn holes(self) -> Result<Vec<Self>> {
        let mut holes = Vec::new();
        let mut next = self.start();
        let mut add = |from: usize, to: usize| {
            holes.extend((from < to).then(|| Self::between(from, to)));
        };
        pagemap::for_each_populated(self, |run| {
            add(next, run.range.start());
            next = run.range.end();
        })
        .map_err(|errno| Error::SystemAt {
            call: "PAGEMAP_SCAN",
            range: self,
            errno,
        })?;
        add(next, self.end());
        Ok(holes)
    }
}

impl Mapping {
    /// Reads the residency of this mapping: see [`PageRange::residency`].
    ///
    /// # Errors
    ///
    /// [`Error::System`] where smaps cannot be read.
    ///
    /// ```
    /// use tenure::{Access, Mapping};
    ///
    /// let memory = Mapping::anonymous(1 << 20).map()?;
    /// assert_eq!(memory.residency()?.resident_bytes, 0);
    /// memory.populate(.., Access::Write)?;
    /// let residency = memory.residency()?;
    /// assert_eq!(residency.resident_bytes, memory.range().len());
    /// assert_eq!(residency.lazily_free_bytes, Some(0));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn residency(&self) -> Result<Residency> {
        self.range().residency()
    }
}
