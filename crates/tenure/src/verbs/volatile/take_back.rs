//! Taking offered pages back, and finding what is gone.

use rangemap::RangeSet;

use super::at;
use super::engine::lose;
use crate::ground::error::Result;
use crate::ground::range::PageRange;
use crate::ground::sys::Errno;
use crate::ground::sys::advise::{Harmless, advise};
use crate::ground::sys::pagemap::{self, PageRun, PageState};
use crate::ground::sys::userfaultfd::Userfaultfd;
use crate::observation::stats;

/// Makes every page of the registered range safe from being taken. Pages that
/// are gone already are added to `lost` and filled with zeros.
///
/// MADV_POPULATE_WRITE takes pages back one after the other; at a missing one
/// it stops with EFAULT. The kernel may take further pages until it has passed
/// them, so the range is looked at again until a pass meets no missing page.
/// Pages of zeros cannot be lost, and are left as they are. So could pages in
/// swap be, but a page that is just being moved (a huge page split, memory
/// compacted) looks the same, and is as easily lost as before when it arrives.
pub(super) fn take_back(
    uffd: &Userfaultfd,
    range: PageRange,
    lost: &mut RangeSet<usize>,
) -> Result<()> {
    let mut stopped_at_missing = false;
    loop {
        let runs = pagemap::scan(range).map_err(at("PAGEMAP_SCAN", range))?;
        let mut found_missing = false;
        for run in runs.iter().filter(|run| run.state == PageState::Absent) {
            stats::PURGED_BY_KERNEL_BYTES.add(lose(lost, run.range));
            uffd.fill_with_zeros(run.range)
                .map_err(at("UFFDIO_ZEROPAGE", run.range))?;
            found_missing = true;
        }
        if stopped_at_missing && !found_missing {
            // The obstacle is not a missing page: going on would not end.
            return Err(at("madvise(MADV_POPULATE_WRITE)", range)(Errno::FAULT));
        }
        stopped_at_missing = false;
        let has_contents =
            |run: &&PageRun| matches!(run.state, PageState::Present | PageState::Swapped);
        for run in runs.iter().filter(has_contents) {
            match populate(run.range) {
                Ok(()) => {}
                Err(Errno::FAULT) => stopped_at_missing = true,
                Err(errno) => return Err(at("madvise(MADV_POPULATE_WRITE)", run.range)(errno)),
            }
        }
        if !stopped_at_missing {
            return Ok(());
        }
    }
}

fn populate(range: PageRange) -> std::result::Result<(), Errno> {
    loop {
        match advise(range, Harmless::PopulateWrite) {
            // A signal came in between: what is done stays done.
            Err(Errno::INTR | Errno::AGAIN) => {}
            answer => return answer,
        }
    }
}
