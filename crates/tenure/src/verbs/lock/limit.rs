//! `RLIMIT_MEMLOCK`: what a lock needs, and what there is.
//!
//! The kernel compares the two before it changes anything, by the rule that is
//! repeated here; so it is asked first, and its refusal explained. To ask for
//! the figures before each lock takes 50 µs, the lock itself 15.

use super::registry::LockedPart;
use crate::ground::error::Error;
use crate::ground::range::PageRange;
use crate::ground::sys::process::{LockLimit, may_exceed_lock_limit};

/// Why the kernel has refused to lock the range of which these parts are locked
/// (they are not charged twice), if the limit is why.
pub(super) fn refusal(range: PageRange, locked: &[LockedPart]) -> Option<Error> {
    let LockLimit {
        limit_bytes,
        used_bytes,
        ..
    } = LockLimit::now()?;
    let locked_bytes: usize = locked.iter().map(|(part, _)| part.len()).sum();
    let asked_bytes = range.len() - locked_bytes;
    is_exceeded(limit_bytes, used_bytes + asked_bytes).then_some(Error::LockLimit {
        range,
        limit_bytes,
        used_bytes,
        asked_bytes,
    })
}

/// The same for all memory of the process.
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
    (limit_bytes == 0 || needed_bytes > limit_bytes) && !may_exceed_lock_limit()
}
