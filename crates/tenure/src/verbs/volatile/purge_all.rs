//! Purging all volatile memory of the process on request.

use super::arenas::LiveArenas;
use super::candidates::VolatileCandidates;
use super::offer_thread::resume_in_child;
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
    resume_in_child();
    let live = LiveArenas::now();
    VolatileCandidates::all(&live).purge(stats::PURGED_ON_REQUEST_BYTES, usize::MAX)
}
