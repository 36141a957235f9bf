//! `mlockall(2)` and `munlockall(2)`, with unlocking by mode.

use rangemap::RangeMap;

use super::registry::{LockedPart, Registry, is_locked, registry, to_change};
use super::{LockFlags, LockMode, apply, limit};
use crate::ground::error::{Error, MemoryKind, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::features::Features;
use crate::ground::sys::vma::{self, Vma};
use crate::ground::sys::{Errno, lock, map};
use crate::observation::stats;
use crate::verbs::populate::{PopulateAdmission, admit_for_lock};

/// The memory of the process that [`lock_all`] locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockScope {
    /// All current mappings (MCL_CURRENT). An earlier `lock_all` for future
    /// mappings ends.
    Current,
    /// All future mappings (MCL_FUTURE). Current mappings stay as they are.
    Future,
    /// All current and all future mappings.
    CurrentAndFuture,
}

impl LockScope {
    fn current(self) -> bool {
        self != Self::Future
    }

    fn future(self) -> bool {
        self != Self::Current
    }
}

/// Locks all memory of the process: `mlockall(2)`, with MCL_ONFAULT (Linux 4.4)
/// for [`LockMode::OnFault`].
///
/// The locks include code, stacks, and memory that other parts of the program have
/// mapped. While future mappings are locked, `mmap` fails with EAGAIN past
/// `RLIMIT_MEMLOCK`. With [`LockMode::OnFault`], MAP_POPULATE and MAP_LOCKED then
/// fault nothing in; [`Mapping::populate`](crate::Mapping::populate) does.
///
/// With [`LockMode::Now`], current mappings are faulted in by one system call, which takes
/// about 1 s for each GiB that is not resident. Other threads' `mmap` and `fork` wait
/// for all of it. To avoid that, lock on fault, or
/// [populate](crate::Mapping::populate) the large mappings first.
///
/// With [`LockMode::Now`] the kernel skips pages that it cannot fault in. Memory of a
/// [`SecretBuffer`](crate::SecretBuffer) or a [`LockedFile`](crate::LockedFile) that exists
/// stays locked on fault, and none of it is faulted in. While either exists, this function
/// locks all current memory on fault first, and then each other mapping with `mlock(2)`.
///
/// Children and programs started with `exec` have no locks.
///
/// # Errors
///
/// With every lock as it was: [`Error::ProcessLockLimit`] when `RLIMIT_MEMLOCK`
/// does not allow it (for current mappings the kernel compares it with `VmSize`,
/// the size of all mappings); [`Error::NoMemory`] when faulting current mappings in would
/// take more than the [`Headroom`](crate::Headroom); [`Error::System`] for anything else.
///
/// ```no_run
/// use tenure::{LockMode, lock::{LockScope, LockFlags}};
///
/// tenure::lock::lock_all(LockScope::CurrentAndFuture, LockMode::OnFault)?;
/// // ... no page that was touched is swapped out ...
/// tenure::lock::unlock_all(LockFlags::ALL)?;
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn lock_all(scope: LockScope, mode: LockMode) -> Result<()> {
    let admission = match scope.current() && mode == LockMode::Now {
        true => admit_all()?,
        false => None,
    };
    let locked = lock_matching(scope, mode);
    // If the lock has failed, an unknown part is resident.
    admission.inspect(PopulateAdmission::mark_all_resident);
    locked?;
    stats::LOCK_ALL_CALLS.add(1);
    Ok(())
}

/// Admits what faulting in all current mappings will take.
fn admit_all() -> Result<Option<PopulateAdmission>> {
    let vmas = all_mappings()?.into_iter();
    // The kernel skips pages for which a pool of huge pages has none.
    let vmas: Vec<Vma> = vmas.filter(|vma| vma.kind != MemoryKind::HugeTlb).collect();
    let ([first, ..], [.., last]) = (&*vmas, &*vmas) else {
        return Ok(None);
    };
    let range = PageRange::between(first.range.start(), last.range.end());
    // The kernel compares the limit first.
    let admitted = admit_for_lock(range, &vmas);
    admitted.map(Some).map_err(|error| {
        let limit = limit::process_error("lock all memory");
        limit.unwrap_or(error)
    })
}

fn lock_matching(scope: LockScope, mode: LockMode) -> Result<()> {
    let mut registry = to_change(registry());
    let on_fault = mode == LockMode::OnFault;
    // Read before locking, so that an error here leaves every lock as it was. The
    // modes of mappings made in between come from the kernel when they are needed.
    let is_mode_unreported = Features::get().smaps_lock_mode.is_err();
    let current = match scope.current() || is_mode_unreported {
        true => all_mappings()?,
        false => Vec::new(),
    };
    if is_mode_unreported {
        registry.record_inferred(&current);
    }
    let explain = explain("lock all memory");
    if scope.current() && mode == LockMode::Now && registry.keeps_any() {
        lock_all_unkept_now(&registry, scope, &current).map_err(explain)?;
    } else {
        lock::mlockall(scope.current(), scope.future(), on_fault).map_err(explain)?;
    }
    registry.future = scope.future().then_some(mode);
    if scope.current() {
        registry.record_locked(&current, mode);
        let kept: Vec<_> = registry.kept().collect();
        for range in kept {
            registry.insert(range, LockMode::OnFault);
        }
    }
    Ok(())
}

/// Locks all current mappings with [`LockMode::Now`], except that ranges which are kept are
/// locked on fault: one `mlockall` would read a whole `LockedFile`, whatever its budget.
fn lock_all_unkept_now(
    registry: &Registry,
    scope: LockScope,
    current: &[Vma],
) -> std::result::Result<(), Errno> {
    lock::mlockall(true, scope.future(), true)?;
    if scope.future() {
        // The kernel compares the limit with current mappings only, so it does not refuse.
        lock::mlockall(false, true, false)?;
    }
    // With the mappings that have been made between the first reading and the lock.
    let now = all_mappings();
    let vmas = now.as_deref().unwrap_or(current);
    for part in vmas.iter().flat_map(|vma| registry.unkept_parts(vma.range)) {
        // Pages that cannot be faulted in are skipped, as `mlockall` does.
        let _ = lock::mlock(part);
    }
    Ok(())
}

/// Clears all locks of the given modes: `munlock(2)` on the parts of the address
/// space that have such a lock, or `munlockall(2)` for [`LockFlags::ALL`]. New
/// mappings are then not locked in such a mode either.
///
/// Memory of a [`SecretBuffer`](crate::SecretBuffer) or a
/// [`LockedFile`](crate::LockedFile) stays locked, whatever the flags.
///
/// No system call ends only the locks on new mappings. If other locks must stay,
/// this function locks all memory on fault for a moment, so that no page that stays
/// locked is ever unlocked. If `RLIMIT_MEMLOCK` does not allow that, it clears all
/// locks and makes the others again; but while a `SecretBuffer` or a `LockedFile` exists,
/// it returns an error.
///
/// # Errors
///
/// [`Error::ProcessLockLimit`], with every lock as it was, when new mappings are locked in
/// one of the modes, a `SecretBuffer` or a `LockedFile` exists, and `RLIMIT_MEMLOCK` is less
/// than `VmSize`: raise the limit, or drop these values first.
///
/// [`Error::System`] or [`Error::SystemAt`] when the kernel refuses (ENOMEM: it
/// cannot split a mapping, `vm.max_map_count`), or when the mappings cannot be read (no
/// `/proc`, no descriptor). Some locks may have been cleared, and
/// memory that should stay locked with [`LockMode::Now`] may be locked on fault, with
/// its pages resident.
pub fn unlock_all(flags: LockFlags) -> Result<()> {
    unlock_matching(flags)?;
    stats::UNLOCK_ALL_CALLS.add(1);
    Ok(())
}

fn unlock_matching(flags: LockFlags) -> Result<()> {
    let mut registry = to_change(registry());
    let is_everything = flags == LockFlags::ALL;
    if is_everything && !registry.keeps_any() {
        return unlock_everything(&mut registry);
    }
    let mut vmas = all_mappings()?;
    let (cleared, stay): (Vec<_>, Vec<_>) = if is_everything {
        vmas.retain(|vma| is_locked(vma.range));
        (vmas.iter().map(|vma| vma.range).collect(), Vec::new())
    } else {
        let parts = registry.locked_parts(&vmas)?.into_iter();
        let (cleared, stay): (Vec<_>, Vec<_>) = parts.partition(|part| flags.contains(part.1));
        (cleared.into_iter().map(|part| part.0).collect(), stay)
    };
    let ends_future = match is_everything {
        // Other code may have called `mlockall` as well.
        true => locks_new_mappings()?,
        false => registry.future.is_some_and(|mode| flags.contains(mode)),
    };
    if ends_future && stay.is_empty() && !registry.keeps_any() {
        return unlock_everything(&mut registry);
    }
    if ends_future {
        return end_future_locks(&mut registry, &stay);
    }
    for part in cleared
        .into_iter()
        .flat_map(|part| registry.unkept_parts(part))
        .collect::<Vec<_>>()
    {
        unlock_if_mapped(part)?;
        registry.remove(part);
    }
    if is_everything {
        registry.future = None;
    }
    Ok(())
}

/// Replaces MCL_FUTURE by a lock on fault, so that no part that stays or is kept is ever
/// unlocked, and then unlocks the others.
fn end_future_locks(registry: &mut Registry, stay: &[LockedPart]) -> Result<()> {
    let is_locked_anew = match lock::mlockall(true, false, true) {
        Ok(()) => false,
        Err(errno) if registry.keeps_any() => {
            return Err(explain("end the locks on new mappings")(errno));
        }
        Err(_) => {
            lock::munlockall().map_err(explain("unlock all memory"))?;
            true
        }
    };
    let mut locked: RangeMap<usize, LockMode> = registry
        .kept()
        .map(|range| (range.as_std(), LockMode::OnFault))
        .collect();
    locked.extend(stay.iter().map(|(part, mode)| (part.as_std(), *mode)));
    registry.clear();
    // A part whose lock is refused here stays locked on fault: the loop continues with
    // the other parts, and the first error is returned at the end.
    let mut first_error = Ok(());
    for &(part, mode) in stay {
        if mode == LockMode::OnFault && !is_locked_anew {
            continue;
        }
        first_error = first_error.and(lock_if_mapped(part, mode, !is_locked_anew));
    }
    let vmas = all_mappings()?;
    for vma in vmas.iter().filter(|vma| is_locked(vma.range)) {
        for part in locked.gaps(&vma.range.as_std()) {
            unlock_if_mapped(PageRange::from(part))?;
        }
    }
    first_error?;
    for vma in &vmas {
        for (part, mode) in locked.overlapping(vma.range.as_std()) {
            let part = PageRange::from(part.clone()).intersection(vma.range);
            if let Some(part) = part.filter(|part| is_locked(*part)) {
                registry.insert(part, *mode);
            }
        }
    }
    Ok(())
}

fn unlock_everything(registry: &mut Registry) -> Result<()> {
    lock::munlockall().map_err(explain("unlock all memory"))?;
    registry.clear();
    Ok(())
}

/// Locks what is left of a part, of which another thread may have unmapped some.
/// `stayed_locked` tells that its pages have been locked, on fault at least, all the time.
fn lock_if_mapped(part: PageRange, mode: LockMode, stayed_locked: bool) -> Result<()> {
    // Some of it cannot be faulted in, as the guard of a stack and the memory of
    // `memfd_secret`, so `mlock` ends there. What was resident has stayed so.
    let is_locked = |part| stayed_locked && is_locked_mapping(part);
    let failed = |range| {
        move |errno| Error::SystemAt {
            call: "mlock",
            range,
            errno,
        }
    };
    match apply(part, mode) {
        // Another thread has unmapped some of it in the meantime.
        Err(Errno::NOMEM) if vma::cover(part).is_err() => {
            let left = vma::within(part)?.into_iter();
            let mut left = left.filter_map(|vma| vma.range.intersection(part));
            left.try_for_each(|left| match apply(left, mode) {
                Err(Errno::NOMEM) if vma::cover(left).is_err() => Ok(()),
                Err(Errno::NOMEM) if is_locked(left) => Ok(()),
                answer => answer.map_err(failed(left)),
            })
        }
        Err(Errno::NOMEM) if is_locked(part) => Ok(()),
        answer => answer.map_err(failed(part)),
    }
}

/// Whether the part is a whole mapping that is locked. `mlock` changes the mapping before it
/// faults pages in, and only splitting a mapping can fail, so the part has the mode.
fn is_locked_mapping(part: PageRange) -> bool {
    let page = crate::page_size();
    let around = PageRange::between(part.start() - page, part.end() + page);
    let is_mapping = vma::within(around).is_ok_and(|vmas| vmas.iter().any(|vma| vma.range == part));
    is_mapping && is_locked(part)
}

/// Unlocks the part, unless another thread has unmapped some of it in the meantime.
fn unlock_if_mapped(part: PageRange) -> Result<()> {
    match lock::munlock(part) {
        Err(Errno::NOMEM) if vma::cover(part).is_err() => Ok(()),
        answer => answer.map_err(|errno| Error::SystemAt {
            call: "munlock",
            range: part,
            errno,
        }),
    }
}

/// Whether the kernel locks new mappings, as it does after `mlockall(MCL_FUTURE)`. No call
/// tells that, so this function maps a page.
fn locks_new_mappings() -> Result<bool> {
    let page = match map::reserve(crate::page_size()) {
        Ok(page) => page,
        // Past the limit only a mapping that would be locked is refused so.
        Err(Errno::AGAIN) => return Ok(true),
        Err(errno) => {
            return Err(Error::System {
                call: "mmap",
                errno,
            });
        }
    };
    let is_locked = is_locked(page);
    // SAFETY: this function has just mapped the page. (If it lies between two mappings that
    // it has merged with, and there are too many to split them again, it stays.)
    let _ = unsafe { map::unmap(page) };
    Ok(is_locked)
}

/// Returns all VMAs of the user part of the address space.
fn all_mappings() -> Result<Vec<Vma>> {
    let page = crate::page_size();
    vma::within(PageRange::between(page, isize::MAX as usize / page * page))
}

fn explain(verb: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| {
        let may_be_limit = matches!(errno, Errno::NOMEM | Errno::PERM | Errno::AGAIN);
        let limit_error = may_be_limit.then(|| limit::process_error(verb)).flatten();
        limit_error.unwrap_or(Error::System {
            call: "mlockall",
            errno,
        })
    }
}
