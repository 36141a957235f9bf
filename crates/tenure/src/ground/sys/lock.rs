//! `mlock2(2)`, `munlock(2)`, `mlockall(2)` and `munlockall(2)`.

use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::mm::{self, MlockAllFlags, MlockFlags};

use super::advise::{DestructiveAdvice, LockState, advise_destructive, lock_state};
use super::features::Features;
use super::vma::{self, Vma};
use crate::PageRange;
use crate::ground::error::MemoryKind;

/// Locks the range and faults every page of it in: `mlock(2)`.
pub(crate) fn mlock(range: PageRange) -> Result<(), Errno> {
    // SAFETY: locking changes no contents, whatever is mapped in the range.
    unsafe { mm::mlock(range.as_ptr().cast(), range.len()) }
}

/// Locks the pages of the range as they are faulted in: `mlock2(MLOCK_ONFAULT)`
/// (Linux 4.4).
///
/// Before Linux 5.18 the call visits the pages that are present after it has locked the range,
/// and answers ENOMEM for memory without access, which stays locked all the same.
pub(crate) fn mlock_onfault(range: PageRange) -> Result<(), Errno> {
    // SAFETY: as for `mlock`.
    let answer = unsafe { mm::mlock_with(range.as_ptr().cast(), range.len(), MlockFlags::ONFAULT) };
    let visits_pages = || Features::get().madv_dontneed_locked.is_err();
    match answer {
        Err(Errno::NOMEM) if visits_pages() && is_locked_without_access(range) => Ok(()),
        answer => answer,
    }
}

/// Returns whether all of the range is locked that can be, and a part of it has no access.
fn is_locked_without_access(range: PageRange) -> bool {
    let Ok(vmas) = vma::cover(range) else {
        return false;
    };
    let is_locked = |vma: &Vma| lock_state(vma.range) == Ok(LockState::Locked);
    vmas.iter().any(|vma| !vma.readable && !vma.writable)
        && (vmas.iter()).all(|vma| is_locked(vma) || !can_be_locked(vma))
}

/// Whether the kernel can lock memory of this kind; `mlock` skips the others.
pub(crate) fn can_be_locked(vma: &Vma) -> bool {
    !matches!(vma.kind, MemoryKind::HugeTlb | MemoryKind::Special)
}

/// How often memory of this process was unlocked.
static UNLOCKS: AtomicUsize = AtomicUsize::new(0);

/// Returns a number that changes when memory is unlocked: what has failed because memory was
/// locked may succeed then.
pub(crate) fn unlock_count() -> usize {
    UNLOCKS.load(Ordering::Relaxed)
}

/// Unlocks the range, in whichever mode it was locked: `munlock(2)`.
pub(crate) fn munlock(range: PageRange) -> Result<(), Errno> {
    // SAFETY: unlocking changes no contents, whatever is mapped in the range.
    let answer = unsafe { mm::munlock(range.as_ptr().cast(), range.len()) };
    UNLOCKS.fetch_add(1, Ordering::Relaxed);
    answer
}

/// Locks all current mappings, all future ones, or both: `mlockall(2)`. Without
/// `future`, the kernel stops locking new mappings.
pub(crate) fn mlockall(current: bool, future: bool, on_fault: bool) -> Result<(), Errno> {
    let mut flags = MlockAllFlags::empty();
    flags.set(MlockAllFlags::CURRENT, current);
    flags.set(MlockAllFlags::FUTURE, future);
    flags.set(MlockAllFlags::ONFAULT, on_fault);
    mm::mlockall(flags)
}

/// Unlocks all mappings, and stops locking new ones: `munlockall(2)`.
pub(crate) fn munlockall() -> Result<(), Errno> {
    let answer = mm::munlockall();
    UNLOCKS.fetch_add(1, Ordering::Relaxed);
    answer
}

/// Removes the pages of a range that is locked on fault from the page tables:
/// `MADV_DONTNEED_LOCKED` (Linux 5.18). The range stays locked on fault, so a
/// page that is touched again is locked again.
///
/// On older kernels, the function unlocks the range for a moment. If the kernel
/// then refuses to lock it again (the limit was lowered concurrently), the
/// function returns the error and the range stays unlocked.
///
/// # Safety
///
/// The range must be a shared mapping, whose contents outlive its page tables.
pub(crate) unsafe fn dontneed_locked(range: PageRange) -> Result<(), Errno> {
    if Features::get().madv_dontneed_locked.is_ok() {
        // SAFETY: the mapping is shared (the caller's contract), so its
        // contents stay in the page cache.
        return unsafe { advise_destructive(range, DestructiveAdvice::DontNeedLocked) };
    }
    munlock(range)?;
    // SAFETY: as above.
    let dropped = unsafe { advise_destructive(range, DestructiveAdvice::DontNeed) };
    mlock_onfault(range).and(dropped)
}
