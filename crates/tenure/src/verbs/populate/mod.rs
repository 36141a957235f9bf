//! Populate: fault a range in now, for reading or for writing.
//!
//! Populating replaces the page faults of a later first access by
//! `madvise(MADV_POPULATE_READ)` or `madvise(MADV_POPULATE_WRITE)` (Linux 5.14), which
//! one call issues in chunks from several threads. On older kernels a system call
//! touches each page instead ([`Strategy::Touch`]). In both cases a page that cannot be
//! faulted in is an error, never a signal.
//!
//! [`Mapping::populate`] and [`PageRange::populate`] populate with the defaults;
//! `populate_with` takes [`PopulateOptions`] (strategy, threads, chunk size, progress,
//! cancellation); `populate_in_background` returns at once.
//!
//! # Ranges and units
//!
//! The bounds given to a [`Mapping`] are bytes and are rounded outward to whole pages; a
//! [`PageRange`] is whole pages already. An empty range succeeds. The contents never
//! change, even while other threads write to them, so populating a page twice, or one
//! that was resident already, is harmless.
//!
//! The effect on a page depends on the kind of memory:
//!
//! | memory | [`Access::Read`] | [`Access::Write`] |
//! | --- | --- | --- |
//! | private anonymous | maps the zero page; takes no memory, and the first write still faults | allocates a zeroed page |
//! | shared anonymous, memfd, tmpfs | allocates missing pages and maps them | the same, mapped writable |
//! | file, mapped shared | reads it into the page cache and maps it | the same, mapped writable |
//! | file, mapped private | reads it into the page cache and maps it | makes the private copy |
//! | hugetlb | takes pages from the pool | takes pages from the pool |
//!
//! # Memory is checked first
//!
//! Past a memory cgroup's limit the kernel does not fail a page fault; it kills. So
//! each call first has what it would take [admitted](crate::headroom) within the
//! [`Headroom`](crate::Headroom), less what other threads are about to take, and compares
//! it with the free pages of the hugetlb pool. If memory that was released in the
//! background is still pending, the call waits for it (see
//! [`drain`](crate::release::drain)). If the headroom is still too small, the call
//! returns [`Error::NoMemory`](crate::Error::NoMemory) before it has changed anything;
//! [`PopulateOptions::force`] skips the check. Pages of files on disks do not count,
//! because the kernel can reclaim them.
//!
//! # What it costs
//!
//! The call takes the time that the kernel needs to zero, copy or read the pages. Each
//! worker has a span of the range; a worker that has finished steals half of the longest
//! span that is left. By default there is one worker for each 16 MiB, and no more than
//! CPUs.
//!
//! The kernel holds the address space's lock (`mmap_lock`) for reading while it
//! populates, so another thread's `mmap` or `munmap` waits for the chunks in progress.
//! Chunks therefore adapt to about 2 ms, and all threads are started before the first
//! fault.
//!
//! # When not to populate
//!
//! - Sparse use: populating takes memory for pages that nobody will touch.
//! - To *keep* pages resident: the kernel may reclaim populated pages again under
//!   memory pressure. [`lock`](crate::lock) keeps them.
//! - To avoid the cost of the first write, with [`Access::Read`] on private anonymous
//!   memory: only [`Access::Write`] allocates pages there.
//! - Ranges of a userfaultfd whose handler relies on missing pages.

mod background;
mod file_method;
mod headroom;
mod mapped;
mod options;
mod plan;
mod pooled;
mod prefault;
mod workers;

pub use background::BackgroundPopulate;
#[doc(hidden)]
pub use options::BYTES_PER_THREAD;
pub use options::{Access, CancelToken, PopulateOptions, Progress, Strategy};
#[doc(hidden)]
pub use workers::{CHUNK_DURATION, REPORT_INTERVAL};
pub(in crate::verbs) use workers::{CHUNK_TARGET, YIELD_INTERVAL, YIELD_PAUSE};

use std::ops::RangeBounds;
use std::sync::Arc;

pub(in crate::verbs) use self::headroom::PopulateAdmission;
use self::plan::{Part, Source, access_of_lock, plan, plan_for_lock};
use self::workers::Workers;
use crate::ground::error::Result;
use crate::ground::mapping::Mapping;
use crate::ground::range::PageRange;
use crate::ground::sys::vma::Vma;
use crate::observation::stats;
use crate::verbs::lazy_free;

impl Mapping {
    /// Faults the given bytes in now, so that accessing them later takes no page
    /// fault: `madvise(MADV_POPULATE_READ)` or `MADV_POPULATE_WRITE` (Linux
    /// 5.14), in chunks, by several threads. The bounds are in bytes and are
    /// rounded outward to pages.
    ///
    /// The kernel may reclaim the pages again under memory pressure;
    /// [`lock`](Mapping::lock) keeps them.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::populate_with`]; [`Error::OutOfBounds`] for bounds
    /// that are not inside the mapping.
    ///
    /// ```
    /// use tenure::{Access, Mapping};
    ///
    /// let memory = Mapping::anonymous(1 << 20).map()?;
    /// memory.populate(.., Access::Write)?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// [`Error::OutOfBounds`]: crate::Error::OutOfBounds
    pub fn populate(&self, bounds: impl RangeBounds<usize>, access: Access) -> Result<()> {
        self.populate_with(bounds, &PopulateOptions::new(access))
    }

    /// Faults the given bytes in now, like [`populate`](Mapping::populate), with
    /// options.
    ///
    /// # Errors
    ///
    /// As for [`populate`](Mapping::populate).
    pub fn populate_with(
        &self,
        bounds: impl RangeBounds<usize>,
        options: &PopulateOptions,
    ) -> Result<()> {
        let range = self.pages_covering(bounds)?;
        run(range, options, self.source())
    }

    /// Starts populating in another thread and returns at once. This call performs
    /// all checks; [`BackgroundPopulate::wait`] returns the errors of the
    /// populating itself.
    ///
    /// # Errors
    ///
    /// As for [`populate`](Mapping::populate), and [`Error::System`] when no
    /// thread can be started.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tenure::{Access, Mapping, populate::PopulateOptions};
    ///
    /// let memory = Arc::new(Mapping::anonymous(1 << 20).map()?);
    /// let populate = memory.populate_in_background(.., &PopulateOptions::new(Access::Write))?;
    /// // ... other work; the memory can be used already ...
    /// populate.wait()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// [`Error::System`]: crate::Error::System
    pub fn populate_in_background(
        self: &Arc<Self>,
        bounds: impl RangeBounds<usize>,
        options: &PopulateOptions,
    ) -> Result<BackgroundPopulate> {
        let range = self.pages_covering(bounds)?;
        let prepared = prepare(range, options, self.source())?;
        let (mapping, options) = (Arc::clone(self), options.clone());
        BackgroundPopulate::start(&options.cancel.clone(), move || {
            run_prepared(range, &prepared, &options, mapping.source())
        })
    }

    fn source(&self) -> Option<Source<'_>> {
        let (file, offset) = self.writable_file()?;
        Some(Source {
            file,
            offset,
            start: self.range().start(),
        })
    }
}

impl PageRange {
    /// Faults the range in now, like [`populate_with`](PageRange::populate_with)
    /// with default options: `madvise(MADV_POPULATE_READ)` or
    /// `MADV_POPULATE_WRITE`.
    ///
    /// # Errors
    ///
    /// As for [`populate_with`](PageRange::populate_with).
    ///
    /// # Safety
    ///
    /// As for [`populate_with`](PageRange::populate_with).
    pub unsafe fn populate(self, access: Access) -> Result<()> {
        run(self, &PopulateOptions::new(access), None)
    }

    /// Faults the range in now, with options; by default with
    /// `madvise(MADV_POPULATE_READ)` or `MADV_POPULATE_WRITE` (Linux 5.14), in
    /// chunks, by several threads. An empty range succeeds.
    ///
    /// Contents do not change, even while other threads write to them. A page that
    /// cannot be faulted in is an error, never a signal.
    ///
    /// # Errors
    ///
    /// With nothing done:
    /// * [`Error::Hole`] when a part is not mapped,
    /// * [`Error::NoAccess`] when a part cannot be read or, for
    ///   [`Access::Write`], written,
    /// * [`Error::WrongKind`] for the kernel's own special mappings, and for a
    ///   strategy that does not apply to the kind of memory,
    /// * [`Error::Unsupported`] where the kernel lacks a feature that the strategy
    ///   needs,
    /// * [`Error::NoMemory`] when it would take more memory than
    ///   [`Headroom`](crate::Headroom) or the pool of huge pages has, unless
    ///   [`force`](PopulateOptions::force) is set.
    ///
    /// With a part populated, which is harmless:
    /// * [`Error::NoBacking`] for pages that are SIGBUS when touched,
    /// * [`Error::HwPoison`] for a page on broken memory,
    /// * [`Error::Cancelled`] when the token was cancelled,
    /// * [`Error::SystemAt`] for anything else, ENOMEM among it.
    ///
    /// # Safety
    ///
    /// No other code may rely on pages of the range being missing, as the handler
    /// of a userfaultfd does.
    ///
    /// [`Error::Hole`]: crate::Error::Hole
    /// [`Error::NoAccess`]: crate::Error::NoAccess
    /// [`Error::WrongKind`]: crate::Error::WrongKind
    /// [`Error::Unsupported`]: crate::Error::Unsupported
    /// [`Error::NoMemory`]: crate::Error::NoMemory
    /// [`Error::NoBacking`]: crate::Error::NoBacking
    /// [`Error::HwPoison`]: crate::Error::HwPoison
    /// [`Error::Cancelled`]: crate::Error::Cancelled
    /// [`Error::SystemAt`]: crate::Error::SystemAt
    pub unsafe fn populate_with(self, options: &PopulateOptions) -> Result<()> {
        run(self, options, None)
    }

    /// Starts populating in another thread and returns at once, like
    /// [`Mapping::populate_in_background`].
    ///
    /// # Errors
    ///
    /// As for [`Mapping::populate_in_background`].
    ///
    /// # Safety
    ///
    /// As for [`populate_with`](PageRange::populate_with), and the range must
    /// stay mapped until the handle has been waited for or dropped. After a drop, a worker
    /// that stalls in a page fault may populate the rest of its chunk in what is mapped
    /// there by then; see [`BackgroundPopulate`].
    pub unsafe fn populate_in_background(
        self,
        options: &PopulateOptions,
    ) -> Result<BackgroundPopulate> {
        let prepared = prepare(self, options, None)?;
        let options = options.clone();
        BackgroundPopulate::start(&options.cancel.clone(), move || {
            run_prepared(self, &prepared, &options, None)
        })
    }
}

fn run(range: PageRange, options: &PopulateOptions, source: Option<Source<'_>>) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let prepared = prepare(range, options, source)?;
    run_prepared(range, &prepared, options, source)
}

fn run_prepared(
    range: PageRange,
    prepared: &Prepared,
    options: &PopulateOptions,
    source: Option<Source<'_>>,
) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    if options.access == Access::Write {
        lazy_free::forget_freed(range);
    }
    let admission = prepared.admission.as_ref();
    Workers::new(range, &prepared.parts, options, source, admission)?.run()?;
    stats::POPULATE.done(range.len());
    Ok(())
}

/// Faults the mappings of a range in as `mlock` does, whatever the access and strategy
/// in the options. Memory that cannot be populated is left to `mlock`.
pub(in crate::verbs) fn populate_for_lock(
    range: PageRange,
    vmas: &[Vma],
    options: &PopulateOptions,
) -> Result<()> {
    let admission = match options.force {
        true => None,
        false => Some(admit_for_lock(range, vmas)?),
    };
    let parts = plan_for_lock(vmas);
    Workers::new(range, &parts, options, None, admission.as_ref())?.run()
}

/// Admits what faulting the mappings of a range in as `mlock` does will take.
pub(in crate::verbs) fn admit_for_lock(
    range: PageRange,
    vmas: &[Vma],
) -> Result<PopulateAdmission> {
    headroom::admit(range, vmas, access_of_lock).map_err(|error| error.of_verb("lock"))
}

/// A call that has passed all checks.
struct Prepared {
    parts: Vec<Part>,
    /// `None` with [`force`](PopulateOptions::force).
    admission: Option<PopulateAdmission>,
}

/// Plans the call and performs all checks, before anything changes.
fn prepare(
    range: PageRange,
    options: &PopulateOptions,
    source: Option<Source<'_>>,
) -> Result<Prepared> {
    let (parts, vmas) = plan(range, options, source)?;
    let admission = match options.force {
        true => None,
        false => Some(headroom::admit(range, &vmas, |_| options.access)?),
    };
    Ok(Prepared { parts, admission })
}
