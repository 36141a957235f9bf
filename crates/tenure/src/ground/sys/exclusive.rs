//! `madvise(MADV_FREE)` for pages that no other process has.
//!
//! Pages that processes share since a fork must not be freed lazily by one of them: Linux
//! (measured on 6.18) may then discard them in all. It keeps a page that a process has
//! written, which the dirty bit of its page table or of the page tells. But where a system call
//! pins a shared page to read it (`process_vm_readv(2)`, a `write(2)` with O_DIRECT), the kernel
//! first gives the process a copy, which it does not mark dirty. A later child shares that copy;
//! if it frees it lazily, its parent loses what it has once written.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::advise::{DestructiveAdvice, advise_destructive};
use super::pagemap::{PageState, Scanner, for_each_populated_in};
use super::proc_file::ProcFile;
use super::{fork, merged, page_size, process};
use crate::PageRange;

/// The processes that have the pages of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// This process alone, or nobody.
    This,
    /// Other processes, too; or it is the zero page.
    Several,
    /// They are in swap or being moved, and the kernel does not tell.
    Unknown,
}

/// Lets the kernel reclaim the pages of the range that no other process has:
/// `madvise(MADV_FREE)`. Those in swap leave this process at once, as that call has them do.
/// Calls `shared` with each run of the others, which stay as they are; with all that is left
/// where the kernel does not tell. It asks for each page, which is of use only where another
/// process [may have some](may_share_pages).
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
    let advise = |part, advice| unsafe { advise_destructive(part, advice) };
    let (mut end, mut own, mut answer) = (range.start(), None::<PageRange>, Ok(()));
    let mut act = |run: PageRange, owner| {
        if owner == Owner::This {
            let start = own.map_or(run.start(), PageRange::start);
            own = Some(PageRange::between(start, run.end()));
            return Ok(());
        }
        if let Some(own) = own.take() {
            advise(own, DestructiveAdvice::Free)?;
        }
        match owner {
            // One that is being moved would be shared by the time of the other advice.
            Owner::Unknown => advise(run, DestructiveAdvice::DontNeed),
            _ => shared(run),
        }
    };
    let told = scanner.file().and_then(|pagemap| {
        for_each_populated_run(range, pagemap, |run, owner| {
            end = run.end();
            answer = act(run, owner);
            answer.is_ok()
        })
    });
    if answer.is_ok() && told.is_err() {
        answer = act(PageRange::between(end, range.end()), Owner::Several);
    }
    match own {
        Some(own) => answer.and(advise(own, DestructiveAdvice::Free)),
        None => answer,
    }
}

/// Calls `visit` with the runs of populated pages of one owner, in order, until it returns
/// `false`.
fn for_each_populated_run(
    range: PageRange,
    pagemap: &ProcFile,
    mut visit: impl FnMut(PageRange, Owner) -> bool,
) -> Result<(), Errno> {
    let read = |bytes: &mut [u8], offset| pagemap.run(|fd| rustix::io::pread(fd, bytes, offset));
    let (mut goes_on, mut told) = (true, Ok(()));
    for_each_populated_in(pagemap, range, |populated| {
        if goes_on && told.is_ok() && populated.state != PageState::Zero {
            told = for_each_run(populated.range, read, |run, owner| {
                goes_on = visit(run, owner);
                goes_on
            });
        }
    })?;
    told
}

/// Returns whether another process may have a page of the range, too, or may get it by merging
/// (KSM); as well where the kernel does not tell. It needs no memory and no lock.
pub fn may_be_shared(range: PageRange) -> bool {
    if merged::may_be_any() {
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
    let told = for_each_run(range, read, |_, owner| {
        may_be_shared |= owner != Owner::This;
        !may_be_shared
    });
    may_be_shared || told.is_err()
}

/// Calls `visit` with the runs of pages of one owner, in order, until it returns `false`. `read`
/// reads `/proc/self/pagemap`. An absent page belongs to the run before it.
fn for_each_run(
    range: PageRange,
    mut read: impl FnMut(&mut [u8], u64) -> Result<usize, Errno>,
    mut visit: impl FnMut(PageRange, Owner) -> bool,
) -> Result<(), Errno> {
    const ENTRY_BYTES: usize = size_of::<u64>();
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const EXCLUSIVE: u64 = 1 << 56;
    let mut entries = [0; 512 * ENTRY_BYTES];
    let (mut at, mut start, mut owner) = (range.start(), range.start(), Owner::This);
    while at < range.end() {
        let bytes = ((range.end() - at) / page_size() * ENTRY_BYTES).min(entries.len());
        let offset = (at / page_size() * ENTRY_BYTES) as u64;
        let got = read(&mut entries[..bytes], offset)?;
        if got < ENTRY_BYTES {
            return Err(Errno::FAULT);
        }
        for entry in entries[..got].as_chunks::<ENTRY_BYTES>().0 {
            let entry = u64::from_ne_bytes(*entry);
            let owner_here = match entry {
                _ if entry & SWAPPED != 0 => Owner::Unknown,
                _ if entry & PRESENT == 0 => owner,
                _ if entry & EXCLUSIVE != 0 => Owner::This,
                _ => Owner::Several,
            };
            if owner_here != owner {
                if start < at && !visit(PageRange::between(start, at), owner) {
                    return Ok(());
                }
                (start, owner) = (at, owner_here);
            }
            at += page_size();
        }
    }
    if start < at {
        visit(PageRange::between(start, at), owner);
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
    const SWAPPED: u64 = 1 << 62;

    /// The runs of a pagemap that tells of two pages at a time: how many pages, and whose.
    fn runs(entries: &[u64]) -> Vec<(usize, Owner)> {
        let range = PageRange::between(page_size(), (1 + entries.len()) * page_size());
        let mut runs = Vec::new();
        let read = |bytes: &mut [u8], offset: u64| {
            let rest = &entries[offset as usize / 8 - 1..];
            for (bytes, entry) in bytes.chunks_exact_mut(8).zip(&rest[..rest.len().min(2)]) {
                bytes.copy_from_slice(&entry.to_ne_bytes());
            }
            Ok(bytes.len().min(16))
        };
        let visit = |run: PageRange, owner| {
            runs.push((run.pages(), owner));
            true
        };
        for_each_run(range, read, visit).unwrap();
        runs
    }

    #[test]
    fn runs_end_where_the_owner_changes() {
        assert_eq!(runs(&[ABSENT; 5]), [(5, Owner::This)]);
        assert_eq!(runs(&[EXCLUSIVE; 3]), [(3, Owner::This)]);
        assert_eq!(runs(&[SHARED; 3]), [(3, Owner::Several)]);
        let mixed = [SHARED, ABSENT, SHARED, EXCLUSIVE, ABSENT, SWAPPED, SWAPPED];
        let whose = [(3, Owner::Several), (2, Owner::This), (2, Owner::Unknown)];
        assert_eq!(runs(&mixed), whose);
    }

    #[test]
    fn pagemap_that_ends_early_tells_nothing() {
        let range = PageRange::between(page_size(), 2 * page_size());
        let told = for_each_run(range, |_, _| Ok(0), |_, _| true);
        assert_eq!(told, Err(Errno::FAULT));
    }
}
