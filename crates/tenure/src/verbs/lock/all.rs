//! `mlockall(2)` and `munlockall(2)`, with unlocking by mode.

use super::registry::{Registry, is_locked, registry, to_change};
use super::{LockFlags, LockMode, apply, limit};
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::features::Features;
use crate::ground::sys::vma::{self, Vma};
use crate::ground::sys::{Errno, lock};
use crate::observation::stats;

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
/// With
/// [`LockMode::Now`] the kernel skips pages that it cannot fault in. Children and
/// programs started with `exec` have no locks.
///
/// # Errors
///
/// With every lock as it was: [`Error::ProcessLockLimit`] when `RLIMIT_MEMLOCK`
/// does not allow it (for current mappings the kernel compares it with `VmSize`,
/// the size of all mappings), [`Error::System`] for anything else.
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
    lock::mlockall(scope.current(), scope.future(), on_fault).map_err(explain)?;
    registry.future = scope.future().then_some(mode);
    if scope.current() {
        registry.record_locked(&current, mode);
    }
    stats::LOCK_ALL_CALLS.add(1);
    Ok(())
}

/// Clears all locks of the given modes: `munlock(2)` on the parts of the address
/// space that have such a lock, or `munlockall(2)` for [`LockFlags::ALL`]. New
/// mappings are then not locked in such a mode either.
///
/// No system call ends only the locks on new mappings. If other locks must stay,
/// this function locks all memory on fault for a moment, so that no page that stays
/// locked is ever unlocked. If `RLIMIT_MEMLOCK` does not allow that, it clears all
/// locks and makes the others again.
///
/// # Errors
///
/// [`Error::System`] or [`Error::SystemAt`] when the kernel refuses (ENOMEM: it
/// cannot split a mapping, `vm.max_map_count`). Some locks may have been cleared, and
/// memory that should stay locked with [`LockMode::Now`] may be locked on fault, with
/// its pages resident.
pub fn unlock_all(flags: LockFlags) -> Result<()> {
    unlock_matching(flags)?;
    stats::UNLOCK_ALL_CALLS.add(1);
    Ok(())
}

fn unlock_matching(flags: LockFlags) -> Result<()> {
    let mut registry = to_change(registry());
    if flags == LockFlags::ALL {
        return unlock_everything(&mut registry);
    }
    let parts = registry.locked_parts(&all_mappings()?)?;
    let (cleared, kept): (Vec<_>, Vec<_>) =
        parts.into_iter().partition(|part| flags.contains(part.1));
    let ends_future = registry.future.is_some_and(|mode| flags.contains(mode));
    if !ends_future {
        for (part, _) in cleared {
            super::unlock_part(&mut registry, part)?;
        }
        return Ok(());
    }
    if kept.is_empty() {
        return unlock_everything(&mut registry);
    }
    // Replaces MCL_FUTURE by a lock on fault, so that no kept part is ever unlocked.
    if lock::mlockall(true, false, true).is_err() {
        lock::munlockall().map_err(explain)?;
    }
    registry.clear();
    // A part whose lock is refused here stays locked on fault: the loop continues with
    // the other parts, and the first error is returned at the end.
    let mut first_error = Ok(());
    for &(part, mode) in &kept {
        let applied = apply(part, mode).map_err(|errno| Error::SystemAt {
            call: "mlock",
            range: part,
            errno,
        });
        first_error = first_error.and(applied);
    }
    for vma in all_mappings()?.iter().filter(|vma| is_locked(vma.range)) {
        unlock_between(vma, &kept)?;
    }
    first_error?;
    for (part, mode) in kept {
        registry.record_locked(&vma::within(part)?, mode);
    }
    Ok(())
}

fn unlock_everything(registry: &mut Registry) -> Result<()> {
    lock::munlockall().map_err(explain)?;
    registry.clear();
    Ok(())
}

/// Unlocks the gaps of the VMA between the kept parts: `munlock(2)`.
fn unlock_between(vma: &Vma, kept: &[(PageRange, LockMode)]) -> Result<()> {
    let mut next = vma.range.start();
    let within = kept
        .iter()
        .filter_map(|(part, _)| part.intersection(vma.range));
    let end = PageRange::between(vma.range.end(), vma.range.end());
    for part in within.chain([end]) {
        let between = PageRange::between(next, part.start());
        next = part.end();
        match lock::munlock(between) {
            // Another thread has unmapped it in the meantime.
            Err(Errno::NOMEM) if vma::cover(between).is_err() => {}
            answer => answer.map_err(|errno| Error::SystemAt {
                call: "munlock",
                range: between,
                errno,
            })?,
        }
    }
    Ok(())
}

/// Returns all VMAs of the user part of the address space.
fn all_mappings() -> Result<Vec<Vma>> {
    let page = crate::page_size();
    vma::within(PageRange::between(page, isize::MAX as usize / page * page))
}

fn explain(errno: Errno) -> Error {
    let may_be_limit = matches!(errno, Errno::NOMEM | Errno::PERM | Errno::AGAIN);
    let limit_error = may_be_limit.then(limit::process_error).flatten();
    limit_error.unwrap_or(Error::System {
        call: "mlockall",
        errno,
    })
}
