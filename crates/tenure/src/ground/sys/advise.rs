//! `madvise(2)` and `msync(2)`.

use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::mm::{self, Advice, MsyncFlags};

use super::{map, page_size};
use crate::PageRange;

/// Gives advice that cannot lose data.
pub(crate) fn advise(range: PageRange, advice: Harmless) -> Result<(), Errno> {
    // SAFETY: every `Harmless` advice leaves the contents that the program can
    // see as they are, whatever is mapped in the range.
    unsafe { mm::madvise(range.as_ptr().cast(), range.len(), advice.into()) }
}

/// Gives advice that may lose the contents of the range.
///
/// # Safety
///
/// Nothing may rely on what is in the range any more.
pub(crate) unsafe fn advise_losing(range: PageRange, advice: Losing) -> Result<(), Errno> {
    // SAFETY: the caller gives the contents up.
    unsafe { mm::madvise(range.as_ptr().cast(), range.len(), advice.into()) }
}

/// Has the kernel finish this CPU's batch of pages that are to be lazily free.
///
/// `madvise(MADV_FREE)` puts pages into a batch for each CPU, which takes effect
/// when it is full (31 pages; 15 before Linux 6.10) or when the next such call
/// begins. That call is made on an empty page of ours: on a part of a huge page
/// it would split it.
pub(crate) fn finish_batch() {
    static EMPTY_PAGE: OnceLock<Option<PageRange>> = OnceLock::new();
    let page = EMPTY_PAGE.get_or_init(|| map::reserve(page_size()).ok());
    if let Some(page) = page {
        // It cannot be refused, and if it were, the batch would only wait.
        // SAFETY: nobody else knows the page, which has no contents.
        let _ = unsafe { advise_losing(*page, Losing::Free) };
    }
}

/// Advice after which every byte reads as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Harmless {
    PopulateRead,
    PopulateWrite,
    DontFork,
    DontDump,
    DoDump,
    HugePage,
    NoHugePage,
    Unmergeable,
    WillNeed,
    /// Takes clean pages at once, also those that are lazily free (Linux 5.4).
    PageOut,
}

impl From<Harmless> for Advice {
    fn from(advice: Harmless) -> Self {
        match advice {
            Harmless::PopulateRead => Self::LinuxPopulateRead,
            Harmless::PopulateWrite => Self::LinuxPopulateWrite,
            Harmless::DontFork => Self::LinuxDontFork,
            Harmless::DontDump => Self::LinuxDontDump,
            Harmless::DoDump => Self::LinuxDoDump,
            Harmless::HugePage => Self::LinuxHugepage,
            Harmless::NoHugePage => Self::LinuxNoHugepage,
            Harmless::Unmergeable => Self::LinuxUnmergeable,
            Harmless::WillNeed => Self::WillNeed,
            Harmless::PageOut => Self::LinuxPageOut,
        }
    }
}

/// Advice that gives contents up, here or in a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Losing {
    DontNeed,
    /// As `DontNeed`, for locked memory, which stays locked (Linux 5.18).
    DontNeedLocked,
    Free,
    Remove,
    WipeOnFork,
}

impl From<Losing> for Advice {
    fn from(advice: Losing) -> Self {
        match advice {
            Losing::DontNeed => Self::LinuxDontNeed,
            Losing::DontNeedLocked => Self::LinuxDontneedLocked,
            Losing::Free => Self::LinuxFree,
            Losing::Remove => Self::LinuxRemove,
            Losing::WipeOnFork => Self::LinuxWipeOnFork,
        }
    }
}

/// What [`lock_state`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockState {
    /// Mapped throughout, no part is locked.
    Unlocked,
    /// A part is locked in memory.
    Locked,
    /// A part is not mapped, and none before it is locked.
    Hole,
}

/// Asks whether a part of the range is locked, at the price of a look at each
/// mapping and none at the pages.
///
/// `msync(MS_ASYNC | MS_INVALIDATE)` does nothing on Linux but to walk the
/// mappings; it answers EBUSY at the first locked one and ENOMEM for holes.
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
