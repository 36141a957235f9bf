//! `RLIMIT_MEMLOCK`: what a lock would need, and what there is.

use super::registry::LockedPart;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::process::{LockLimit, has_cap_ipc_lock};

/// Refuses a lock that the limit does not allow. Where the process seems to be
/// above the limit, the kernel decides.
pub(super) fn check(range: PageRange, locked: &[LockedPart]) -> Result<()> {
    if has_cap_ipc_lock() {
        return Ok(());
    }
    refusal(range, locked).map_or(Ok(()), Err)
}

/// Why the kernel would refuse, or has refused, to lock the range of which
/// these parts are locked: they are not charged twice.
pub(super) fn refusal(range: PageRange, locked: &[LockedPart]) -> Option<Error> {
    let LockLimit {
        limit_bytes,
        used_bytes,
        ..
    } = LockLimit::now()?;
    let locked_bytes: usize = locked.iter().map(|(part, _)| part.len()).sum();
    let asked_bytes = range.len() - locked_bytes;
    is_exceeded(limit_bytes, used_bytes.saturating_add(asked_bytes)).then_some(Error::LockLimit {
        range,
        limit_bytes,
        used_bytes,
        asked_bytes,
    })
}

/// The same for all memory of the process.
pub(super) fn check_all() -> Result<()> {
    if has_cap_ipc_lock() {
        return Ok(());
    }
    refusal_of_all().map_or(Ok(()), Err)
}

pub(super) fn refusal_of_all() -> Option<Error> {
    let LockLimit {
        limit_bytes,
        used_bytes,
        mapped_bytes,
    } = LockLimit::now()?;
    is_exceeded(limit_bytes, mapped_bytes).then_some(Error::ProcessLockLimit {
        verb: "lock all memory",
        limit_bytes,
        used_bytes,
        asked_bytes: mapped_bytes.saturating_sub(used_bytes),
    })
}

/// With a limit of 0 nothing may be locked, also not once more.
fn is_exceeded(limit_bytes: usize, needed_bytes: usize) -> bool {
    limit_bytes == 0 || needed_bytes > limit_bytes
}
