//! Whether there is memory enough for what is to come in.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::options::Access;
use super::plan::VERB;
use crate::background::freeing;
use crate::ground::error::{Error, MemoryKind, Result};
use crate::ground::range::PageRange;
use crate::ground::room_bound::RoomBound;
use crate::ground::sys::pagemap::{self, PageState};
use crate::ground::sys::vma::{self, Vma};
use crate::observation::room::{Room, huge_room};

/// Refuses what would take more memory than there is: past a cgroup's limit the
/// kernel answers with SIGKILL.
///
/// What it would take is first taken to be all of it; only if that is too much
/// are the pages counted that are missing. Pages of files on disks do not count:
/// the kernel can give them up again.
pub(super) fn check(range: PageRange, access: Access, vmas: &[Vma]) -> Result<()> {
    check_pools(range, vmas)?;
    let most: Vec<&Vma> = vmas
        .iter()
        .filter(|vma| may_take_memory(vma, access))
        .collect();
    let most_bytes: usize = most.iter().map(|vma| vma.range.len()).sum();
    if most_bytes == 0 {
        return Ok(());
    }
    if KNOWN
        .try_lock()
        .is_ok_and(|mut known| known.take(most_bytes))
    {
        return Ok(());
    }
    // Without /proc nothing is known, and nothing can be refused.
    let Ok(mut room) = Room::now() else {
        return Ok(());
    };
    if most_bytes > room.bytes && freeing::pending_bytes() > 0 {
        // It is only for the workers to come: wait for them.
        freeing::drain(None)?;
        room = Room::now()?;
    }
    if most_bytes <= room.bytes {
        if let Ok(mut known) = KNOWN.try_lock() {
            *known = Known::now(room.bytes - most_bytes);
        }
        return Ok(());
    }
    let need_bytes = most.iter().map(|vma| missing_bytes(vma)).sum();
    if need_bytes <= room.bytes {
        return Ok(());
    }
    Err(Error::NoMemory {
        verb: VERB,
        range,
        need_bytes,
        room_bytes: room.bytes,
        bound: Box::new(room.bound),
    })
}

/// The room as it was a moment ago: asking takes 0.2 ms, too much before each of
/// many small ranges.
struct Known {
    /// When it was asked; `None` for never.
    at: Option<Instant>,
    /// What was left then, less what has been taken since.
    left_bytes: usize,
}

/// Only ever tried: a child whose parent had it locked at the fork asks anew.
static KNOWN: Mutex<Known> = Mutex::new(Known {
    at: None,
    left_bytes: 0,
});

impl Known {
    const LASTS: Duration = Duration::from_millis(100);

    fn now(left_bytes: usize) -> Self {
        Self {
            at: Some(Instant::now()),
            left_bytes,
        }
    }

    /// Takes from what is left, as long as that is plenty and known well.
    fn take(&mut self, bytes: usize) -> bool {
        let fresh = self.at.is_some_and(|at| at.elapsed() < Self::LASTS);
        let plenty = bytes < self.left_bytes / 8;
        if fresh && plenty {
            self.left_bytes -= bytes;
        }
        fresh && plenty
    }
}

fn may_take_memory(vma: &Vma, access: Access) -> bool {
    match (vma.kind, access) {
        (MemoryKind::PrivateAnonymous | MemoryKind::PrivateFile, Access::Write) => true,
        (MemoryKind::PrivateAnonymous, Access::Read) => false,
        // Reading over a hole in memory that passes for a file allocates it.
        (MemoryKind::Shared | MemoryKind::PrivateFile, _) => vma::is_memory_file(vma.range.start()),
        (MemoryKind::HugeTlb | MemoryKind::Special, _) => false,
    }
}

/// How much of the part is not in memory yet; all of it where that cannot be
/// told, as for the copies that writing to a private file will make.
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

/// The same for huge pages, which come from pools of their own.
fn check_pools(range: PageRange, vmas: &[Vma]) -> Result<()> {
    for huge in vmas.iter().filter(|vma| vma.kind == MemoryKind::HugeTlb) {
        let page_bytes = huge.page_bytes;
        let of_pool = vmas
            .iter()
            .filter(|vma| vma.kind == MemoryKind::HugeTlb && vma.page_bytes == page_bytes);
        let need_bytes = of_pool.filter_map(|vma| absent_bytes(vma.range)).sum();
        // Without /sys the kernel answers, page by page.
        let Some(room_bytes) = huge_room(page_bytes) else {
            continue;
        };
        if need_bytes > room_bytes {
            return Err(Error::NoMemory {
                verb: VERB,
                range,
                need_bytes,
                room_bytes,
                bound: Box::new(RoomBound::HugePool { page_bytes }),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_used_while_it_is_plenty_and_fresh() {
        let mut known = Known::now(1000);
        assert!(known.take(100));
        assert_eq!(known.left_bytes, 900);
        assert!(!known.take(200));
        known.at = Instant::now().checked_sub(Known::LASTS);
        assert!(!known.take(1));
        assert!(
            !Known {
                at: None,
                left_bytes: 1000
            }
            .take(1)
        );
    }
}
