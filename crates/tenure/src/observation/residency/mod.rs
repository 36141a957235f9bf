//! How much of a range, or of a process, is in memory, and in what way.

mod part;
mod sum;

use crate::ground::error::{Error, Result};
use crate::ground::mapping::Mapping;
use crate::ground::range::PageRange;
use crate::ground::sys::smaps::{self, Figures, OfProcess};
use crate::ground::sys::{advise, pagemap};

/// How much of a process, or of a range of its addresses, is in memory, and in
/// what way. Each figure is in bytes.
///
/// A moment's answer, at the price of a look by the kernel at every page (about
/// 30 ms for each GiB in pages of 4 KiB).
///
/// A figure is `None` where the kernel does not tell it:
/// `lazily_free_bytes` before Linux 4.12, and four figures of a range that cuts a
/// mapping of the kernel's which cannot be set apart ([`PageRange::residency`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Residency {
    /// Addresses that something is mapped at: of a process `VmSize`.
    pub mapped_bytes: usize,
    /// What is in memory (`Rss`), lazily free pages included. Neither the page of
    /// zeros nor hugetlb memory counts.
    pub resident_bytes: usize,
    /// The same, but of a page that N processes share only an N-th (`Pss`).
    pub proportional_bytes: Option<usize>,
    /// What is in swap, also of shared memory.
    pub swapped_bytes: Option<usize>,
    /// What is in memory only until the kernel needs it, for it was freed lazily
    /// and has not been written since (`LazyFree`).
    ///
    /// Exact but for what each CPU has put off: the kernel marks small pages 31
    /// at a time, so up to 30 pages freed last on each other CPU are missing
    /// here. (A look at the own process has this CPU mark its pages first.)
    /// Pages shared with a child after fork count as well, though the kernel
    /// gains nothing by taking them from one of the two.
    pub lazily_free_bytes: Option<usize>,
    /// What `RLIMIT_MEMLOCK` is charged with: of a process `VmLck`, of a range
    /// its locked part, in memory or not. (`Locked` in smaps is another figure:
    /// the share of what is in memory.)
    pub locked_bytes: usize,
    /// What is mapped in transparent huge pages, of all kinds of memory.
    pub huge_page_bytes: Option<usize>,
    /// hugetlb memory, which counts nowhere else here but in `mapped_bytes`.
    pub hugetlb_bytes: usize,
}

impl Residency {
    /// Looks at this whole process: `/proc/self/smaps_rollup` (Linux 4.14; the
    /// sum of smaps before) and `/proc/self/status`.
    ///
    /// # Errors
    ///
    /// [`Error::System`] without `/proc`.
    ///
    /// ```
    /// let process = tenure::Residency::of_this_process()?;
    /// if let Some(honest) = process.resident_without_lazily_free_bytes() {
    ///     println!("{honest} of {} bytes are really in use", process.resident_bytes);
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn of_this_process() -> Result<Self> {
        advise::finish_batch();
        smaps::of_process(None).map(Self::of)
    }

    /// Looks at the process `pid` in the same way. What has no memory of its own
    /// (a zombie, a thread of the kernel's) has zeros throughout.
    ///
    /// # Errors
    ///
    /// * [`Error::NoProcess`],
    /// * [`Error::MayNotLook`] for another user's process, without
    ///   CAP_SYS_PTRACE.
    pub fn of_process(pid: u32) -> Result<Self> {
        smaps::of_process(Some(pid)).map(Self::of)
    }

    /// Returns RSS without what is lazily free: what the process really uses.
    pub fn resident_without_lazily_free_bytes(&self) -> Option<usize> {
        // The two may have been read one after the other.
        Some(self.resident_bytes.saturating_sub(self.lazily_free_bytes?))
    }

    fn of(process: OfProcess) -> Self {
        Self::told(process.mapped, process.locked, &process.figures)
    }

    /// As smaps tells it.
    fn told(mapped_bytes: usize, locked_bytes: usize, figures: &Figures) -> Self {
        Self {
            mapped_bytes,
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
    /// Looks at the range: `/proc/self/smaps`, and PAGEMAP_SCAN. Whatever is
    /// mapped there will do; what is not mapped counts nowhere.
    ///
    /// smaps has figures for whole mappings only, and the kernel makes one of
    /// neighbours that are alike. Where the range is a part of one and its
    /// figures do not follow from those of the whole (nothing of it is lazily
    /// free, say), the part is set apart for as long as this call looks: it is
    /// then left out of core dumps (`MADV_DONTDUMP`), which nothing else notices,
    /// and afterwards it is dumped again. The range should stay mapped as it is
    /// meanwhile, and a fork waits.
    ///
    /// What cannot be set apart (memory that is never dumped, the stack, a
    /// process at `vm.max_map_count`, the edge of the range inside a huge page)
    /// is looked at page by page, and figures that this does not tell are `None`.
    ///
    /// An empty range has zeros throughout.
    ///
    /// # Errors
    ///
    /// [`Error::System`] where smaps cannot be read.
    pub fn residency(self) -> Result<Residency> {
        advise::finish_batch();
        sum::of_range(self)
    }

    /// Names the pages that this process has nothing for, in order: PAGEMAP_SCAN
    /// (Linux 6.7; `/proc/self/pagemap` before).
    ///
    /// In private anonymous memory these are the pages that were never touched,
    /// or were taken by the kernel or given up; they read as zeros. A page that
    /// was only ever read is none: it is the kernel's page of zeros. In shared
    /// memory and in files the contents may well be in the page cache. Addresses
    /// where nothing is mapped are holes, too.
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
        let mut note = |from: usize, to: usize| {
            holes.extend((from < to).then(|| Self::between(from, to)));
        };
        pagemap::each_there(self, |run| {
            note(next, run.range.start());
            next = run.range.end();
        })
        .map_err(|errno| Error::SystemAt {
            call: "PAGEMAP_SCAN",
            range: self,
            errno,
        })?;
        note(next, self.end());
        Ok(holes)
    }
}

impl Mapping {
    /// Looks at this mapping, as [`PageRange::residency`].
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
