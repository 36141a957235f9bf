//! What is known of ranges that were freed adaptively.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, OnceLock};

use rangemap::RangeSet;

use crate::ground::range::PageRange;
use crate::ground::sys::Errno;
use crate::ground::sys::fork::{ForkMutex, at_fork};

/// How many ranges are remembered, of which neighbours are one: about 1 MiB. What
/// is freed beyond that is freed eagerly.
const MOST_RANGES: usize = 1 << 14;

#[derive(Default)]
pub(super) struct Known {
    /// What was private anonymous memory when it was looked at, and has not been
    /// unmapped through tenure since.
    checked: RangeSet<usize>,
    /// What was freed lazily and has not been said to be in use again.
    lazily_free: RangeSet<usize>,
}

static KNOWN: LazyLock<ForkMutex<Known>> = LazyLock::new(|| ForkMutex::new(Known::default()));

/// Whether anything was ever noted: who never frees adaptively takes no lock.
static HAS_NOTES: AtomicBool = AtomicBool::new(false);

/// What [`note`] answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Noted {
    /// The range is private anonymous memory, unless others have mapped
    /// something over it.
    pub(super) is_checked: bool,
    /// It can be freed lazily: it will be given back.
    pub(super) is_lazy: bool,
}

/// Takes note that a range is about to be freed, lazily if that is wanted and
/// there is room for one more range.
pub(super) fn note(range: PageRange, wants_lazy: bool) -> Noted {
    HAS_NOTES.store(true, Ordering::Relaxed);
    KNOWN.lock().note(range, wants_lazy)
}

/// Takes note that a range is private anonymous memory.
pub(super) fn note_checked(range: PageRange) {
    KNOWN.lock().note_checked(range);
}

fn contains(set: &RangeSet<usize>, range: PageRange) -> bool {
    set.get(&range.start())
        .is_some_and(|found| range.end() <= found.end)
}

/// Takes note that a range is in use again.
pub(in crate::verbs) fn forget_freed(range: PageRange) {
    if HAS_NOTES.load(Ordering::Relaxed) {
        KNOWN.lock().forget_freed(range);
    }
}

/// Takes note that a range is being unmapped, or is not what it was.
pub(in crate::verbs) fn forget(range: PageRange) {
    if HAS_NOTES.load(Ordering::Relaxed) {
        KNOWN.lock().forget(range);
    }
}

/// Returns a range that is lazily free, as far as is known, and forgets that.
pub(super) fn take_freed() -> Option<PageRange> {
    KNOWN.lock().take_freed()
}

/// What the functions of the same names say.
impl Known {
    pub(super) fn note(&mut self, range: PageRange, wants_lazy: bool) -> Noted {
        let is_checked = contains(&self.checked, range);
        let is_noted = contains(&self.lazily_free, range);
        let is_lazy = wants_lazy && (is_noted || self.lazily_free.len() < MOST_RANGES);
        if is_lazy && !is_noted {
            self.lazily_free.insert(range.as_std());
        } else if !is_lazy && !self.lazily_free.is_empty() {
            self.lazily_free.remove(range.as_std());
        }
        Noted {
            is_checked,
            is_lazy,
        }
    }

    pub(super) fn note_checked(&mut self, range: PageRange) {
        if self.checked.len() < MOST_RANGES {
            self.checked.insert(range.as_std());
        }
    }

    pub(super) fn forget_freed(&mut self, range: PageRange) {
        self.lazily_free.remove(range.as_std());
    }

    pub(super) fn forget(&mut self, range: PageRange) {
        self.checked.remove(range.as_std());
        self.lazily_free.remove(range.as_std());
    }

    pub(super) fn take_freed(&mut self) -> Option<PageRange> {
        let range = self.lazily_free.first()?.clone();
        self.lazily_free.remove(range.clone());
        Some(range.into())
    }
}

/// Makes what taking notes needs, if that has not been done.
pub(crate) fn prepare() {
    LazyLock::force(&KNOWN);
    let _ = empty_in_children();
}

/// Has children begin with nothing known: their pages are shared with the
/// parent's, so that to take them would gain nothing.
pub(super) fn empty_in_children() -> Result<(), Errno> {
    unsafe extern "C" fn prepare() {
        KNOWN.hold();
    }
    unsafe extern "C" fn parent() {
        // SAFETY: `prepare` has run in this thread.
        unsafe { KNOWN.let_go(|_| ()) };
    }
    unsafe extern "C" fn child() {
        // Leaked, not freed: the child of a threaded program must not touch the
        // allocator here.
        // SAFETY: `prepare` has run in the thread that this is a copy of.
        unsafe { KNOWN.let_go(|known| std::mem::forget(std::mem::take(known))) };
    }
    static REGISTERED: OnceLock<Result<(), Errno>> = OnceLock::new();
    *REGISTERED.get_or_init(|| at_fork(prepare, parent, child))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::ground::mapping::Mapping;
    use crate::ground::sys::features::Features;
    use crate::ground::sys::page_size;

    fn pages(first: usize, count: usize) -> PageRange {
        // Addresses that nothing has.
        PageRange::new((1 << 30) + first * page_size(), count * page_size()).unwrap()
    }

    /// In one test: what is known is known to the whole process.
    #[test]
    fn is_bounded_and_forgets() {
        let _alone = super::super::adaptive::tests::ALONE.lock();
        assert_eq!(take_freed(), None);
        let noted = |is_checked, is_lazy| Noted {
            is_checked,
            is_lazy,
        };
        assert_eq!(note(pages(0, 4), true), noted(false, true));
        note_checked(pages(0, 4));
        assert_eq!(note(pages(1, 2), true), noted(true, true));
        assert_eq!(note(pages(1, 1), false), noted(true, false));
        forget_freed(pages(3, 1));
        assert_eq!(take_freed(), Some(pages(0, 1)));
        forget(pages(0, 2));
        assert_eq!(note(pages(1, 1), false), noted(false, false));
        assert_eq!(note(pages(2, 1), false), noted(true, false));
        assert_eq!(take_freed(), None);

        for index in 0..MOST_RANGES {
            assert!(note(pages(2 * index, 1), true).is_lazy);
        }
        assert!(!note(pages(2 * MOST_RANGES, 1), true).is_lazy);
        assert!(note(pages(0, 1), true).is_lazy, "known already");
        forget(pages(0, 2 * MOST_RANGES));
        assert_eq!(take_freed(), None);
    }

    #[test]
    fn what_is_offered_is_not_given_back_out_of_turn() {
        let features = Features::get();
        if !features.sigbus_on_missing() || features.madv_populate.is_err() {
            return;
        }
        let _alone = super::super::adaptive::tests::ALONE.lock();
        let memory = Mapping::anonymous(4 * page_size()).map().unwrap();
        let range = memory.range();
        assert!(note(range, true).is_lazy);
        // SAFETY: nothing borrows from it.
        unsafe { range.mark_volatile() }.unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while contains(&KNOWN.lock().lazily_free, range) {
            assert!(Instant::now() < end, "the keeper does not say so");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
