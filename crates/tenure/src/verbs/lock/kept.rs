//! Locks of memory that tenure maps for types of its own, which stay until it is unmapped.
//!
//! A secret that is unlocked may be written to swap, and a `LockedFile` relies on its
//! lock. Neither memory is the program's to unlock: [`unlock_all`](super::unlock_all) and
//! [`PageRange::unlock`] leave it locked.

use super::limit;
use super::registry::{is_locked, registry, to_change};
use super::{LockMode, apply};
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::Errno;
use crate::observation::stats;

/// Locks the range on fault (`mlock2(MLOCK_ONFAULT)`) until it is unmapped; no call of
/// tenure unlocks it before.
///
/// The range is a new mapping, of which no other code knows. So there are no mappings to
/// look at and no locks to restore, and the call needs neither `/proc` nor a descriptor.
/// After an error the caller unmaps the range.
///
/// # Errors
///
/// [`Error::LockLimit`] when `RLIMIT_MEMLOCK` does not allow it, and [`Error::SystemAt`]
/// for anything else, or where the limit's figures cannot be read (no `/proc`).
pub(crate) fn lock_until_unmapped(range: PageRange) -> Result<()> {
    let mut registry = to_change(registry());
    if let Err(errno) = apply(range, LockMode::OnFault) {
        drop(registry);
        return Err(explain(range, errno));
    }
    registry.keep(range);
    stats::LOCK.done(range.len());
    Ok(())
}

fn explain(range: PageRange, errno: Errno) -> Error {
    // Under `lock_all` the mapping has been charged already.
    let charged = is_locked(range).then_some((range, LockMode::OnFault));
    let may_be_limit = matches!(errno, Errno::NOMEM | Errno::AGAIN | Errno::PERM);
    let limit_error = may_be_limit.then(|| limit::range_error(range, charged.as_slice()));
    limit_error.flatten().unwrap_or(Error::SystemAt {
        call: "mlock2",
        range,
        errno,
    })
}
