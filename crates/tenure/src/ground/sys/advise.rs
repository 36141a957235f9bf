//! `madvise(2)` and `msync(2)`.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use linux_raw_sys::general::PIDFD_SELF_THREAD;
use rustix::io::Errno;
use rustix::mm::{self, MsyncFlags};

use super::features::Features;
use super::{last_errno, lock, map, page_size};
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
/// stays: `madvise(MADV_DONTNEED)`, or MADV_DONTNEED_LOCKED (Linux 5.18). Older kernels unlock
/// it for a moment, and it stays unlocked if they refuse to lock it again.
///
/// # Safety
///
/// Nothing may rely on what is in the range any more.
pub(crate) unsafe fn discard_contents(range: PageRange) -> Result<(), Errno> {
    // SAFETY: nothing relies on the contents (the caller's contract).
    match unsafe { advise_destructive(range, DestructiveAdvice::DontNeed) } {
        // SAFETY: as above.
        Err(Errno::INVAL) if Features::get().madv_dontneed_locked.is_ok() => unsafe {
            advise_destructive(range, DestructiveAdvice::DontNeedLocked)
        },
        Err(Errno::INVAL) => {
            lock::munlock(range)?;
            // SAFETY: as above.
            let answer = unsafe { advise_destructive(range, DestructiveAdvice::DontNeed) };
            let _ = lock::mlock_onfault(range);
            answer
        }
        answer => answer,
    }
}

/// Does what [`discard_contents`] does for many ranges, as [`advise_each`], and calls
/// `discarded` with each range whose contents are gone.
///
/// # Safety
///
/// As for [`discard_contents`], of each range.
pub(crate) unsafe fn discard_each(ranges: &[PageRange], mut discarded: impl FnMut(PageRange)) {
    let mut rest = ranges;
    while !rest.is_empty() {
        // SAFETY: handed on to the caller.
        let done = unsafe { advise_each(rest, DestructiveAdvice::DontNeed) };
        rest[..done].iter().copied().for_each(&mut discarded);
        let Some(&failed) = rest.get(done) else {
            return;
        };
        // SAFETY: handed on to the caller.
        if unsafe { discard_contents(failed) }.is_ok() {
            discarded(failed);
        }
        rest = &rest[done + 1..];
    }
}

/// Gives advice that may lose the contents of ranges, one after the other, and returns how
/// many had it before the first that failed. Together if the kernel can: `process_madvise(2)`
/// of this process (Linux 6.14), which flushes TLBs once for all of them (6.16).
///
/// # Safety
///
/// As for [`advise_destructive`], of each range.
pub(crate) unsafe fn advise_each(ranges: &[PageRange], advice: DestructiveAdvice) -> usize {
    /// The kernel refuses for many what it does for one.
    static IS_REFUSED: AtomicBool = AtomicBool::new(false);
    let mut done = 0;
    while let [first, others @ ..] = &ranges[done..] {
        let mut is_refused = false;
        if !others.is_empty() && !IS_REFUSED.load(Ordering::Relaxed) {
            // SAFETY: handed on to the caller.
            match unsafe { advise_together(&ranges[done..], advice) } {
                Ok(count) if count > 0 => {
                    done += count;
                    continue;
                }
                answer => is_refused = answer.is_err(),
            }
        }
        // SAFETY: handed on to the caller.
        if unsafe { advise_destructive(*first, advice) }.is_err() {
            break;
        }
        done += 1;
        if is_refused {
            IS_REFUSED.store(true, Ordering::Relaxed);
        }
    }
    done
}

/// Advises some of the first ranges in one system call, and returns how many.
///
/// # Safety
///
/// As for [`advise_each`].
unsafe fn advise_together(ranges: &[PageRange], advice: DestructiveAdvice) -> Result<usize, Errno> {
    // On the stack, because an allocation might need the memory that is freed here.
    let mut parts = [libc::iovec {
        iov_base: ptr::null_mut(),
        iov_len: 0,
    }; MAX_TOGETHER];
    for (part, range) in parts.iter_mut().zip(ranges) {
        part.iov_base = range.as_ptr().cast();
        part.iov_len = range.len();
    }
    // SAFETY: nothing relies on the contents (the caller's contract); so many parts are set.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            PIDFD_SELF_THREAD,
            parts.as_ptr(),
            ranges.len().min(MAX_TOGETHER),
            mm::Advice::from(advice) as u32,
            0,
        )
    };
    let mut left = usize::try_from(answer).map_err(|_| last_errno())?;
    let is_done = |range: &&PageRange| {
        let after = left.checked_sub(range.len());
        left = after.unwrap_or(0);
        after.is_some()
    };
    Ok(ranges.iter().take_while(is_done).count())
}

/// The most ranges of one call.
const MAX_TOGETHER: usize = 64;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::mapping::{HugePages, Mapping};

    /// Every second page of a mapping of so many pages, and whether it is written.
    fn every_second_page(count: usize) -> (Mapping, Vec<PageRange>) {
        let mapping = Mapping::anonymous(count * page_size()).huge_pages(HugePages::Never);
        let mapping = mapping.map().unwrap();
        // SAFETY: the mapping is writable, and this test's own.
        unsafe { mapping.as_ptr().write_bytes(1, mapping.range().len()) };
        let pages = mapping.range().chunks(page_size()).step_by(2).collect();
        (mapping, pages)
    }

    fn first_byte(range: PageRange) -> u8 {
        // SAFETY: the tests pass pages of a live mapping.
        unsafe { range.as_ptr().read() }
    }

    #[test]
    fn discard_each_empties_each_range_and_no_other() {
        let (mapping, pages) = every_second_page(4 * MAX_TOGETHER + 6);
        let mut discarded = Vec::new();
        // SAFETY: nothing relies on the contents.
        unsafe { discard_each(&pages, |page| discarded.push(page)) };
        assert_eq!(discarded, pages);
        for (nth, page) in mapping.range().chunks(page_size()).enumerate() {
            assert_eq!(first_byte(page), u8::from(nth % 2 == 1), "{nth}");
        }
    }

    #[test]
    fn discard_each_passes_what_cannot_be_discarded() {
        for missing in [0, 1, 7] {
            let (mapping, pages) = every_second_page(16);
            // SAFETY: nothing uses the page any more.
            unsafe { map::unmap(pages[missing]) }.unwrap();
            let mut discarded = Vec::new();
            // SAFETY: nothing relies on the contents.
            unsafe { discard_each(&pages, |page| discarded.push(page)) };
            let others: Vec<PageRange> = (0..pages.len())
                .filter(|&nth| nth != missing)
                .map(|nth| pages[nth])
                .collect();
            assert_eq!(discarded, others, "{missing}");
            assert!(others.iter().all(|&page| first_byte(page) == 0));
            drop(mapping);
        }
    }

    #[test]
    fn discard_each_discards_locked_ranges_together_with_others() {
        let (_mapping, pages) = every_second_page(8);
        // SAFETY: the page is this test's own.
        unsafe { libc::mlock(pages[1].as_ptr().cast(), page_size()) };
        let mut count = 0;
        // SAFETY: nothing relies on the contents.
        unsafe { discard_each(&pages, |_| count += 1) };
        assert_eq!(count, pages.len());
        assert!(pages.iter().all(|&page| first_byte(page) == 0));
    }
}
