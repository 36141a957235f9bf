//! Locks on all memory of the process.

use super::registry::{Registry, is_locked, registry};
use super::{LockMode, LockModes, apply, limit};
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::features::Features;
use crate::ground::sys::vma::{self, Vma};
use crate::ground::sys::{Errno, lock};
use crate::observation::stats;

/// Which memory of the process to lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockAll {
    /// What is mapped now (MCL_CURRENT). What was said of future mappings before
    /// holds no longer.
    Current,
    /// What will be mapped from now on (MCL_FUTURE). What is mapped stays as it
    /// is.
    Future,
    /// Both.
    CurrentAndFuture,
}

impl LockAll {
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
/// It includes code, stacks, and memory that other parts of the program have
/// mapped. While it holds for future mappings, `mmap` fails with EAGAIN past
/// `RLIMIT_MEMLOCK`, and with [`LockMode::OnFault`] MAP_POPULATE and MAP_LOCKED
/// bring nothing in; [`Mapping::populate`](crate::Mapping::populate) does. With
/// [`LockMode::Now`], pages of what is mapped that cannot be brought in are
/// passed over. Children and programs started with `exec` have no locks.
///
/// # Errors
///
/// With every lock as it was: [`Error::ProcessLockLimit`] when `RLIMIT_MEMLOCK`
/// does not allow it (for current memory the kernel compares it with all that
/// is mapped, `VmSize`), [`Error::System`] for anything else.
///
/// ```no_run
/// use tenure::{LockAll, LockMode, LockModes};
///
/// tenure::lock_all(LockAll::CurrentAndFuture, LockMode::OnFault)?;
/// // ... nothing that has been touched is swapped out ...
/// tenure::unlock_all(LockModes::ALL)?;
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn lock_all(what: LockAll, mode: LockMode) -> Result<()> {
    let mut registry = registry();
    let on_fault = mode == LockMode::OnFault;
    // Beforehand: what cannot be read then leaves every lock as it was. What is mapped
    // meanwhile is asked of the kernel when it matters.
    let is_untold = Features::get().smaps_lock_mode.is_err();
    let now = match what.current() || is_untold {
        true => everything()?,
        false => Vec::new(),
    };
    if is_untold {
        registry.note_untold(&now);
    }
    lock::mlockall(what.current(), what.future(), on_fault).map_err(explain)?;
    registry.future = what.future().then_some(mode);
    if what.current() {
        registry.note(&now, mode);
    }
    stats::LOCK_ALL_CALLS.add(1);
    Ok(())
}

/// Clears all locks of the modes named: `munlock(2)` on the parts of the address
/// space that have such a lock, or `munlockall(2)` for [`LockModes::ALL`]. New
/// mappings are no longer locked in a mode named.
///
/// Ending locks on new mappings while others stay takes two steps in the
/// kernel: all memory is locked on fault for a moment, or, where
/// `RLIMIT_MEMLOCK` does not allow that, the locks that stay are taken away and
/// made anew.
///
/// # Errors
///
/// [`Error::System`] or [`Error::SystemAt`] when the kernel refuses (ENOMEM: no
/// room to split a mapping); some of the locks may have been cleared, and what should
/// stay locked with [`LockMode::Now`] may be locked on fault, with its pages there.
pub fn unlock_all(modes: LockModes) -> Result<()> {
    unlock_named(modes)?;
    stats::UNLOCK_ALL_CALLS.add(1);
    Ok(())
}

fn unlock_named(modes: LockModes) -> Result<()> {
    let mut registry = registry();
    if modes == LockModes::ALL {
        return unlock_everything(&mut registry);
    }
    let parts = registry.locked_parts(&everything()?)?;
    let (named, kept): (Vec<_>, Vec<_>) = parts.into_iter().partition(|part| modes.names(part.1));
    let ends_future = registry.future.is_some_and(|mode| modes.names(mode));
    if !ends_future {
        for (part, _) in named {
            super::unlock_part(&mut registry, part)?;
        }
        return Ok(());
    }
    if kept.is_empty() {
        return unlock_everything(&mut registry);
    }
    // Nothing that stays locked is unlocked meanwhile.
    if lock::mlockall(true, false, true).is_err() {
        lock::munlockall().map_err(explain)?;
    }
    registry.clear();
    // What is refused is locked on fault still: the others are gone through first.
    let mut refusal = Ok(());
    for &(part, mode) in &kept {
        let applied = apply(part, mode).map_err(|errno| Error::SystemAt {
            call: "mlock",
            range: part,
            errno,
        });
        refusal = refusal.and(applied);
    }
    for vma in everything()?.iter().filter(|vma| is_locked(vma.range)) {
        unlock_the_rest(vma, &kept)?;
    }
    refusal?;
    for (part, mode) in kept {
        registry.note(&vma::within(part)?, mode);
    }
    Ok(())
}

fn unlock_everything(registry: &mut Registry) -> Result<()> {
    lock::munlockall().map_err(explain)?;
    registry.clear();
    Ok(())
}

/// Unlocks what lies between the parts that are kept.
fn unlock_the_rest(vma: &Vma, kept: &[(PageRange, LockMode)]) -> Result<()> {
    let mut next = vma.range.start();
    let within = kept
        .iter()
        .filter_map(|(part, _)| part.intersection(vma.range));
    let end = PageRange::between(vma.range.end(), vma.range.end());
    for part in within.chain([end]) {
        let between = PageRange::between(next, part.start());
        next = part.end();
        match lock::munlock(between) {
            // Unmapped by another thread meanwhile.
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

/// All that is mapped in the part of the address space that a program has.
fn everything() -> Result<Vec<Vma>> {
    let page = crate::page_size();
    vma::within(PageRange::between(page, isize::MAX as usize / page * page))
}

fn explain(errno: Errno) -> Error {
    let refused = matches!(errno, Errno::NOMEM | Errno::PERM | Errno::AGAIN);
    let by_limit = refused.then(limit::refusal_of_all).flatten();
    by_limit.unwrap_or(Error::System {
        call: "mlockall",
        errno,
    })
}
