//! The check that memory suffices before anything is faulted in.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::options::Access;
use super::plan::VERB;
use crate::background::freeing;
use crate::ground::error::{Error, MemoryKind, Result};
use crate::ground::headroom_limit::HeadroomLimit;
use crate::ground::range::PageRange;
use crate::ground::sys::fork;
use crate::ground::sys::pagemap::{self, PageState};
use crate::ground::sys::vma::{self, Vma};
use crate::observation::headroom::{Headroom, huge_page_headroom};

/// Fails with [`Error::NoMemory`] if populating would take more than the
/// headroom: past a cgroup's limit the kernel answers with SIGKILL.
///
/// The check first assumes that every page is missing. Only if that exceeds the
/// headroom does it count the missing pages. Pages of files on disks do not
/// count, because the kernel can reclaim them.
pub(super) fn check(range: PageRange, access: Access, vmas: &[Vma]) -> Result<()> {
    check_pools(range, vmas)?;
    let counted: Vec<&Vma> = vmas
        .iter()
        .filter(|vma| may_take_memory(vma, access))
        .collect();
    let max_bytes: usize = counted.iter().map(|vma| vma.range.len()).sum();
    if max_bytes == 0 {
        return Ok(());
    }
    if CACHED
        .try_lock()
        .is_ok_and(|mut cached| cached.take(max_bytes))
    {
        return Ok(());
    }
    // Without /proc the headroom is unknown, and nothing can be refused.
    let Ok(mut headroom) = Headroom::now() else {
        return Ok(());
    };
    let may_wait = !fork::is_in_handler();
    if max_bytes > headroom.bytes && may_wait && freeing::pending_bytes() > 0 {
        // Pending deferred frees become headroom once the workers are done.
        freeing::drain(None)?;
        headroom = Headroom::now()?;
    }
    if max_bytes <= headroom.bytes {
        if let Ok(mut cached) = CACHED.try_lock() {
            *cached = CachedHeadroom::now(headroom.bytes - max_bytes);
        }
        return Ok(());
    }
    let need_bytes = counted.iter().map(|vma| missing_bytes(vma)).sum();
    if need_bytes <= headroom.bytes {
        return Ok(());
    }
    Err(Error::NoMemory {
        verb: VERB,
        range,
        need_bytes,
        headroom_bytes: headroom.bytes,
        limit: Box::new(headroom.limit),
    })
}

/// A recent reading of the headroom: reading it takes 0.2 ms, which is too much
/// before each of many small ranges.
struct CachedHeadroom {
    /// When the headroom was read; `None` for never.
    read_at: Option<Instant>,
    /// The headroom at that time, less what calls have taken since.
    left_bytes: usize,
}

/// Only ever taken with `try_lock`: a child whose parent held the lock at the
/// fork reads the headroom anew.
static CACHED: Mutex<CachedHeadroom> = Mutex::new(CachedHeadroom {
    read_at: None,
    left_bytes: 0,
});

impl CachedHeadroom {
    const MAX_AGE: Duration = Duration::from_millis(100);

    fn now(left_bytes: usize) -> Self {
        Self {
            read_at: Some(Instant::now()),
            left_bytes,
        }
    }

    /// Takes `bytes` if the reading is recent and they are less than an eighth
    /// of what is left.
    fn take(&mut self, bytes: usize) -> bool {
        let is_fresh = self.read_at.is_some_and(|at| at.elapsed() < Self::MAX_AGE);
        let is_small = bytes < self.left_bytes / 8;
        if is_fresh && is_small {
            self.left_bytes -= bytes;
        }
        is_fresh && is_small
    }
}

fn may_take_memory(vma: &Vma, access: Access) -> bool {
    match (vma.kind, access) {
        (MemoryKind::PrivateAnonymous | MemoryKind::PrivateFile, Access::Write) => true,
        (MemoryKind::PrivateAnonymous, Access::Read) => false,
        // A read of a hole in a memfd or a tmpfs file allocates its page.
        (MemoryKind::Shared | MemoryKind::PrivateFile, _) => vma::is_memory_file(vma.range.start()),
        (MemoryKind::HugeTlb | MemoryKind::Special, _) => false,
    }
}

/// Returns how much of the part is not in memory yet, or its whole length where
/// the kernel does not tell, as for the copies that writing to a private file
/// will make.
fn missing_bytes(vma: &Vma) -> usize {
    let missing = match vma.kind {
        MemoryKind::PrivateAnonymous => absent_bytes(vma.range),
        MemoryKind::Shared => pagemap::uncached_bytes(vma.range).ok(),
        _ => None,
    };
    missing.unwrap_or(vma.range.len())
}

fn absent_bytes(range: PageRange) -> Option<usize> {
    let runs = pagemap::scan(range).ok()?;
    let absent = runs.iter().filter(|run| run.state != PageState::Present);
    Some(absent.map(|run| run.range.len()).sum())
}

/// Checks that each pool of huge pages has enough free pages for the range.
fn check_pools(range: PageRange, vmas: &[Vma]) -> Result<()> {
    for huge in vmas.iter().filter(|vma| vma.kind == MemoryKind::HugeTlb) {
        let page_bytes = huge.page_bytes;
        let of_pool = vmas
            .iter()
            .filter(|vma| vma.kind == MemoryKind::HugeTlb && vma.page_bytes == page_bytes);
        let need_bytes = of_pool.filter_map(|vma| absent_bytes(vma.range)).sum();
        // Without /sys the kernel answers, page by page.
        let Some(headroom_bytes) = huge_page_headroom(page_bytes) else {
            continue;
        };
        if need_bytes > headroom_bytes {
            return Err(Error::NoMemory {
                verb: VERB,
                range,
                need_bytes,
                headroom_bytes,
                limit: Box::new(HeadroomLimit::HugePool { page_bytes }),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_headroom_is_used_only_while_fresh_and_ample() {
        let mut cached = CachedHeadroom::now(1000);
        assert!(cached.take(100));
        assert_eq!(cached.left_bytes, 900);
        assert!(!cached.take(200));
        cached.read_at = Instant::now().checked_sub(CachedHeadroom::MAX_AGE);
        assert!(!cached.take(1));
        assert!(
            !CachedHeadroom {
                read_at: None,
                left_bytes: 1000
            }
            .take(1)
        );
    }
}
