//! Purging all volatile memory of the process on request.

use super::registry::ENGINE;
use crate::ground::error::Result;
use crate::observation::stats;

/// Purges all volatile memory of this process, ranges and buffers alike, as
/// [`PageRange::purge`](crate::PageRange::purge) does: for a program that is told to
/// shrink.
///
/// ```standalone_crate
/// let mut thumbnail = tenure::VolatileBuffer::new(1 << 20)?;
/// thumbnail.as_mut_slice()?.fill(7);
/// thumbnail.mark_volatile();
/// tenure::volatile::purge_all()?;
/// assert_ne!(thumbnail.mark_nonvolatile()?, tenure::Outcome::Intact);
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Errors
///
/// As for [`PageRange::purge`](crate::PageRange::purge), when a part cannot be purged;
/// all other parts are purged.
pub fn purge_all() -> Result<()> {
    let all: Vec<_> = ENGINE.lock().volatile_candidates().collect();
    let mut answer = Ok(());
    for volatile in all {
        let cause = stats::PURGED_ON_REQUEST_BYTES;
        // A lock for each, so that other threads get their turn.
        let purged = ENGINE.lock().purge_candidate(&volatile.candidate, cause);
        answer = answer.and(purged.map(drop));
    }
    answer
}
