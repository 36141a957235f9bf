//! lock: pages stay once they are in, at once or from the first fault on.

use std::ops::RangeBounds;
use std::sync::{LazyLock, Once};

use rangemap::RangeMap;

use crate::ground::error::{Error, Result};
use crate::ground::mapping::Mapping;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{LockState, lock_state};
use crate::ground::sys::fork::{ForkMutex, at_fork};
use crate::ground::sys::{Errno, lock, process, vma};

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
    /// What was locked with [`LockMode::Now`].
    pub const NOW: Self = Self {
        now: true,
        on_fault: false,
    };
    /// What was locked with [`LockMode::OnFault`].
    pub const ON_FAULT: Self = Self {
        now: false,
        on_fault: true,
    };
    /// Every lock, also those that were not made through tenure.
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

/// Which mode covers what, as far as it was locked through tenure. Locks do not
/// stack: each byte has the mode that it was last locked with, as in the kernel.
static LOCKED: LazyLock<ForkMutex<RangeMap<usize, LockMode>>> =
    LazyLock::new(|| ForkMutex::new(RangeMap::new()));

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

impl PageRange {
    /// Locks the range in memory: `mlock(2)`, or `mlock2(MLOCK_ONFAULT)` (Linux
    /// 4.4). A part that is locked already takes the new mode. An empty range
    /// succeeds.
    ///
    /// The whole range counts against `RLIMIT_MEMLOCK` from now on, in both
    /// modes. Children do not inherit locks.
    ///
    /// # Errors
    ///
    /// With every lock as it was before:
    /// * [`Error::Hole`] when a part is not mapped,
    /// * [`Error::LockLimit`] when `RLIMIT_MEMLOCK` does not allow it,
    /// * [`Error::NoBacking`] when a page cannot be brought in,
    /// * [`Error::SystemAt`] for anything else.
    ///
    /// # Safety
    ///
    /// The range must be the caller's to lock: a later unlock by another owner
    /// of the same pages takes this lock away.
    pub unsafe fn lock(self, mode: LockMode) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        vma::cover(self)?;
        reset_in_children();
        let mut locked = LOCKED.lock();
        match apply(self, mode) {
            Ok(()) => {
                locked.insert(self.as_std(), mode);
                Ok(())
            }
            Err(errno) => {
                let error = explain(self, errno, &locked);
                restore(self, &locked);
                Err(error)
            }
        }
    }

    /// Clears the locks of the modes named: `munlock(2)` on the parts that have
    /// such a lock. Parts locked with another mode stay locked, parts that are
    /// not locked stay as they are. An empty range succeeds.
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
        vma::cover(self)?;
        let mut locked = LOCKED.lock();
        let parts = if modes == LockModes::ALL {
            vec![self]
        } else {
            parts_with(&locked, self, modes)
        };
        for part in parts {
            lock::munlock(part).map_err(|errno| Error::SystemAt {
                call: "munlock",
                range: part,
                errno,
            })?;
            locked.remove(part.as_std());
        }
        Ok(())
    }
}

/// Forgets the locks on a range that is being unmapped.
pub(super) fn forget(range: PageRange) {
    let mut locked = LOCKED.lock();
    if !locked.is_empty() {
        locked.remove(range.as_std());
    }
}

fn apply(range: PageRange, mode: LockMode) -> std::result::Result<(), Errno> {
    match mode {
        LockMode::Now => lock::mlock(range),
        LockMode::OnFault => lock::mlock_onfault(range),
    }
}

/// The parts of the range whose lock is of one of the modes.
fn parts_with(
    locked: &RangeMap<usize, LockMode>,
    range: PageRange,
    modes: LockModes,
) -> Vec<PageRange> {
    locked
        .overlapping(range.as_std())
        .filter(|(_, mode)| modes.names(**mode))
        .filter_map(|(part, _)| PageRange::from(part.clone()).intersection(range))
        .collect()
}

/// Puts the kernel's locks on the range back to what the registry says: the
/// kernel may have marked the range before it failed to bring a page in.
fn restore(range: PageRange, locked: &RangeMap<usize, LockMode>) {
    for gap in locked.gaps(&range.as_std()) {
        // What fails here was not locked by the call that failed either: the
        // kernel marks from the front and stops at the first obstacle.
        let _ = lock::munlock(gap.into());
    }
    for (part, &mode) in locked.overlapping(range.as_std()) {
        if let Some(part) = PageRange::from(part.clone()).intersection(range) {
            // Charged already, so the limit cannot refuse it.
            let _ = apply(part, mode);
        }
    }
}

/// Tells a refusal from a page that could not be brought in: the kernel checks
/// the limit before it marks anything, and brings pages in after.
fn explain(range: PageRange, errno: Errno, locked: &RangeMap<usize, LockMode>) -> Error {
    let marked = |gap: std::ops::Range<usize>| lock_state(gap.into()) == Ok(LockState::Locked);
    if matches!(errno, Errno::NOMEM | Errno::AGAIN) && locked.gaps(&range.as_std()).any(marked) {
        return Error::NoBacking {
            verb: "lock",
            range,
        };
    }
    match (errno, process::memlock()) {
        (Errno::NOMEM | Errno::AGAIN | Errno::PERM, Some((limit_bytes, used_bytes)))
            if used_bytes.saturating_add(range.len()) > limit_bytes =>
        {
            Error::LockLimit {
                range,
                limit_bytes,
                used_bytes,
            }
        }
        _ => Error::SystemAt {
            call: "mlock",
            range,
            errno,
        },
    }
}

/// Has children begin with an empty registry: they inherit no locks.
fn reset_in_children() {
    unsafe extern "C" fn prepare() {
        LOCKED.hold();
    }
    unsafe extern "C" fn parent() {
        // SAFETY: `prepare` has run in this thread.
        unsafe { LOCKED.let_go(|_| ()) };
    }
    unsafe extern "C" fn child() {
        // Leaked, not freed: the child of a threaded program must not touch the
        // allocator here.
        // SAFETY: `prepare` has run in the thread that this is a copy of.
        unsafe { LOCKED.let_go(|locked| std::mem::forget(std::mem::take(locked))) };
    }
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // Without it (ENOMEM) a child's registry names locks that are not
        // there, which its `unlock` then clears in vain.
        let _ = at_fork(prepare, parent, child);
    });
}
