//! Locking and unlocking in chunks, so that no other thread waits for the whole range.
//!
//! One `mlock` of 4 GiB holds the address space's lock (`mmap_lock`) for 4 s, and other
//! threads' `mmap` and `fork` wait. So [`LockMode::Now`] takes three steps: it locks the
//! range on fault, which charges it against `RLIMIT_MEMLOCK`; it populates the range, and
//! each page is locked as it is faulted in; and it changes the lock to that of `mlock`,
//! which finds the pages resident.
//!
//! Every call costs about 10 µs for each mapping. So a call on many mappings makes its one
//! step in chunks as well. A [`Call`] holds the registry's mutex for one chunk at a time.

use super::call::{Call, Cover, Refused, Target};
use super::registry::is_locked;
use super::{LockFlags, LockMode, apply};
use crate::ground::error::{Error, MemoryKind, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::lock;
use crate::ground::sys::vma::Vma;
use crate::verbs::populate::{CHUNK_TARGET, PopulateOptions, populate_for_lock};

/// Up to this size one `mlock` is at least as fast, and takes about one chunk's time.
pub(super) const MIN_CHUNKED_BYTES: usize = CHUNK_TARGET.initial_bytes + 1;

/// Locks the range, which is not empty, with [`LockMode::Now`], and populates it in chunks.
pub(super) fn lock_now(range: PageRange, options: &PopulateOptions) -> Result<()> {
    let mut call = Call::begin(Cover::read(range)?, Target::Lock(LockMode::Now))?;
    call.check_limit()?;
    mark(&mut call)?;
    populate_for_lock(range, call.vmas(), options).map_err(|error| error.of_verb("lock"))?;
    // The pages are resident.
    let locked = call.change(range, lock::mlock, Some(LockMode::Now));
    locked.map_err(|refused| call.fail(&refused, true))?;
    call.done();
    Ok(())
}

/// Locks the range on fault.
fn mark(call: &mut Call) -> Result<()> {
    // For hugetlb memory the kernel makes no lock, but populates it in one go.
    let is_huge = |vma: &Vma| vma.kind == MemoryKind::HugeTlb;
    let mut runs = call.vmas().chunk_by(|a, b| is_huge(a) == is_huge(b));
    // The mode that a concurrent call finds, and restores if it fails, is the one that the
    // caller wants.
    let marked = runs.try_for_each(|run| match run {
        [first, ..] if is_huge(first) => Ok(()),
        run => call.change(span(run), lock::mlock_onfault, Some(LockMode::Now)),
    });
    marked.map_err(|refused| call.fail(&refused, false))
}

/// Locks the range with one system call for each chunk.
pub(super) fn lock_plainly(cover: Cover, mode: LockMode) -> Result<()> {
    let range = cover.range;
    let mut call = Call::begin(cover, Target::Lock(mode))?;
    call.check_limit()?;
    let locked = call.change(range, |part| apply(part, mode), Some(mode));
    locked.map_err(|refused| {
        let lockable = call.vmas().iter().filter(|vma| lock::can_be_locked(vma));
        let is_marked = lockable
            .filter_map(|vma| vma.range.intersection(refused.part))
            .all(is_locked);
        call.fail(&refused, is_marked)
    })?;
    call.done();
    Ok(())
}

/// Clears the locks of the given modes, and returns of how many bytes.
pub(super) fn unlock(cover: Cover, flags: LockFlags) -> Result<usize> {
    let call = Call::begin(cover, Target::Unlock(flags))?;
    let parts = call.parts_to_unlock(flags);
    for &part in &parts {
        let unlocked = call.change(part, lock::munlock, None);
        unlocked.map_err(|Refused { part, errno }| Error::SystemAt {
            call: "munlock",
            range: part,
            errno,
        })?;
    }
    Ok(parts.iter().map(|part| part.len()).sum())
}

fn span(vmas: &[Vma]) -> PageRange {
    PageRange::between(vmas[0].range.start(), vmas[vmas.len() - 1].range.end())
}
