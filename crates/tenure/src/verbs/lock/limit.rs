//! `RLIMIT_MEMLOCK`: explains the kernel's refusal to lock.
//!
//! The kernel compares the limit before it changes anything, by the rule that this
//! file repeats. So a lock calls the kernel first and reads the figures only after a
//! refusal: reading them takes 50 µs, longer than the lock itself.

use super::registry::LockedPart;
use crate::ground::error::Error;
use crate::ground::range::PageRange;
use crate::ground::sys::process::{LockLimit, may_exceed_lock_limit};

/// Returns the error for a refused lock of the range, if the limit is the cause.
/// The parts in `locked` are locked already and are not charged twice.
pub(super) fn range_error(range: PageRange, locked: &[LockedPart]) -> Option<Error> {
    let LockLimit {
        limit_bytes,
        used_bytes,
        ..
    } = LockLimit::now()?;
    let locked_bytes: usize = locked.iter().map(|(part, _)| part.len()).sum();
    let requested_bytes = range.len() - locked_bytes;
    is_exceeded(limit_bytes, used_bytes + requested_bytes).then_some(Error::LockLimit {
        range,
        limit_bytes,
        used_bytes,
        requested_bytes,
    })
}

/// Returns the error for a refused `mlockall`, if the limit is the cause.
pub(super) fn process_error() -> Option<Error> {
    let LockLimit {
        limit_bytes,
        used_bytes,
        mapped_bytes,
    } = LockLimit::now()?;
    is_exceeded(limit_bytes, mapped_bytes).then_some(Error::ProcessLockLimit {
        verb: "lock all memory",
        limit_bytes,
        used_bytes,
        requested_bytes: mapped_bytes.saturating_sub(used_bytes),
    })
}

/// With a limit of 0 the kernel refuses every lock, even of memory that is locked.
fn is_exceeded(limit_bytes: usize, needed_bytes: usize) -> bool {
    (limit_bytes == 0 || needed_bytes > limit_bytes) && !may_exceed_lock_limit()
}
