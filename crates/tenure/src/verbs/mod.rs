//! The five verbs, and tear-down. Each verb has a safe form on
//! [`Mapping`](crate::Mapping) and an `unsafe` form on [`PageRange`].

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing {
    pub(crate) use super::lazy_free::fuzzing::freed_ranges;
    pub(crate) use super::lock::fuzzing::registry;
    pub(crate) use super::volatile::fuzzing::{free_extents, marks, objects};
}
pub mod files;
pub mod lazy_free;
pub mod lock;
mod mmap;
pub mod populate;
pub mod release;
pub mod teardown;
pub mod volatile;

pub use mmap::MmapRequest;

use crate::ground::error::{Error, MemoryKind, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{DestructiveAdvice, LockState, advise_destructive, lock_state};
use crate::ground::sys::map;
use crate::ground::sys::vma::{self, Vma};

/// Checks the range before `verb`, which can destroy contents, changes any of it:
/// no holes, private anonymous memory only, nothing locked or sealed.
fn check_private_anonymous(verb: &'static str, range: PageRange) -> Result<Vec<Vma>> {
    let is_wanted = |kind| kind == MemoryKind::PrivateAnonymous;
    check_kind(verb, range, is_wanted, "private anonymous memory")
}

/// Checks that the range has no holes, only VMAs of a wanted kind, and no locked
/// pages.
fn check_kind(
    verb: &'static str,
    range: PageRange,
    is_wanted: impl Fn(MemoryKind) -> bool,
    wanted: &'static str,
) -> Result<Vec<Vma>> {
    let vmas = vma::cover(range)?;
    check_vmas(verb, range, &vmas, is_wanted, wanted)?;
    Ok(vmas)
}

/// Checks that the VMAs of the range are all of a wanted kind, have no locked pages, and are
/// not sealed against the loss of their contents.
fn check_vmas(
    verb: &'static str,
    range: PageRange,
    vmas: &[Vma],
    is_wanted: impl Fn(MemoryKind) -> bool,
    wanted: &'static str,
) -> Result<()> {
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
    // The kernel lets whoever may write sealed memory discard it as well.
    let is_protected = |vma: &&Vma| vma.kind == MemoryKind::PrivateAnonymous && !vma.writable;
    refuse_sealed(verb, range, vmas.iter().filter(is_protected))
}

/// Refuses a range of which one of the VMAs is sealed (`mseal(2)`): the kernel finds that when
/// it comes to the VMA, and has changed what is before it then.
fn refuse_sealed<'a>(
    verb: &'static str,
    range: PageRange,
    vmas: impl IntoIterator<Item = &'a Vma>,
) -> Result<()> {
    let is_sealed = |vma: &&Vma| map::is_sealed(vma.range.start(), vma.page_bytes);
    match vmas.into_iter().find(is_sealed) {
        Some(vma) => Err(Error::Sealed {
            verb,
            range,
            part: vma.range,
        }),
        None => Ok(()),
    }
}

fn check_unlocked(verb: &'static str, range: PageRange) -> Result<()> {
    match lock_state(range) {
        Ok(LockState::Locked) => Err(Error::Locked { verb, range }),
        // A hole that appeared after `vma::cover` makes the next system call fail,
        // which reports it.
        Ok(LockState::Unlocked | LockState::Hole) => Ok(()),
        Err(errno) => Err(Error::SystemAt {
            call: "msync(MS_ASYNC | MS_INVALIDATE)",
            range,
            errno,
        }),
    }
}

/// The most that one system call frees, so that it never holds the address space's
/// lock (`mmap_lock`) for long.
const CHUNK_BYTES: usize = 32 << 20;

/// Applies destructive advice to the part in chunks: `madvise(2)`.
///
/// # Safety
///
/// Nothing may rely on the contents of the part, which the advice destroys.
unsafe fn advise_in_chunks(
    part: PageRange,
    advice: DestructiveAdvice,
    call: &'static str,
) -> Result<()> {
    for range in part.chunks(CHUNK_BYTES) {
        // SAFETY: the caller of this function gives the contents up.
        unsafe { advise_destructive(range, advice) }.map_err(|errno| Error::SystemAt {
            call,
            range,
            errno,
        })?;
    }
    Ok(())
}
