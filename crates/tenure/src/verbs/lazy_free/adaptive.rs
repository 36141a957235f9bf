//! Lazily while memory is plentiful, eagerly under pressure.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::known::{self, Noted};
use super::policy::{discard, free_at_once};
use crate::ground::error::{MemoryKind, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{
    Harmless, LockState, Losing, advise, advise_losing, finish_batch, lock_state,
};
use crate::ground::sys::{fork, vma};
use crate::observation::pressure::{self, Level};
use crate::observation::stats;
use crate::verbs::volatile;

/// What is given back in one call: other threads' `mmap` may have to wait for it,
/// about 3 ms.
const CHUNK_BYTES: usize = 8 << 20;

/// # Safety
///
/// As for [`PageRange::free`].
pub(super) unsafe fn free(range: PageRange) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let wants_lazy = is_watched() && pressure::level() == Level::None;
    let noted = known::note(range, wants_lazy);
    // Of a range that was locked in part since, the kernel would free what lies
    // before that, and then refuse.
    let is_fit = noted.is_checked && lock_state(range) == Ok(LockState::Unlocked);
    // SAFETY: handed on to the caller.
    if !is_fit || !unsafe { free_unchecked(range, noted) } {
        // SAFETY: handed on to the caller.
        unsafe { free_checked(range, noted) }?;
    }
    if noted.is_lazy {
        pressure::freed_lazily(range.len());
    }
    if noted.is_lazy && pressure::level() == Level::Severe {
        // It became so after the look above, and was perhaps acted on before
        // the pages could be taken.
        give_back();
    }
    Ok(())
}

/// Frees a range that was looked at before. That takes some 5 µs, more than the
/// freeing of small ranges. What others have mapped over it meanwhile is refused
/// by the kernel, or loses what the caller gives up.
///
/// # Safety
///
/// As for [`PageRange::free`].
unsafe fn free_unchecked(range: PageRange, noted: Noted) -> bool {
    volatile::forget(range);
    if !noted.is_lazy {
        // SAFETY: handed on to the caller.
        return unsafe { discard(range) }.is_ok();
    }
    // SAFETY: handed on to the caller.
    let is_marked = unsafe { advise_losing(range, Losing::Free) }.is_ok();
    if is_marked {
        finish_batch();
        stats::LAZY_FREE.done(range.len());
    }
    is_marked
}

/// # Safety
///
/// As for [`PageRange::free`].
unsafe fn free_checked(range: PageRange, noted: Noted) -> Result<()> {
    // SAFETY: handed on to the caller.
    let freed = unsafe {
        match noted.is_lazy {
            true => range.lazy_free(),
            false => free_at_once(range),
        }
    };
    match freed {
        Ok(()) => known::note_checked(range),
        Err(_) => known::forget(range),
    }
    freed
}

/// Has the kernel take what was freed lazily.
///
/// `MADV_DONTNEED` would destroy what has been written since without a word to
/// us, as `MADV_FREE` allows. `MADV_PAGEOUT` takes the pages that are still
/// lazily free and loses no other, whatever is mapped there by now.
fn give_back() {
    while let Some(range) = known::take_freed() {
        stats::GIVEN_BACK.done(range.len());
        for chunk in range.chunks(CHUNK_BYTES) {
            // Not a file that was mapped over it: it would be written back.
            let mapped = vma::within(chunk).unwrap_or_default();
            let is_ours = |vma: &&vma::Vma| vma.kind == MemoryKind::PrivateAnonymous;
            for part in mapped.iter().filter(is_ours) {
                // Refused where it is locked by now, and so in use.
                let _ = advise(part.range, Harmless::PageOut);
            }
        }
    }
}

/// Sees to it that somebody watches pressure in this process, and gives back
/// what was freed when it is severe.
fn is_watched() -> bool {
    /// By generation of the process, for a child has no watcher: there is one,
    /// or there cannot be one. 0 is neither.
    static WATCHED: AtomicUsize = AtomicUsize::new(0);
    let Ok(generation) = fork::generation() else {
        return false;
    };
    let (watched, failed) = (2 * generation + 1, 2 * generation + 2);
    let before = WATCHED.load(Ordering::Acquire);
    if before == watched || before == failed {
        return before == watched;
    }
    let is_subscribed = known::empty_in_children().is_ok() && subscribe();
    let now = if is_subscribed { watched } else { failed };
    WATCHED.store(now, Ordering::Release);
    is_subscribed
}

fn subscribe() -> bool {
    let react = |level| {
        if level == Level::Severe {
            give_back();
        }
    };
    // It holds for as long as the process lives. Two threads that are the first
    // at the same time subscribe both, which does no harm.
    pressure::subscribe(react).map(std::mem::forget).is_ok()
}

#[cfg(test)]
#[path = "adaptive_tests.rs"]
pub(super) mod tests;
