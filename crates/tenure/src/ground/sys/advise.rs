//! `madvise(2)` and `msync(2)`.

use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::mm::{self, MsyncFlags};

use super::{map, page_size};
use crate::PageRange;

/// Gives advice that cannot lose data: `madvise(2)`.
pub(crate) fn advise(range: PageRange, advice: Advice) -> Result<(), Errno> {
    // SAFETY: every `Advice` leaves the contents that the program can see
    // unchanged, whatever is mapped in the range.
    unsafe { mm::madvise(range.as_ptr().cast(), range.len(), advice.into()) }
}

/// Gives advice that may lose the contents of the range: `madvise(2)`.
///
/// # Safety
///
/// Nothing may rely on what is in the range any more.
pub(crate) unsafe fn advise_destructive(
    range: PageRange,
    advice: DestructiveAdvice,
) -> Result<(), Errno> {
    // SAFETY: nothing relies on the contents (the caller's contract).
    unsafe { mm::madvise(range.as_ptr().cast(), range.len(), advice.into()) }
}

/// Discards the contents of private anonymous memory, also where it is locked, which it
/// stays: `madvise(MADV_DONTNEED)`, or MADV_DONTNEED_LOCKED (Linux 5.18).
///
/// # Safety
///
/// Nothing may rely on what is in the range any more.
pub(crate) unsafe fn discard_contents(range: PageRange) -> Result<(), Errno> {
    // SAFETY: nothing relies on the contents (the caller's contract).
    match unsafe { advise_destructive(range, DestructiveAdvice::DontNeed) } {
        // SAFETY: as above.
        Err(Errno::INVAL) => unsafe {
            advise_destructive(range, DestructiveAdvice::DontNeedLocked)
        },
        answer => answer,
    }
}

/// Flushes this CPU's MADV_FREE batch: `madvise(MADV_FREE)` on an unused page.
///
/// `madvise(MADV_FREE)` collects pages in a batch for each CPU, which takes
/// effect when it is full (31 pages; 15 before Linux 6.10) or when the next
/// such call starts. This call uses an empty page of tenure's own, because on a
/// part of a huge page it would split that.
pub(crate) fn flush_lazyfree_batch() {
    // The page's address; 0 before it exists.
    static EMPTY_PAGE: AtomicUsize = AtomicUsize::new(0);
    let mut start = EMPTY_PAGE.load(Ordering::Relaxed);
    if start == 0 {
        let Ok(reserved) = map::reserve(page_size()) else {
            return;
        };
        let (own, order) = (reserved.start(), Ordering::Relaxed);
        start = match EMPTY_PAGE.compare_exchange(0, own, order, order) {
            Ok(_) => own,
            Err(winner) => {
                // SAFETY: reserved above, and no other code knows the address.
                let _ = unsafe { map::unmap(reserved) };
                winner
            }
        };
    }
    // A failure would only delay the batch.
    // SAFETY: the page was reserved above, is never unmapped, and has no contents.
    let _ = unsafe {
        advise_destructive(
            PageRange::between(start, start + page_size()),
            DestructiveAdvice::Free,
        )
    };
}

/// Advice after which every byte reads as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    PopulateRead,
    PopulateWrite,
    DontFork,
    /// Ends `DontFork`.
    DoFork,
    DontDump,
    DoDump,
    HugePage,
    NoHugePage,
    Unmergeable,
    WillNeed,
    /// Ends `WipeOnFork`.
    KeepOnFork,
    /// Reclaims clean pages at once, lazily free ones included (Linux 5.4).
    PageOut,
}

impl From<Advice> for mm::Advice {
    fn from(advice: Advice) -> Self {
        match advice {
            Advice::PopulateRead => Self::LinuxPopulateRead,
            Advice::PopulateWrite => Self::LinuxPopulateWrite,
            Advice::DontFork => Self::LinuxDontFork,
            Advice::DoFork => Self::LinuxDoFork,
            Advice::DontDump => Self::LinuxDontDump,
            Advice::DoDump => Self::LinuxDoDump,
            Advice::HugePage => Self::LinuxHugepage,
            Advice::NoHugePage => Self::LinuxNoHugepage,
            Advice::Unmergeable => Self::LinuxUnmergeable,
            Advice::WillNeed => Self::WillNeed,
            Advice::KeepOnFork => Self::LinuxKeepOnFork,
            Advice::PageOut => Self::LinuxPageOut,
        }
    }
}

/// Advice that discards contents, in this process or in a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DestructiveAdvice {
    DontNeed,
    /// `DontNeed` that also accepts locked memory, which stays locked (Linux
    /// 5.18).
    DontNeedLocked,
    Free,
    Remove,
    WipeOnFork,
}

impl From<DestructiveAdvice> for mm::Advice {
    fn from(advice: DestructiveAdvice) -> Self {
        match advice {
            DestructiveAdvice::DontNeed => Self::LinuxDontNeed,
            DestructiveAdvice::DontNeedLocked => Self::LinuxDontneedLocked,
            DestructiveAdvice::Free => Self::LinuxFree,
            DestructiveAdvice::Remove => Self::LinuxRemove,
            DestructiveAdvice::WipeOnFork => Self::LinuxWipeOnFork,
        }
    }
}

/// The result of [`lock_state`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockState {
    /// The range is mapped throughout, and no part of it is locked.
    Unlocked,
    /// A part is locked in memory.
    Locked,
    /// A part is not mapped, and no part before it is locked.
    Hole,
}

/// Returns whether a part of the range is locked: `msync(MS_ASYNC |
/// MS_INVALIDATE)`.
///
/// On Linux, the call only walks the mappings, without touching the pages; it
/// returns EBUSY at the first locked one and ENOMEM for holes.
pub(crate) fn lock_state(range: PageRange) -> Result<LockState, Errno> {
    let flags = MsyncFlags::ASYNC | MsyncFlags::INVALIDATE;
    // SAFETY: with these flags the call changes nothing, whatever is mapped.
    match unsafe { mm::msync(range.as_ptr().cast(), range.len(), flags) } {
        Ok(()) => Ok(LockState::Unlocked),
        Err(Errno::BUSY) => Ok(LockState::Locked),
        Err(Errno::NOMEM) => Ok(LockState::Hole),
        Err(errno) => Err(errno),
    }
}
