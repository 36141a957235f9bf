//! The registry of lock modes. The kernel tells cheaply whether a mapping is locked,
//! but its mode only in smaps, which walks every page.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};

use rangemap::{RangeMap, RangeSet};

use super::LockMode;
use super::call::Target;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{LockState, lock_state};
use crate::ground::sys::features::Features;
use crate::ground::sys::fork::{self, ForkGuard, ForkMutex};
use crate::ground::sys::vma::Vma;
use crate::ground::sys::{Errno, smaps};

static REGISTRY: ForkMutex<Registry> = ForkMutex::new(Registry::new(), |registry| {
    // Leaked, not freed: the child of a threaded program must not call the allocator here.
    std::mem::forget(std::mem::replace(registry, Registry::new()));
});

/// The ranges that were locked through tenure, with their modes. Locks do not stack:
/// each byte has the mode of its last lock, as in the kernel.
#[derive(Debug)]
pub(super) struct Registry {
    locked: RangeMap<usize, LockMode>,
    /// The calls that are still locking or unlocking, each in the parts that no later
    /// call has locked, unlocked or unmapped.
    in_progress: RangeMap<usize, (CallNumber, Target)>,
    /// The ranges that tenure has locked on fault for types of its own. They stay locked
    /// until they are unmapped.
    kept: RangeSet<usize>,
    /// The mode in which `lock_all` has new mappings locked, if it does.
    pub(super) future: Option<LockMode>,
}

impl Registry {
    pub(super) const fn new() -> Self {
        Self {
            locked: RangeMap::new(),
            in_progress: RangeMap::new(),
            kept: RangeSet::new(),
            future: None,
        }
    }
}

/// The number of a call that locks or unlocks in several steps.
pub(super) type CallNumber = u64;

/// A locked part of a mapping, and its mode.
pub(super) type LockedPart = (PageRange, LockMode);

/// Locks the registry and returns it. It changes together with the kernel's locks, so
/// callers hold it while they make or read those, and those that make some hold it by
/// [`to_change`].
pub(super) fn registry() -> ForkGuard<Registry> {
    REGISTRY.lock()
}

/// Locks the registry for one of many chunks, after the threads that wait for it.
pub(super) fn registry_in_turn() -> ForkGuard<Registry> {
    REGISTRY.give_way();
    REGISTRY.lock()
}

/// How often the kernel's locks may have changed.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Returns a number that has changed when a call has changed a lock. A thread that has
/// read mappings without the mutex, and finds the number under the mutex as it was before,
/// knows that no call has split or merged them.
pub(super) fn changes() -> u64 {
    CHANGES.load(Ordering::Acquire)
}

/// The registry, locked by a thread that changes locks.
pub(super) struct Changing(ForkGuard<Registry>);

pub(super) fn to_change(registry: ForkGuard<Registry>) -> Changing {
    Changing(registry)
}

impl Drop for Changing {
    fn drop(&mut self) {
        // Before the mutex is released.
        CHANGES.fetch_add(1, Ordering::Release);
    }
}

impl Deref for Changing {
    type Target = Registry;

    fn deref(&self) -> &Registry {
        &self.0
    }
}

impl DerefMut for Changing {
    fn deref_mut(&mut self) -> &mut Registry {
        &mut self.0
    }
}

/// Forgets the locks on a range that is being unmapped.
pub(in crate::verbs) fn forget(range: PageRange) {
    let mut registry = registry();
    if !registry.locked.is_empty() || !registry.in_progress.is_empty() {
        registry.remove(range);
    }
    if !registry.kept.is_empty() {
        registry.kept.remove(range.as_std());
    }
}

impl Registry {
    /// Records the mode of the mappings that the kernel has just locked, which are
    /// not all: it never locks hugetlb memory, DAX and its own mappings.
    pub(super) fn record_locked(&mut self, vmas: &[Vma], mode: LockMode) {
        for vma in vmas.iter().filter(|vma| is_locked(vma.range)) {
            self.insert(vma.range, mode);
        }
    }

    pub(super) fn insert(&mut self, range: PageRange, mode: LockMode) {
        self.locked.insert(range.as_std(), mode);
        self.in_progress.remove(range.as_std());
    }

    pub(super) fn remove(&mut self, range: PageRange) {
        self.locked.remove(range.as_std());
        self.in_progress.remove(range.as_std());
    }

    /// Records a range that is locked on fault until it is unmapped.
    pub(super) fn keep(&mut self, range: PageRange) {
        self.insert(range, LockMode::OnFault);
        self.kept.insert(range.as_std());
    }

    /// Returns the ranges that stay locked until they are unmapped.
    pub(super) fn kept(&self) -> impl Iterator<Item = PageRange> {
        self.kept.iter().cloned().map(PageRange::from)
    }

    pub(super) fn keeps_any(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Returns the parts of the range that are not kept.
    pub(super) fn unkept_parts(&self, range: PageRange) -> Vec<PageRange> {
        let whole = range.as_std();
        self.kept.gaps(&whole).map(PageRange::from).collect()
    }

    /// Forgets all locks but those that are kept, which the caller records again.
    pub(super) fn clear(&mut self) {
        self.locked.clear();
        self.in_progress.clear();
        self.future = None;
    }

    /// Begins a call. It takes the range over from the calls that are in progress there,
    /// except where they lock in a mode that this call does not unlock. Returns what these
    /// were to make of the parts.
    pub(super) fn begin(
        &mut self,
        range: PageRange,
        call: CallNumber,
        target: Target,
    ) -> Vec<(PageRange, Target)> {
        let left_to = |other: &Target| match (target, other) {
            (Target::Unlock(flags), Target::Lock(mode)) => !flags.contains(*mode),
            _ => false,
        };
        let overlapping = self.in_progress.overlapping(range.as_std());
        let others = overlapping.filter_map(|(part, entry)| {
            Some((PageRange::from(part.clone()).intersection(range)?, *entry))
        });
        let (left, taken): (Vec<_>, Vec<_>) = others.partition(|(_, (_, other))| left_to(other));
        self.in_progress.insert(range.as_std(), (call, target));
        for (part, entry) in left {
            self.in_progress.insert(part.as_std(), entry);
        }
        let target_of = |(part, (_, target))| (part, target);
        taken.into_iter().map(target_of).collect()
    }

    /// Returns the parts of the range that no other call has changed since `call`
    /// began.
    pub(super) fn parts_of(&self, call: CallNumber, range: PageRange) -> Vec<PageRange> {
        let overlapping = self.in_progress.overlapping(range.as_std());
        let of_call = overlapping.filter(|(_, (number, _))| *number == call);
        of_call
            .filter_map(|(part, _)| PageRange::from(part.clone()).intersection(range))
            .collect()
    }

    /// Records the lock that a call in progress has made of the part, which has these
    /// mappings, or `None` for unlocked.
    pub(super) fn record_progress(
        &mut self,
        part: PageRange,
        vmas: &[Vma],
        mode: Option<LockMode>,
    ) {
        self.locked.remove(part.as_std());
        let Some(mode) = mode else { return };
        for vma in vmas.iter().filter(|vma| is_locked(vma.range)) {
            self.locked.insert(vma.range.as_std(), mode);
        }
    }

    pub(super) fn end(&mut self, range: PageRange, call: CallNumber) {
        for part in self.parts_of(call, range) {
            self.in_progress.remove(part.as_std());
        }
    }

    /// Returns the locked parts of the mappings in order of address, including those
    /// that other code has locked. The kernel tells whether a mapping is locked, the
    /// registry in which mode. A mode that the registry lacks (an `mlock` of other
    /// code, a mapping made after `lock_all`) comes from `/proc/self/smaps`, if the
    /// kernel reports it there (Linux 6.11).
    pub(super) fn locked_parts(&self, vmas: &[Vma]) -> Result<Vec<LockedPart>> {
        self.known_parts(vmas).map_or_else(|| read_smaps(vmas), Ok)
    }

    /// Returns the same, or `None` where smaps tells a mode.
    pub(super) fn known_parts(&self, vmas: &[Vma]) -> Option<Vec<LockedPart>> {
        let mut parts = Vec::new();
        for vma in vmas.iter().filter(|vma| is_locked(vma.range)) {
            parts.extend(self.recorded_parts(vma.range));
            let unrecorded = self.unrecorded_parts(vma);
            if !unrecorded.is_empty() && Features::get().smaps_lock_mode.is_ok() {
                return None;
            }
            let inferred = self.inferred_mode();
            parts.extend(unrecorded.into_iter().map(|part| (part, inferred)));
        }
        parts.sort_unstable_by_key(|part| part.0.start());
        Some(parts)
    }

    /// Returns the parts of the range whose modes are recorded, in order of address.
    pub(super) fn recorded_parts(&self, range: PageRange) -> Vec<LockedPart> {
        let recorded = self.locked.overlapping(range.as_std());
        let part = |(part, &mode): (&std::ops::Range<usize>, &LockMode)| {
            Some((PageRange::from(part.clone()).intersection(range)?, mode))
        };
        recorded.filter_map(part).collect()
    }

    fn unrecorded_parts(&self, vma: &Vma) -> Vec<PageRange> {
        let whole = vma.range.as_std();
        self.locked.gaps(&whole).map(PageRange::from).collect()
    }

    /// The mode assumed where neither the registry nor the kernel knows it: the mode
    /// of `lock_all` for new mappings, else the mode of `mlock`.
    fn inferred_mode(&self) -> LockMode {
        self.future.unwrap_or(LockMode::Now)
    }

    /// Records the modes that are only inferred from `future`, before that changes.
    pub(super) fn record_inferred(&mut self, vmas: &[Vma]) {
        for vma in vmas.iter().filter(|vma| is_locked(vma.range)) {
            for part in self.unrecorded_parts(vma) {
                self.locked.insert(part.as_std(), self.inferred_mode());
            }
        }
    }
}

pub(super) fn is_locked(range: PageRange) -> bool {
    lock_state(range) == Ok(LockState::Locked)
}

pub(super) fn read_smaps(vmas: &[Vma]) -> Result<Vec<LockedPart>> {
    let (Some(first), Some(last)) = (vmas.first(), vmas.last()) else {
        return Ok(Vec::new());
    };
    let all = PageRange::between(first.range.start(), last.range.end());
    let locked = smaps::locked(all).map_err(|errno| Error::System {
        call: "reading /proc/self/smaps",
        errno,
    })?;
    let part = |part: smaps::Locked| {
        let mode = match part.on_fault {
            false => LockMode::Now,
            true => LockMode::OnFault,
        };
        (part.range, mode)
    };
    Ok(locked.into_iter().map(part).collect())
}

/// Has forks empty the registry in children, which inherit no locks.
///
/// Without this (ENOMEM) a child's registry names locks that do not exist. They do no
/// harm, because every caller first asks the kernel what is locked.
pub(crate) fn register_fork_handlers() -> std::result::Result<(), Errno> {
    static ENTRY: fork::Entry = fork::Entry::new(&REGISTRY);
    fork::register(&ENTRY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::mapping::Mapping;
    use crate::ground::sys::{page_size, vma};

    #[test]
    fn registry_after_partial_unlock_matches_smaps() {
        let page = page_size();
        let memory = Mapping::shared_anonymous(8 * page).map().unwrap();
        let range = memory.range();
        memory.lock(.., LockMode::OnFault).unwrap();
        memory.lock(2 * page..4 * page, LockMode::Now).unwrap();
        memory
            .unlock(3 * page..6 * page, crate::lock::LockFlags::ALL)
            .unwrap();
        let registry = registry();
        assert_eq!(registry.locked.gaps(&range.as_std()).count(), 1);
        let vmas = vma::cover(range).unwrap();
        let parts = registry.locked_parts(&vmas).unwrap();
        assert_eq!(parts.len(), 3);
        if Features::get().smaps_lock_mode.is_ok() {
            assert_eq!(parts, read_smaps(&vmas).unwrap());
        }
        drop(registry);
        memory.munmap().unwrap();
        let registry = super::registry();
        assert_eq!(registry.locked.overlapping(range.as_std()).count(), 0);
    }
}
