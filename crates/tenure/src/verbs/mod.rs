//! The five verbs. Each has a safe form on [`Mapping`](crate::Mapping) and an
//! `unsafe` form on [`PageRange`].

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing {
    pub(crate) use super::lazy_free::fuzzing::known;
    pub(crate) use super::lock::fuzzing::registry;
    pub(crate) use super::volatile::fuzzing::{marks, objects, runs};
}
pub(crate) mod lazy_free;
pub(crate) mod lock;
mod mmap;
mod populate;
mod release;
pub mod teardown;
pub(crate) mod volatile;

pub use lazy_free::{FreePolicy, LazilyFreed};
pub use lock::{LockAll, LockMode, LockModes, lock_all, unlock_all};
pub use mmap::MmapRequest;
pub use populate::{Access, BackgroundPopulate, CancelToken, PopulateOptions, Progress, Strategy};
pub use release::drain;
pub use volatile::{
    Outcome, Priority, VolatileArena, VolatileBuffer, purge_all, set_hand_over_delay,
};

use crate::ground::error::{Error, MemoryKind, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{LockState, Losing, advise_losing, lock_state};
use crate::ground::sys::vma::{self, Vma};

/// Looks at everything mapped in the range before `verb`, which can lose
/// contents, changes any of it: no holes, private anonymous memory only,
/// nothing locked.
fn check_private_anonymous(verb: &'static str, range: PageRange) -> Result<Vec<Vma>> {
    let is_wanted = |kind| kind == MemoryKind::PrivateAnonymous;
    check_kind(verb, range, is_wanted, "private anonymous memory")
}

/// The same for other kinds of memory.
fn check_kind(
    verb: &'static str,
    range: PageRange,
    is_wanted: impl Fn(MemoryKind) -> bool,
    wanted: &'static str,
) -> Result<Vec<Vma>> {
    let vmas = vma::cover(range)?;
    if let Some(vma) = vmas.iter().find(|vma| !is_wanted(vma.kind)) {
        return Err(Error::WrongKind {
            verb,
            range,
            part: vma.range,
            found: vma.kind,
            wanted,
        });
    }
    check_unlocked(verb, range)?;
    Ok(vmas)
}

fn check_unlocked(verb: &'static str, range: PageRange) -> Result<()> {
    match lock_state(range) {
        Ok(LockState::Locked) => Err(Error::Locked { verb, range }),
        // A hole that came up since the mappings were looked at is met again,
        // and reported, by the call that follows.
        Ok(LockState::Unlocked | LockState::Hole) => Ok(()),
        Err(errno) => Err(Error::SystemAt {
            call: "msync(MS_ASYNC | MS_INVALIDATE)",
            range,
            errno,
        }),
    }
}

/// What one plain call frees at most, so that the address space's lock is never
/// held for long.
const CHUNK_BYTES: usize = 32 << 20;

/// # Safety
///
/// Nothing may rely on the contents of the part, which the advice gives up.
unsafe fn advise_in_chunks(part: PageRange, advice: Losing, call: &'static str) -> Result<()> {
    for range in part.chunks(CHUNK_BYTES) {
        // SAFETY: handed on to the caller.
        unsafe { advise_losing(range, advice) }.map_err(|errno| Error::SystemAt {
            call,
            range,
            errno,
        })?;
    }
    Ok(())
}
