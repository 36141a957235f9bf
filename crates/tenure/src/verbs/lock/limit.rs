//! `RLIMIT_MEMLOCK`: explains the kernel's refusal to lock.
//!
//! The kernel compares the limit before it changes anything, by the rule that this
//! file repeats. So a lock calls the kernel first and reads the figures only after a
//! refusal: reading them takes 50 µs, longer than the lock itself.

use rangemap::RangeSet;

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
    let requested_bytes = range.len() - locked_bytes(range, locked);
    is_exceeded(limit_bytes, used_bytes + requested_bytes).then_some(Error::LockLimit {
        range,
        limit_bytes,
        used_bytes,
        requested_bytes,
    })
}

/// Returns how much of the range is in one of the parts. Parts that are read while mappings
/// merge may overlap.
fn locked_bytes(range: PageRange, parts: &[LockedPart]) -> usize {
    let within = parts
        .iter()
        .filter_map(|(part, _)| part.intersection(range));
    let locked: RangeSet<usize> = within.map(PageRange::as_std).collect();
    locked.iter().map(|part| part.end - part.start).sum()
}

/// Returns the error for a refused `mlockall`, which the verb needs, if the limit is the
/// cause.
pub(super) fn process_error(verb: &'static str) -> Option<Error> {
    let LockLimit {
        limit_bytes,
        used_bytes,
        mapped_bytes,
    } = LockLimit::now()?;
    is_exceeded(limit_bytes, mapped_bytes).then_some(Error::ProcessLockLimit {
        verb,
        limit_bytes,
        used_bytes,
        requested_bytes: mapped_bytes.saturating_sub(used_bytes),
    })
}

/// With a limit of 0 the kernel refuses every lock, even of memory that is locked.
fn is_exceeded(limit_bytes: usize, needed_bytes: usize) -> bool {
    (limit_bytes == 0 || needed_bytes > limit_bytes) && !may_exceed_lock_limit()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::sys::page_size;
    use crate::verbs::lock::LockMode;

    #[test]
    fn locked_bytes_of_overlapping_parts_count_once() {
        let range = |from, to| PageRange::between(from * page_size(), to * page_size());
        let parts = [
            (range(0, 4), LockMode::Now),
            (range(2, 6), LockMode::OnFault),
        ];
        assert_eq!(locked_bytes(range(1, 6), &parts), 5 * page_size());
        assert_eq!(locked_bytes(range(8, 9), &parts), 0);
    }
}
