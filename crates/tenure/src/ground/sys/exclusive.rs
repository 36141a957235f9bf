//! `madvise(MADV_FREE)` for pages that no other process has.
//!
//! What processes have in common since a fork must not be freed lazily by one of them: Linux
//! (measured on 6.18) may then discard it in all of them. It keeps a page that a process has
//! written, which the dirty bit of its page table or of the page tells. But where a system call
//! pins a shared page to read it (`process_vm_readv(2)`, a `write(2)` with O_DIRECT), the kernel
//! first gives the process a copy, which it does not mark dirty. A later child shares that copy;
//! if it frees it lazily, its parent loses what it has once written.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::advise::{DestructiveAdvice, advise_destructive};
use super::pagemap::Scanner;
use super::{fork, merged, page_size, process};
use crate::PageRange;

/// Lets the kernel reclaim the pages of the range that no other process has:
/// `madvise(MADV_FREE)`. Calls `shared` with each run of the others, which stay as they are;
/// with all that is left where the kernel does not tell. It asks for each page, which is of use
/// only where another process [may have some](may_share_pages).
///
/// # Safety
///
/// Nothing may rely on what is in the range any more.
pub(crate) unsafe fn free_exclusive(
    range: PageRange,
    scanner: &mut Scanner,
    mut shared: impl FnMut(PageRange) -> Result<(), Errno>,
) -> Result<(), Errno> {
    // SAFETY: nothing relies on the contents (the caller's contract).
    let free = |part| unsafe { advise_destructive(part, DestructiveAdvice::Free) };
    let (mut rest, mut answer) = (range, Ok(()));
    let told = scanner.file().and_then(|pagemap| {
        let read =
            |bytes: &mut [u8], offset| pagemap.run(|fd| rustix::io::pread(fd, bytes, offset));
        for_each_run(range, read, |run, is_shared| {
            rest = PageRange::between(run.end(), range.end());
            answer = if is_shared { shared(run) } else { free(run) };
            answer.is_ok()
        })
    });
    if told.is_err() && answer.is_ok() {
        answer = shared(rest);
    }
    answer
}

/// Returns whether another process may have a page of the range, too, or may get it by merging
/// (KSM); as well where the kernel does not tell. It needs no memory and no lock.
pub fn may_be_shared(range: PageRange) -> bool {
    if merged::are_any() {
        return true;
    }
    if !may_share_pages() {
        return false;
    }
    let path = c"/proc/thread-self/pagemap";
    let Ok(pagemap) = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    else {
        return true;
    };
    let mut may_be_shared = false;
    let read = |bytes: &mut [u8], offset| rustix::io::pread(&pagemap, bytes, offset);
    let told = for_each_run(range, read, |_, is_shared| {
        may_be_shared |= is_shared;
        !may_be_shared
    });
    may_be_shared || told.is_err()
}

/// Calls `visit` with the runs of pages that other processes have, too, and with those between,
/// in order, until it returns `false`. `read` reads `/proc/self/pagemap`. The zero page counts as
/// shared, an absent page as its neighbours do.
fn for_each_run(
    range: PageRange,
    mut read: impl FnMut(&mut [u8], u64) -> Result<usize, Errno>,
    mut visit: impl FnMut(PageRange, bool) -> bool,
) -> Result<(), Errno> {
    const ENTRY_BYTES: usize = size_of::<u64>();
    const PRESENT_OR_SWAPPED: u64 = 3 << 62;
    const EXCLUSIVE: u64 = 1 << 56;
    let mut entries = [0; 512 * ENTRY_BYTES];
    let (mut at, mut start, mut is_shared) = (range.start(), range.start(), false);
    while at < range.end() {
        let bytes = ((range.end() - at) / page_size() * ENTRY_BYTES).min(entries.len());
        let offset = (at / page_size() * ENTRY_BYTES) as u64;
        let got = read(&mut entries[..bytes], offset)?;
        if got < ENTRY_BYTES {
            return Err(Errno::FAULT);
        }
        for entry in entries[..got].as_chunks::<ENTRY_BYTES>().0 {
            let entry = u64::from_ne_bytes(*entry);
            let is_next_shared = entry & EXCLUSIVE == 0;
            if entry & PRESENT_OR_SWAPPED != 0 && is_next_shared != is_shared {
                if start < at && !visit(PageRange::between(start, at), is_shared) {
                    return Ok(());
                }
                (start, is_shared) = (at, is_next_shared);
            }
            at += page_size();
        }
    }
    if start < at {
        visit(PageRange::between(start, at), is_shared);
    }
    Ok(())
}

/// How often this process's line of ancestors has begun to fork since tenure was loaded.
static FORKS: AtomicUsize = AtomicUsize::new(0);

/// Called before a fork.
pub(super) fn note_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Returns how often the process and its ancestors have forked: what is written from now on is
/// in no other process until there are more.
pub(crate) fn fork_count() -> usize {
    FORKS.load(Ordering::Relaxed)
}

/// Returns whether another process may have pages that were written when there were so many
/// [forks](fork_count), or later.
pub(crate) fn may_share_pages_since(fork_count_then: usize) -> bool {
    fork_count() != fork_count_then || fork::is_unprepared_child()
}

/// Returns whether this process has forked, or was made by a fork and has called no exec since.
/// A child of a bare `clone` counts only if it exists at the first call.
pub(crate) fn may_share_pages() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    /// Whether it shared pages when tenure was loaded, or would have.
    static SHARED_BEFORE: AtomicU8 = AtomicU8::new(UNKNOWN);
    if may_share_pages_since(0) {
        return true;
    }
    if SHARED_BEFORE.load(Ordering::Relaxed) == UNKNOWN {
        let found = if has_relatives() { YES } else { NO };
        SHARED_BEFORE.store(found, Ordering::Relaxed);
    }
    SHARED_BEFORE.load(Ordering::Relaxed) == YES
}

/// Returns whether the process has a child, or was forked before tenure was loaded.
fn has_relatives() -> bool {
    // Children of every kind; who waits for one still gets its end.
    const ALL: WaitIdOptions = WaitIdOptions::from_bits_retain(libc::__WALL.cast_unsigned());
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT | ALL;
    let has_child = !matches!(waitid(WaitId::All, options), Err(Errno::CHILD));
    has_child || process::was_forked().unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABSENT: u64 = 0;
    const EXCLUSIVE: u64 = 1 << 63 | 1 << 56;
    const SHARED: u64 = 1 << 63;
    const SHARED_IN_SWAP: u64 = 1 << 62;

    /// The runs of a pagemap that tells of two pages at a time: how many pages, and whether they
    /// are shared.
    fn runs(entries: &[u64]) -> Vec<(usize, bool)> {
        let range = PageRange::between(page_size(), (1 + entries.len()) * page_size());
        let mut runs = Vec::new();
        let read = |bytes: &mut [u8], offset: u64| {
            let rest = &entries[offset as usize / 8 - 1..];
            for (bytes, entry) in bytes.chunks_exact_mut(8).zip(&rest[..rest.len().min(2)]) {
                bytes.copy_from_slice(&entry.to_ne_bytes());
            }
            Ok(bytes.len().min(16))
        };
        let visit = |run: PageRange, is_shared| {
            runs.push((run.pages(), is_shared));
            true
        };
        for_each_run(range, read, visit).unwrap();
        runs
    }

    #[test]
    fn runs_are_split_where_sharing_begins_and_ends() {
        assert_eq!(runs(&[ABSENT; 5]), [(5, false)]);
        assert_eq!(runs(&[EXCLUSIVE; 3]), [(3, false)]);
        assert_eq!(runs(&[SHARED; 3]), [(3, true)]);
        let mixed = [
            SHARED,
            ABSENT,
            SHARED_IN_SWAP,
            EXCLUSIVE,
            ABSENT,
            EXCLUSIVE,
            SHARED,
        ];
        assert_eq!(runs(&mixed), [(3, true), (3, false), (1, true)]);
    }

    #[test]
    fn pagemap_that_ends_early_tells_nothing() {
        let range = PageRange::between(page_size(), 2 * page_size());
        let told = for_each_run(range, |_, _| Ok(0), |_, _| true);
        assert_eq!(told, Err(Errno::FAULT));
    }
}
