//! Revoking the offer of a range or an object.

use super::lock::ENGINE;
use super::state::Registry;
use crate::ground::error::Result;
use crate::ground::range::PageRange;
use crate::verbs::volatile::engine::Revoked;
use crate::verbs::volatile::outcome::Outcome;

/// Revokes the offer of the range, in chunks between which other threads get the ENGINE
/// lock, and returns which pages are purged. Calls `finish`, which makes the range
/// nonvolatile, under the lock under which nothing of it is offered any more.
///
/// # Errors
///
/// [`Error::MappingLimit`](crate::Error::MappingLimit), with nothing done, where too few
/// mappings are left. After any other error the range is volatile still.
pub(crate) fn revoke(
    range: PageRange,
    finish: impl FnOnce(&mut Registry, &Outcome),
) -> Result<Outcome> {
    let mut registry = ENGINE.lock();
    registry.engine.check_split(range)?;
    // An offer under way would undo what is done here, chunk by chunk.
    registry.marks.publish(range, false);
    registry.engine.set_incomplete(range, false);
    let mut from = range.start();
    loop {
        match registry.engine.revoke_chunk(range, from)? {
            Revoked::To(end) => from = end,
            Revoked::All(outcome) => {
                finish(&mut registry, &outcome);
                return Ok(outcome);
            }
        }
        drop(registry);
        ENGINE.give_way();
        registry = ENGINE.lock();
    }
}
