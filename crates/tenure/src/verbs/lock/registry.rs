//! Which mode covers what. The kernel tells cheaply whether a mapping is locked,
//! but only at great cost how.

use std::sync::{LazyLock, Once};

use rangemap::RangeMap;

use super::LockMode;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{LockState, lock_state};
use crate::ground::sys::features::Features;
use crate::ground::sys::fork::{ForkMutex, at_fork};
use crate::ground::sys::smaps;
use crate::ground::sys::vma::Vma;

static REGISTRY: LazyLock<ForkMutex<Registry>> =
    LazyLock::new(|| ForkMutex::new(Registry::default()));

/// What was locked through tenure, and how. Locks do not stack: each byte has
/// the mode that it was last locked with, as in the kernel.
#[derive(Debug, Default)]
pub(super) struct Registry {
    locked: RangeMap<usize, LockMode>,
    /// How new mappings are locked, as far as `lock_all` has said.
    pub(super) future: Option<LockMode>,
}

/// A part of a mapping, locked in this mode.
pub(super) type LockedPart = (PageRange, LockMode);

/// Takes the registry. What it says is compared with the kernel's locks and
/// changed together with them, so that is done with this held.
pub(super) fn registry() -> std::sync::MutexGuard<'static, Registry> {
    reset_in_children();
    REGISTRY.lock()
}

/// Makes the registry, if that has not been done.
pub(crate) fn prepare() {
    drop(registry());
}

/// Forgets the locks on a range that is being unmapped.
pub(in crate::verbs) fn forget(range: PageRange) {
    let mut registry = registry();
    if !registry.locked.is_empty() {
        registry.remove(range);
    }
}

impl Registry {
    /// Notes the mode of what the kernel has locked of the mappings just now:
    /// hugetlb memory, DAX and the kernel's own mappings are never locked.
    pub(super) fn note(&mut self, vmas: &[Vma], mode: LockMode) {
        for vma in vmas.iter().filter(|vma| is_locked(vma.range)) {
            self.insert(vma.range, mode);
        }
    }

    pub(super) fn insert(&mut self, range: PageRange, mode: LockMode) {
        self.locked.insert(range.as_std(), mode);
    }

    pub(super) fn remove(&mut self, range: PageRange) {
        self.locked.remove(range.as_std());
    }

    pub(super) fn clear(&mut self) {
        self.locked.clear();
        self.future = None;
    }

    /// Returns what is locked in the mappings, by whomever and in order: whether a
    /// mapping is locked says the kernel, how says the registry. What it does not
    /// know (an older `mlock` of another's, new mappings after `lock_all`) is looked
    /// up in `/proc/self/smaps`, where that tells.
    pub(super) fn locked_parts(&self, vmas: &[Vma]) -> Result<Vec<LockedPart>> {
        let mut parts = Vec::new();
        for vma in vmas.iter().filter(|vma| is_locked(vma.range)) {
            parts.extend(self.known_parts(vma.range));
            let unknown = self.unknown(vma);
            if !unknown.is_empty() && Features::get().smaps_lock_mode.is_ok() {
                return look_up(vmas);
            }
            parts.extend(unknown.into_iter().map(|part| (part, self.untold())));
        }
        parts.sort_unstable_by_key(|part| part.0.start());
        Ok(parts)
    }

    /// The parts of the range whose modes are known, in order.
    pub(super) fn known_parts(&self, range: PageRange) -> Vec<LockedPart> {
        let known = self.locked.overlapping(range.as_std());
        let part = |(part, &mode): (&std::ops::Range<usize>, &LockMode)| {
            Some((PageRange::from(part.clone()).intersection(range)?, mode))
        };
        known.filter_map(part).collect()
    }

    fn unknown(&self, vma: &Vma) -> Vec<PageRange> {
        let whole = vma.range.as_std();
        self.locked.gaps(&whole).map(PageRange::from).collect()
    }

    /// How that is taken to be locked of which nobody tells: as `lock_all` has said
    /// of new mappings, else as `mlock` does it.
    fn untold(&self) -> LockMode {
        self.future.unwrap_or(LockMode::Now)
    }

    /// Notes the modes that only follow from `future`, before that changes.
    pub(super) fn note_untold(&mut self, vmas: &[Vma]) {
        for vma in vmas.iter().filter(|vma| is_locked(vma.range)) {
            for part in self.unknown(vma) {
                self.locked.insert(part.as_std(), self.untold());
            }
        }
    }
}

pub(super) fn is_locked(range: PageRange) -> bool {
    lock_state(range) == Ok(LockState::Locked)
}

fn look_up(vmas: &[Vma]) -> Result<Vec<LockedPart>> {
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

/// Has children begin with an empty registry: they inherit no locks.
fn reset_in_children() {
    unsafe extern "C" fn prepare() {
        REGISTRY.hold();
    }
    unsafe extern "C" fn parent() {
        // SAFETY: `prepare` has run in this thread.
        unsafe { REGISTRY.let_go(|_| ()) };
    }
    unsafe extern "C" fn child() {
        // Leaked, not freed: the child of a threaded program must not touch the
        // allocator here.
        // SAFETY: `prepare` has run in the thread that this is a copy of.
        unsafe { REGISTRY.let_go(|registry| std::mem::forget(std::mem::take(registry))) };
    }
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // Without it (ENOMEM) a child's registry names locks that are not
        // there; the kernel is asked first, so they do no harm.
        let _ = at_fork(prepare, parent, child);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::mapping::Mapping;
    use crate::ground::sys::{page_size, vma};

    #[test]
    fn knows_what_the_kernel_knows() {
        let page = page_size();
        let memory = Mapping::shared_anonymous(8 * page).map().unwrap();
        let range = memory.range();
        memory.lock(.., LockMode::OnFault).unwrap();
        memory.lock(2 * page..4 * page, LockMode::Now).unwrap();
        memory
            .unlock(3 * page..6 * page, crate::LockModes::ALL)
            .unwrap();
        let registry = registry();
        assert_eq!(registry.locked.gaps(&range.as_std()).count(), 1);
        let vmas = vma::cover(range).unwrap();
        let parts = registry.locked_parts(&vmas).unwrap();
        assert_eq!(parts.len(), 3);
        if Features::get().smaps_lock_mode.is_ok() {
            assert_eq!(parts, look_up(&vmas).unwrap());
        }
        drop(registry);
        memory.munmap().unwrap();
        let registry = super::registry();
        assert_eq!(registry.locked.overlapping(range.as_std()).count(), 0);
    }
}
