//! Revoking the offer of a place, by its owner.

use super::CHUNK_BYTES;
use super::memory::ArenaMemory;
use super::place::Place;
use crate::ground::error::Result;
use crate::ground::range::PageRange;
use crate::ground::sys::{fork, page_runs};
use crate::verbs::volatile::counts::COUNTS;
use crate::verbs::volatile::error::explain_pages;
use crate::verbs::volatile::offer_thread::offer_delay;
use crate::verbs::volatile::outcome::Outcome;
use crate::verbs::volatile::priority::Timestamp;
use crate::verbs::volatile::registry::{ENGINE, Registry};
use crate::verbs::volatile::word::State;

impl Place {
    /// Revokes the offer of the place, makes it nonvolatile and returns which pages are
    /// purged: `madvise(MADV_POPULATE_WRITE)`. On an error it is still volatile, and the
    /// pages that were found purged stay recorded.
    pub(crate) fn revoke_offer(&self) -> Result<Outcome> {
        fork::start_child_in_handler();
        if self.memory().is_kept() && self.word().try_claim_populated() {
            if page_runs::repopulate_all(self.range(), CHUNK_BYTES).is_ok() {
                COUNTS.add_revoked(self.range().len());
                self.publish_nonvolatile(true);
                return Ok(Outcome::Intact);
            }
            self.word().publish(State::Offered);
        }
        let before = self.claim();
        for chunk in self.range().chunks(CHUNK_BYTES) {
            // A lock for each chunk, so that other threads get their turn.
            let revoked = ENGINE.lock_in_turn().revoke_pages(self.memory(), chunk);
            if let Err(error) = revoked {
                self.word().publish(before);
                return Err(error);
            }
        }
        let mut registry = ENGINE.lock();
        let outcome = registry.engine.take_report(self.range());
        registry.arenas.count_revoked(before, self.range());
        self.publish_nonvolatile(outcome == Outcome::Intact);
        Ok(outcome)
    }

    fn publish_nonvolatile(&self, is_intact: bool) {
        let now = Timestamp::now();
        self.word().publish_revoked(now, offer_delay(), is_intact);
    }

    /// Returns whether all of the contents are present at this moment.
    pub(crate) fn is_intact(&self) -> Result<bool> {
        let mut is_intact = true;
        for chunk in self.range().chunks(CHUNK_BYTES) {
            let mut registry = ENGINE.lock_in_turn();
            is_intact &= registry.are_pages_intact(self.memory(), chunk)?;
        }
        Ok(is_intact)
    }

    /// Returns whether everything that was read of the place is what the program wrote
    /// there.
    pub(crate) fn contents_valid(&self) -> bool {
        let mut registry = ENGINE.lock();
        // Where the protection has ended this records the offered places as purged.
        let _ = registry.restore_protection(self.memory());
        !registry.engine.has_purged(self.range())
    }
}

impl Registry {
    fn revoke_pages(&mut self, memory: &ArenaMemory, range: PageRange) -> Result<()> {
        // Without a userfaultfd nothing is offered, or what was is recorded as purged.
        let _ = self.restore_protection(memory);
        self.engine.remove_guards(range)?;
        let was_purged = self.engine.has_purged(range);
        let Self { arenas, engine, .. } = self;
        for (part, is_registered) in arenas.of(memory).blocks.parts(range) {
            if is_registered {
                engine.repopulate_part(part)?;
            } else if was_purged {
                // The kernel may still reclaim pages of an offer whose protection has ended.
                engine.keep_present(part)?;
            }
        }
        Ok(())
    }

    fn are_pages_intact(&mut self, memory: &ArenaMemory, range: PageRange) -> Result<bool> {
        let _ = self.restore_protection(memory);
        if self.engine.has_purged(range) {
            return Ok(false);
        }
        for part in self.arenas.of(memory).blocks.registered(range) {
            if page_runs::has_absent(part).map_err(explain_pages)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
