//! A part of one of the kernel's mappings as a mapping of its own, for a moment.
//!
//! smaps has figures for whole mappings only, and the kernel makes one of
//! neighbours that are alike. Advice that a part be left out of core dumps
//! (`MADV_DONTDUMP`) sets it apart, in 9 µs there and back (Linux 6.18), and
//! changes nothing about how its pages are treated. (A name for it,
//! `PR_SET_VMA_ANON_NAME`, many kernels do not know, and files cannot have one.)

use std::sync::{MutexGuard, OnceLock};

use rustix::io::Errno;

use super::advise::{Harmless, advise};
use super::fork::{ForkMutex, at_fork};
use crate::PageRange;

static APART: ForkMutex<()> = ForkMutex::new(());

/// The right to set parts apart, which one thread has at a time: two would take
/// each other's parts for memory that is never dumped, and a child forked
/// meanwhile would keep them apart.
pub(crate) struct Alone(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Alone {
    /// Waits for it.
    pub(crate) fn wait() -> Result<Self, Errno> {
        keep_children_out()?;
        Ok(Self(APART.lock()))
    }

    /// Has each of the parts be a mapping of its own while `look` looks, and
    /// then be as it was.
    ///
    /// Every part must lie in one mapping that is dumped and that
    /// [`Harmless::DoDump`] is allowed for. It should not cut a huge page: that
    /// one would be mapped in small pieces from then on.
    ///
    /// If the process crashes meanwhile, its core dump lacks the parts.
    ///
    /// # Errors
    ///
    /// The kernel's, if a part cannot be set apart (ENOMEM: no room for further
    /// mappings). Then `look` has not been called.
    pub(crate) fn apart<T>(
        &self,
        parts: &[PageRange],
        look: impl FnOnce() -> T,
    ) -> Result<T, Errno> {
        let mut marked = Marked(Vec::with_capacity(parts.len()));
        for &part in parts {
            // First, for of a part that is unmapped meanwhile some may be marked.
            marked.0.push(part);
            advise(part, Harmless::DontDump)?;
        }
        Ok(look())
    }
}

/// What is to be dumped again.
struct Marked(Vec<PageRange>);

impl Drop for Marked {
    fn drop(&mut self) {
        for &part in &self.0 {
            // Where another thread has unmapped it there is nothing to undo.
            let _ = advise(part, Harmless::DoDump);
        }
    }
}

/// Makes what setting parts apart needs, if that has not been done.
pub(crate) fn prepare() {
    let _ = keep_children_out();
}

fn keep_children_out() -> Result<(), Errno> {
    unsafe extern "C" fn prepare() {
        APART.hold();
    }
    unsafe extern "C" fn after() {
        // SAFETY: `prepare` has run in this thread, or in the thread that this
        // is a copy of.
        unsafe { APART.let_go(|()| ()) };
    }
    static REGISTERED: OnceLock<Result<(), Errno>> = OnceLock::new();
    *REGISTERED.get_or_init(|| at_fork(prepare, after, after))
}

#[cfg(test)]
mod tests {
    use super::super::map::{self, Backing};
    use super::super::{page_size, vma};
    use super::*;

    #[test]
    fn a_part_is_a_mapping_for_as_long_as_one_looks() {
        let page = page_size();
        let range = map::map(Backing::Anonymous, 8 * page, false, true).unwrap();
        let part = PageRange::between(range.start() + 2 * page, range.start() + 5 * page);
        let count = || vma::within(range).unwrap().len();
        assert_eq!(count(), 1);
        let alone = Alone::wait().unwrap();
        assert_eq!(alone.apart(&[part], count), Ok(3));
        assert_eq!(count(), 1);
        // SAFETY: mapped above and used by nobody else.
        unsafe { map::unmap(range) }.unwrap();
        // The lowest page is never mapped.
        let never = PageRange::between(page, 2 * page);
        assert_eq!(alone.apart(&[never], count), Err(Errno::NOMEM));
    }
}
