//! [`LockMode::Now`] in chunks, so that no other thread waits for the whole range.
//!
//! One `mlock` of 4 GiB holds the address space's lock (`mmap_lock`) for 4 s, and other
//! threads' `mmap` and `fork` wait. So a call takes three steps: it locks the range on
//! fault, which charges it against `RLIMIT_MEMLOCK`; it populates the range, and each
//! page is locked as it is faulted in; and it changes the lock to that of `mlock`, which
//! finds the pages resident. It holds the registry's mutex for one chunk of a step at a
//! time. If a step fails, the call restores the locks that were there before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use super::registry::{CallNumber, LockedPart, registry};
use super::{LockMode, apply, explain, limit};
use crate::background::chunk_sizer::ChunkSizer;
use crate::ground::error::{MemoryKind, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::vma::{self, Vma};
use crate::ground::sys::{Errno, lock};
use crate::verbs::populate::{
    CHUNK_TARGET, PopulateOptions, YIELD_INTERVAL, YIELD_PAUSE, populate_for_lock,
};

/// Up to this size one `mlock` is at least as fast, and takes about one chunk's time.
pub(super) const MIN_CHUNKED_BYTES: usize = CHUNK_TARGET.initial_bytes + 1;

/// Locks the range, which is not empty.
pub(super) fn lock_now(range: PageRange, options: &PopulateOptions) -> Result<()> {
    let mut call = Call::begin(range)?;
    call.lock_on_fault()?;
    populate_for_lock(range, &call.vmas, options).map_err(|error| error.of_verb("lock"))?;
    call.lock_resident()?;
    call.is_done = true;
    Ok(())
}

/// A call in progress. Dropping it before it is done restores the previous locks.
struct Call {
    number: CallNumber,
    range: PageRange,
    vmas: Vec<Vma>,
    before: Vec<LockedPart>,
    is_done: bool,
}

impl Call {
    fn begin(range: PageRange) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut registry = registry();
        let vmas = vma::cover(range)?;
        let before = registry.locked_parts(&vmas)?;
        // The kernel compares the limit with one chunk at a time.
        if let Some(error) = limit::range_error(range, &before) {
            return Err(error);
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        registry.begin(range, number);
        Ok(Self {
            number,
            range,
            vmas,
            before,
            is_done: false,
        })
    }

    fn lock_on_fault(&mut self) -> Result<()> {
        // For hugetlb memory the kernel makes no lock, but populates it in one go.
        let mut vmas = self
            .vmas
            .iter()
            .filter(|vma| vma.kind != MemoryKind::HugeTlb);
        // The mode that a concurrent call finds, and restores if it fails, is the one
        // that the caller wants.
        let result = vmas
            .try_for_each(|vma| self.change(vma.range, lock::mlock_onfault, Some(LockMode::Now)));
        result.map_err(|errno| self.fail(errno, false))
    }

    fn lock_resident(&mut self) -> Result<()> {
        let mut vmas = self.vmas.iter();
        let result =
            vmas.try_for_each(|vma| self.change(vma.range, lock::mlock, Some(LockMode::Now)));
        result.map_err(|errno| self.fail(errno, true))
    }

    /// Changes the lock of the range in chunks, except in parts that another call has
    /// locked, unlocked or unmapped since this one began.
    fn change(
        &self,
        range: PageRange,
        set: impl Fn(PageRange) -> std::result::Result<(), Errno>,
        mode: Option<LockMode>,
    ) -> std::result::Result<(), Errno> {
        let mut chunk_sizer = ChunkSizer::new(CHUNK_TARGET, None);
        let mut rest = range;
        while !rest.is_empty() {
            let chunk_end = rest.end().min(rest.start() + chunk_sizer.chunk_bytes());
            let chunk = PageRange::between(rest.start(), chunk_end);
            let mut registry = registry();
            let started = Instant::now();
            for part in registry.parts_of(self.number, chunk) {
                let mut changed = part;
                if set(part).is_err() {
                    // A chunk may be one mapping too many (`vm.max_map_count`), where
                    // the whole takes none. Any other failure repeats itself.
                    let from_part = PageRange::between(part.start(), range.end());
                    changed = registry.parts_of(self.number, from_part)[0];
                    set(changed)?;
                }
                registry.record_progress(changed, mode);
            }
            drop(registry);
            let elapsed = started.elapsed();
            chunk_sizer.record(chunk.len(), elapsed);
            if elapsed >= YIELD_INTERVAL {
                thread::sleep(YIELD_PAUSE);
            }
            rest = PageRange::between(chunk_end, range.end());
        }
        Ok(())
    }

    fn fail(&mut self, errno: Errno, is_marked: bool) -> crate::Error {
        // The limit's figures are those without this call's own locks.
        self.restore();
        explain(self.range, errno, &self.vmas, &self.before, is_marked)
    }

    fn restore(&mut self) {
        self.is_done = true;
        let mut next = self.range.start();
        // Nothing is charged that was not charged before, and each part as a whole takes
        // no more mappings than before: the kernel has no reason to refuse.
        for &(part, mode) in &self.before {
            let unlocked = PageRange::between(next, part.start());
            let _ = self.change(unlocked, lock::munlock, None);
            let _ = self.change(part, |part| apply(part, mode), Some(mode));
            next = part.end();
        }
        let unlocked = PageRange::between(next, self.range.end());
        let _ = self.change(unlocked, lock::munlock, None);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.is_done {
            self.restore();
        }
        registry().end(self.range, self.number);
    }
}
