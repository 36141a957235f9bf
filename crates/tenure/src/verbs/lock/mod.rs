//! lock: pages stay once they are in, at once or from the first fault on.

mod all;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod limit;
mod registry;

pub use all::{LockAll, lock_all, unlock_all};
pub(in crate::verbs) use registry::forget;
pub(crate) use registry::prepare;

use std::ops::RangeBounds;

use self::registry::{LockedPart, Registry, is_locked, registry};
use crate::ground::error::{Error, MemoryKind, Result};
use crate::ground::mapping::{Mapping, MappingBuilder};
use crate::ground::range::PageRange;
use crate::ground::sys::vma::{self, Vma};
use crate::ground::sys::{Errno, lock};
use crate::observation::stats;

/// When the pages of a locked range come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockMode {
    /// All of them before the call returns: `mlock(2)`.
    Now,
    /// Each when it is first used: `mlock2(MLOCK_ONFAULT)` (Linux 4.4).
    OnFault,
}

/// Which locks to clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockModes {
    now: bool,
    on_fault: bool,
}

impl LockModes {
    /// What is locked with [`LockMode::Now`].
    pub const NOW: Self = Self {
        now: true,
        on_fault: false,
    };
    /// What is locked with [`LockMode::OnFault`].
    pub const ON_FAULT: Self = Self {
        now: false,
        on_fault: true,
    };
    /// Every lock.
    pub const ALL: Self = Self {
        now: true,
        on_fault: true,
    };

    fn names(self, mode: LockMode) -> bool {
        match mode {
            LockMode::Now => self.now,
            LockMode::OnFault => self.on_fault,
        }
    }
}

impl Mapping {
    /// Locks the bytes named in memory: `mlock(2)`, or `mlock2(MLOCK_ONFAULT)`
    /// (Linux 4.4). The bounds are rounded out to pages.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::lock`]; [`Error::OutOfBounds`] for bounds that are
    /// not inside the mapping.
    ///
    /// ```
    /// use tenure::{LockMode, LockModes, Mapping};
    ///
    /// let memory = Mapping::anonymous(64 << 10).map()?;
    /// memory.lock(.., LockMode::OnFault)?;
    /// memory.unlock(.., LockModes::ON_FAULT)?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn lock(&self, bounds: impl RangeBounds<usize>, mode: LockMode) -> Result<()> {
        let range = self.pages_covering(bounds)?;
        // SAFETY: the range is this mapping's own.
        unsafe { range.lock(mode) }
    }

    /// Clears the locks of the modes named on the bytes named, rounded out to
    /// pages: `munlock(2)` on the parts that have such a lock.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::unlock`]; [`Error::OutOfBounds`] for bounds that are
    /// not inside the mapping.
    pub fn unlock(&self, bounds: impl RangeBounds<usize>, modes: LockModes) -> Result<()> {
        let range = self.pages_covering(bounds)?;
        // SAFETY: the range is this mapping's own.
        unsafe { range.unlock(modes) }
    }
}

impl MappingBuilder<'_> {
    /// Makes the mapping, locked from the start: `mmap(2)` and `mlock2(2)`. With
    /// [`LockMode::OnFault`] no page of it comes in before it is used. (The
    /// kernel has a flag for the other mode only, MAP_LOCKED, and does not tell
    /// when that could not bring the pages in.)
    ///
    /// # Errors
    ///
    /// As for [`map`](MappingBuilder::map) and [`Mapping::lock`]; nothing stays
    /// mapped.
    ///
    /// ```
    /// use tenure::{LockMode, Mapping};
    ///
    /// let memory = Mapping::anonymous(64 << 10).map_locked(LockMode::OnFault)?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn map_locked(self, mode: LockMode) -> Result<Mapping> {
        let mapping = self.map()?;
        mapping.lock(.., mode)?;
        Ok(mapping)
    }
}

impl PageRange {
    /// Locks the range in memory: `mlock(2)`, or `mlock2(MLOCK_ONFAULT)` (Linux
    /// 4.4). A part that is locked already takes the new mode. An empty range
    /// succeeds.
    ///
    /// The whole range counts against `RLIMIT_MEMLOCK` from now on, in both
    /// modes; what was locked before is not counted twice. Children do not
    /// inherit locks.
    ///
    /// Not all memory is locked in the same way:
    /// * Pages of a file come in by more than one: a fault maps, and locks, up
    ///   to 16 neighbours that are in the page cache, and what else was read
    ///   ahead may be evicted.
    /// * hugetlb memory is brought in whole in both modes. It is never taken
    ///   anyway, has no lock, and does not count.
    /// * memfd_secret memory is always locked, and counts. DAX and the kernel's
    ///   own mappings are never locked.
    ///
    /// # Errors
    ///
    /// With every lock as it was before:
    /// * [`Error::Hole`] when a part is not mapped,
    /// * [`Error::LockLimit`] when `RLIMIT_MEMLOCK` does not allow it,
    /// * [`Error::NoBacking`] when a page cannot be brought in,
    /// * [`Error::NoAccess`] for [`LockMode::Now`] on memory without access,
    ///   which cannot be brought in,
    /// * [`Error::SystemAt`] for anything else (ENOMEM: no room to split a
    ///   mapping, `vm.max_map_count`).
    ///
    /// # Safety
    ///
    /// The range must be the caller's to lock: a later unlock by another owner
    /// of the same pages takes this lock away.
    pub unsafe fn lock(self, mode: LockMode) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let mut registry = registry();
        let vmas = vma::cover(self)?;
        let before = registry.locked_parts(&vmas)?;
        match apply(self, mode) {
            Ok(()) => {
                registry.remove(self);
                registry.note(&vmas, mode);
                stats::LOCK.done(self.len());
                Ok(())
            }
            Err(errno) => {
                let mut lockable = vmas.iter().filter(|vma| can_be_locked(vma));
                let is_marked = lockable.all(|vma| is_locked(vma.range));
                restore(&vmas, &before);
                Err(explain(self, errno, &vmas, &before, is_marked))
            }
        }
    }

    /// Clears the locks of the modes named: `munlock(2)` on the parts that have
    /// such a lock, whoever has locked them. Parts locked in another mode stay
    /// locked, parts that are not locked stay as they are. An empty range
    /// succeeds.
    ///
    /// What was not locked through this library (or by [`lock_all`], when it
    /// was mapped later) is looked up in `/proc/self/smaps`, for which the
    /// kernel looks at every page of the process: some 20 ms for each GiB. Before
    /// Linux 6.11 that tells only whether memory is locked, not how: what others
    /// have locked then counts as [`LockMode::Now`] (and is locked so again by a call
    /// of [`lock`](Self::lock) that fails), or, while [`lock_all`] holds for
    /// future mappings, as the mode that it was told.
    ///
    /// # Errors
    ///
    /// [`Error::Hole`] when a part is not mapped, with nothing done;
    /// [`Error::SystemAt`] when the kernel could not split a mapping (ENOMEM),
    /// with the parts before it unlocked.
    ///
    /// # Safety
    ///
    /// Nothing may rely on the locks that are cleared.
    pub unsafe fn unlock(self, modes: LockModes) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let mut registry = registry();
        let vmas = vma::cover(self)?;
        let parts = if modes == LockModes::ALL {
            vec![self]
        } else {
            let parts = registry.locked_parts(&vmas)?.into_iter();
            let named = parts.filter(|part| modes.names(part.1));
            named.map(|(part, _)| part).collect()
        };
        for &part in &parts {
            unlock_part(&mut registry, part)?;
        }
        stats::UNLOCK.done(parts.iter().map(|part| part.len()).sum());
        Ok(())
    }
}

fn apply(range: PageRange, mode: LockMode) -> std::result::Result<(), Errno> {
    match mode {
        LockMode::Now => lock::mlock(range),
        LockMode::OnFault => lock::mlock_onfault(range),
    }
}

fn unlock_part(registry: &mut Registry, part: PageRange) -> Result<()> {
    lock::munlock(part).map_err(|errno| Error::SystemAt {
        call: "munlock",
        range: part,
        errno,
    })?;
    registry.remove(part);
    Ok(())
}

/// The others the kernel passes over.
fn can_be_locked(vma: &Vma) -> bool {
    !matches!(vma.kind, MemoryKind::HugeTlb | MemoryKind::Special)
}

/// Puts the locks back to what they were: the kernel may have marked the range
/// before it failed to bring a page in.
fn restore(vmas: &[Vma], before: &[LockedPart]) {
    for vma in vmas.iter().filter(|vma| is_locked(vma.range)) {
        let held = |part: &LockedPart| part.0.intersection(vma.range).is_some();
        if !before.iter().any(held) {
            // What fails here was not locked by the call that failed either: the
            // kernel marks from the front and stops at the first obstacle.
            let _ = lock::munlock(vma.range);
        }
    }
    for &(part, mode) in before {
        // Charged already, so the limit cannot refuse it.
        let _ = apply(part, mode);
    }
}

/// Tells a refusal from a page that could not be brought in: the kernel checks
/// the limit before it marks anything, and brings pages in after.
fn explain(
    range: PageRange,
    errno: Errno,
    vmas: &[Vma],
    before: &[LockedPart],
    is_marked: bool,
) -> Error {
    let other = Error::SystemAt {
        call: "mlock",
        range,
        errno,
    };
    if !matches!(errno, Errno::NOMEM | Errno::AGAIN | Errno::PERM) {
        return other;
    }
    if let Some(refusal) = limit::refusal(range, before) {
        return refusal;
    }
    let closed = vmas.iter().find(|vma| !vma.readable && !vma.writable);
    match closed {
        _ if !is_marked => other,
        Some(vma) => Error::NoAccess {
            verb: "lock",
            range,
            part: vma.range,
            missing: "read",
        },
        None => Error::NoBacking {
            verb: "lock",
            range,
        },
    }
}
