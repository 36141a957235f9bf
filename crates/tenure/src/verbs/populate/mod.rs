//! populate: fault a range in now, for reading or for writing.

mod background;
mod crew;
mod faster;
mod options;
mod plan;
mod room;
mod ways;

pub use background::BackgroundPopulate;
pub use options::{Access, CancelToken, PopulateOptions, Progress, Strategy};

use std::ops::RangeBounds;
use std::sync::Arc;

use self::crew::Crew;
use self::plan::{Part, Source, plan};
use crate::ground::error::Result;
use crate::ground::mapping::Mapping;
use crate::ground::range::PageRange;
use crate::observation::stats;
use crate::verbs::lazy_free;

impl Mapping {
    /// Faults the bytes named in now, so that touching them later takes no page
    /// fault: `madvise(MADV_POPULATE_READ)` or `MADV_POPULATE_WRITE` (Linux
    /// 5.14), in chunks, by several threads. The bounds are in bytes and are
    /// rounded out to pages.
    ///
    /// Pages brought in may be taken out again under memory pressure; locking
    /// keeps them.
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

    /// Does what [`populate`](Mapping::populate) does, as the options say.
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

    /// Starts populating in another thread and returns at once. What can be
    /// refused is refused here, everything later is told by
    /// [`BackgroundPopulate::wait`].
    ///
    /// # Errors
    ///
    /// As for [`populate`](Mapping::populate), and [`Error::System`] when no
    /// thread can be started.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tenure::{Access, Mapping, PopulateOptions};
    ///
    /// let memory = Arc::new(Mapping::anonymous(1 << 20).map()?);
    /// let arriving = memory.populate_in_background(.., &PopulateOptions::new(Access::Write))?;
    /// // ... other work; the memory can be used already ...
    /// arriving.wait()?;
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
        prepare(range, options, self.source())?;
        let (mapping, options) = (Arc::clone(self), options.clone());
        BackgroundPopulate::start(&options.cancel.clone(), move || {
            run(range, &options, mapping.source())
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
    /// Faults the range in now, as [`populate_with`](PageRange::populate_with)
    /// does without options.
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

    /// Faults the range in now, as the options say: by default with
    /// `madvise(MADV_POPULATE_READ)` or `MADV_POPULATE_WRITE` (Linux 5.14), in
    /// chunks, by several threads. An empty range succeeds.
    ///
    /// Contents do not change, also while other threads write to them. No page
    /// that cannot be brought in becomes a signal.
    ///
    /// # Errors
    ///
    /// With nothing done:
    /// * [`Error::Hole`] when a part is not mapped,
    /// * [`Error::NoAccess`] when a part cannot be read or, for
    ///   [`Access::Write`], written,
    /// * [`Error::WrongKind`] for the kernel's own special mappings, and for a
    ///   strategy that has no meaning for the kind of memory,
    /// * [`Error::Unsupported`] where the kernel lacks what the strategy needs,
    /// * [`Error::NoMemory`] when it would take more memory than
    ///   [`Room`](crate::Room) or the pool of huge pages has, unless
    ///   [`force`](PopulateOptions::force) was asked for.
    ///
    /// With a part populated, which is harmless:
    /// * [`Error::NoBacking`] for pages that touching would answer with SIGBUS,
    /// * [`Error::Poisoned`] for a page on broken memory,
    /// * [`Error::Cancelled`] when the token was cancelled,
    /// * [`Error::SystemAt`] for anything else, ENOMEM among it.
    ///
    /// # Safety
    ///
    /// No other code may count on pages of the range being absent, as the user
    /// of a userfaultfd does who fills them in.
    ///
    /// [`Error::Hole`]: crate::Error::Hole
    /// [`Error::NoAccess`]: crate::Error::NoAccess
    /// [`Error::WrongKind`]: crate::Error::WrongKind
    /// [`Error::Unsupported`]: crate::Error::Unsupported
    /// [`Error::NoMemory`]: crate::Error::NoMemory
    /// [`Error::NoBacking`]: crate::Error::NoBacking
    /// [`Error::Poisoned`]: crate::Error::Poisoned
    /// [`Error::Cancelled`]: crate::Error::Cancelled
    /// [`Error::SystemAt`]: crate::Error::SystemAt
    pub unsafe fn populate_with(self, options: &PopulateOptions) -> Result<()> {
        run(self, options, None)
    }

    /// Starts populating in another thread, as
    /// [`Mapping::populate_in_background`] does.
    ///
    /// # Errors
    ///
    /// As for [`Mapping::populate_in_background`].
    ///
    /// # Safety
    ///
    /// As for [`populate_with`](PageRange::populate_with), and the range must
    /// stay mapped until the handle has been waited for or dropped.
    pub unsafe fn populate_in_background(
        self,
        options: &PopulateOptions,
    ) -> Result<BackgroundPopulate> {
        prepare(self, options, None)?;
        let options = options.clone();
        BackgroundPopulate::start(&options.cancel.clone(), move || run(self, &options, None))
    }
}

fn run(range: PageRange, options: &PopulateOptions, source: Option<Source<'_>>) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let parts = prepare(range, options, source)?;
    if options.access == Access::Write {
        lazy_free::forget_freed(range);
    }
    Crew::new(range, &parts, options, source)?.run()?;
    stats::POPULATE.done(range.len());
    Ok(())
}

/// Everything that can be refused is refused here, before anything is changed.
fn prepare(
    range: PageRange,
    options: &PopulateOptions,
    source: Option<Source<'_>>,
) -> Result<Vec<Part>> {
    let (parts, vmas) = plan(range, options, source)?;
    if !options.force {
        room::check(range, options.access, &vmas)?;
    }
    Ok(parts)
}
