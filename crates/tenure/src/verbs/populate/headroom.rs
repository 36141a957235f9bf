//! The check that memory suffices before anything is faulted in.

use super::options::Access;
use super::plan::VERB;
use crate::ground::error::{Error, MemoryKind, Result};
use crate::ground::headroom_limit::HeadroomLimit;
use crate::ground::range::PageRange;
use crate::ground::sys::page_size;
use crate::ground::sys::pagemap::{self, PageState};
use crate::ground::sys::vma::{self, Vma};
use crate::observation::headroom::{Admission, admit_exactly, huge_page_headroom};

/// Admits what populating will take, or fails with [`Error::NoMemory`] if that is more than
/// the headroom: past a cgroup's limit the kernel answers with SIGKILL.
///
/// The check first assumes that every page is missing. Only if that exceeds the
/// headroom does it count the missing pages. Pages of files on disks do not
/// count, because the kernel can reclaim them.
pub(super) fn admit(
    range: PageRange,
    vmas: &[Vma],
    access: impl Fn(&Vma) -> Access,
) -> Result<PopulateAdmission> {
    check_pools(range, vmas)?;
    let counted: Vec<&Vma> = vmas
        .iter()
        .filter(|vma| may_take_memory(vma, access(vma)))
        .collect();
    let max_bytes = with_page_tables(counted.iter().map(|vma| vma.range.len()).sum());
    let mut missing = 0;
    let count_missing = || {
        missing = counted.iter().map(|vma| missing_bytes(vma)).sum();
        with_page_tables(missing)
    };
    let admitted = admit_exactly(max_bytes, count_missing)?;
    let admission = admitted.map_err(|refusal| Error::NoMemory {
        verb: VERB,
        range,
        need_bytes: missing,
        // The page tables may be what does not fit.
        headroom_bytes: refusal.headroom_bytes.min(missing.saturating_sub(1)),
        limit: Box::new(refusal.limit),
    })?;
    Ok(PopulateAdmission {
        is_of_missing: admission.bytes() != max_bytes,
        counted: counted.into_iter().copied().collect(),
        admission,
    })
}

/// The memory that a call may populate. Dropping it gives the rest back.
#[derive(Debug)]
pub(in crate::verbs) struct PopulateAdmission {
    admission: Admission,
    /// The parts of the range that take memory, in order.
    counted: Vec<Vma>,
    /// Only the pages that were missing are admitted.
    is_of_missing: bool,
}

impl PopulateAdmission {
    /// Returns how much of a chunk, which lies within one VMA, is admitted.
    pub(super) fn bytes_in(&self, chunk: PageRange) -> usize {
        let ends_before = |vma: &Vma| vma.range.end() <= chunk.start();
        let at = self.counted.partition_point(ends_before);
        let vma = self.counted.get(at);
        let Some(vma) = vma.filter(|vma| vma.range.contains(chunk)) else {
            return 0;
        };
        match self.is_of_missing {
            true => missing_bytes(&Vma {
                range: chunk,
                ..*vma
            }),
            false => chunk.len(),
        }
    }

    /// Records that admitted bytes are resident, or that populating them has failed.
    pub(super) fn mark_resident(&self, bytes: usize) {
        self.admission.mark_resident(with_page_tables(bytes));
    }

    /// Records that everything is resident, or an unknown part of it.
    pub(in crate::verbs) fn mark_all_resident(&self) {
        self.admission.mark_resident(usize::MAX);
    }
}

/// Adds the page tables that the pages need.
fn with_page_tables(bytes: usize) -> usize {
    bytes.saturating_add(bytes / (page_size() / size_of::<u64>()))
}

fn may_take_memory(vma: &Vma, access: Access) -> bool {
    match (vma.kind, access) {
        (
            MemoryKind::PrivateAnonymous | MemoryKind::Droppable | MemoryKind::PrivateFile,
            Access::Write,
        ) => true,
        (MemoryKind::PrivateAnonymous | MemoryKind::Droppable, Access::Read) => false,
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
        // A process that has changed its user may not read its page map.
        MemoryKind::PrivateAnonymous => {
            absent_bytes(vma.range).or_else(|| pagemap::uncached_bytes(vma.range).ok())
        }
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
    use crate::ground::mapping::Mapping;
    use crate::observation::headroom::admit;

    #[test]
    fn bytes_in_chunk_are_its_missing_pages_in_counted_parts() {
        let page = page_size();
        let mut mapping = Mapping::anonymous(64 * page).map().unwrap();
        mapping.as_mut_slice().unwrap()[..32 * page].fill(7);
        let range = mapping.range();
        let part = |from: usize, to: usize| {
            PageRange::between(range.start() + from * page, range.start() + to * page)
        };
        let vma = vma::cover(range).unwrap()[0];
        let counted = Vma {
            range: part(0, 60),
            ..vma
        };
        let admission = |is_of_missing| PopulateAdmission {
            admission: admit(32 * page).unwrap(),
            counted: vec![counted],
            is_of_missing,
        };
        let missing = admission(true);
        assert_eq!(missing.bytes_in(part(0, 16)), 0);
        assert_eq!(missing.bytes_in(part(24, 40)), 8 * page);
        assert_eq!(missing.bytes_in(part(40, 60)), 20 * page);
        assert_eq!(missing.bytes_in(part(60, 64)), 0);
        assert_eq!(admission(false).bytes_in(part(0, 16)), 16 * page);
    }
}
