//! Registration with a userfaultfd so that a page which is missing later is a page
//! that the kernel reclaimed.

use super::advise::{Advice, advise};
use super::page_runs::PageError;
use super::pagemap::{self, PageState};
use super::userfaultfd::Userfaultfd;
use super::{Errno, page_size};
use crate::PageRange;

/// Ends the merging of the range's pages with equal ones (KSM):
/// `madvise(MADV_UNMERGEABLE)`. The kernel does not reclaim a merged page, and a
/// later MADV_POPULATE_WRITE would unmerge it.
pub(crate) fn unmerge(range: PageRange) -> Result<(), Errno> {
    match advise(range, Advice::Unmergeable) {
        // A kernel without KSM does not know the advice.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Maps the zero page wherever the range has no page: `madvise(MADV_POPULATE_READ)`.
/// To be called before the range is registered: until then a thread that reads such a
/// page does not meet SIGBUS.
pub(crate) fn map_zero_page_where_absent(range: PageRange) -> Result<(), PageError> {
    let runs = pagemap::scan(range).map_err(PageError::Scan)?;
    for run in runs.iter().filter(|run| run.state == PageState::Absent) {
        advise(run.range, Advice::PopulateRead)
            .map_err(PageError::call("madvise(MADV_POPULATE_READ)", run.range))?;
    }
    Ok(())
}

/// Registers the range, which lies in one mapping, and makes `fork` copy its page
/// tables.
///
/// At fork the kernel skips a mapping in which nothing has been written: the child
/// would miss its zero pages, and a missing page counts as purged. UFFDIO_ZEROPAGE
/// gives the mapping an `anon_vma`, after which fork copies it, also where a page is
/// present, which it leaves alone.
pub(crate) fn register_inherited(uffd: &Userfaultfd, range: PageRange) -> Result<(), Errno> {
    uffd.register(range)?;
    let first = PageRange::between(range.start(), range.start() + page_size());
    uffd.fill_with_zeros(first).inspect_err(|_| {
        let _ = uffd.unregister(range);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::mapping::{HugePages, Mapping};
    use crate::ground::sys::features::Features;

    #[test]
    fn absent_pages_become_zero_pages_and_written_ones_stay() {
        if Features::get().madv_populate.is_err() {
            return;
        }
        let memory = Mapping::anonymous(4 * page_size());
        let mut memory = memory.huge_pages(HugePages::Never).map().unwrap();
        memory.as_mut_slice().unwrap()[page_size()] = 7;
        map_zero_page_where_absent(memory.range()).unwrap();
        let runs = pagemap::scan(memory.range()).unwrap();
        assert!(runs.iter().all(|run| run.state != PageState::Absent));
        assert_eq!(memory.as_slice()[page_size()], 7);
    }
}
