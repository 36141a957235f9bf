//! Temporary splitting of a kernel mapping (VMA).
//!
//! smaps has figures for whole mappings only, and the kernel merges adjacent
//! mappings that are alike. Excluding a part from core dumps (`MADV_DONTDUMP`)
//! splits it off, in 9 µs there and back (Linux 6.18), and changes nothing
//! about how its pages are treated. (A name for it, `PR_SET_VMA_ANON_NAME`, is
//! unknown to many kernels, and files cannot have one.)

use rustix::io::Errno;

use super::advise::{Advice, advise};
use super::fork::{self, ForkGuard, ForkMutex};
use crate::PageRange;

static SPLIT: ForkMutex<()> = ForkMutex::new((), |()| ());

/// The lock that a thread holds while it splits mappings. Two threads would
/// take each other's parts for memory that is never dumped, and a child forked
/// concurrently would keep the parts split.
pub(crate) struct SplitLock(#[expect(dead_code, reason = "held")] ForkGuard<()>);

impl SplitLock {
    /// Waits for the lock.
    pub(crate) fn acquire() -> Result<Self, Errno> {
        register_fork_handlers()?;
        Ok(Self(SPLIT.lock()))
    }

    /// Calls `read` while each of the parts is a mapping of its own, then
    /// merges them again.
    ///
    /// Every part must lie in one mapping that is dumped and that allows
    /// [`Advice::DoDump`]. It should not cut a huge page, which would be mapped
    /// in small pages from then on.
    ///
    /// If the process crashes during the call, its core dump lacks the parts.
    ///
    /// # Errors
    ///
    /// The kernel's, if a part cannot be split off (ENOMEM:
    /// `vm.max_map_count`). Then `read` has not been called.
    pub(crate) fn with_split<T>(
        &self,
        parts: &[PageRange],
        read: impl FnOnce() -> T,
    ) -> Result<T, Errno> {
        let mut marked = Marked(Vec::with_capacity(parts.len()));
        for &part in parts {
            // Recorded first: if another thread unmaps a part of it, the call
            // marks the rest and fails.
            marked.0.push(part);
            advise(part, Advice::DontDump)?;
        }
        Ok(read())
    }
}

/// The ranges to be dumped again.
struct Marked(Vec<PageRange>);

impl Drop for Marked {
    fn drop(&mut self) {
        for &part in &self.0 {
            // If another thread has unmapped it, there is nothing to undo.
            let _ = advise(part, Advice::DoDump);
        }
    }
}

/// Has forks wait until no mapping is split.
pub(crate) fn register_fork_handlers() -> Result<(), Errno> {
    static ENTRY: fork::Entry = fork::Entry::new(&SPLIT);
    fork::register(&ENTRY)
}

#[cfg(test)]
mod tests {
    use super::super::map::{self, Backing};
    use super::super::{page_size, vma};
    use super::*;

    #[test]
    fn with_split_makes_part_a_mapping_during_read() {
        let page = page_size();
        let range = map::map(Backing::Anonymous, 8 * page, false, true).unwrap();
        let part = PageRange::between(range.start() + 2 * page, range.start() + 5 * page);
        let count = || vma::within(range).unwrap().len();
        assert_eq!(count(), 1);
        let lock = SplitLock::acquire().unwrap();
        assert_eq!(lock.with_split(&[part], count), Ok(3));
        assert_eq!(count(), 1);
        // SAFETY: mapped above and used by nobody else.
        unsafe { map::unmap(range) }.unwrap();
        // The lowest page is never mapped.
        let never = PageRange::between(page, 2 * page);
        assert_eq!(lock.with_split(&[never], count), Err(Errno::NOMEM));
    }
}
