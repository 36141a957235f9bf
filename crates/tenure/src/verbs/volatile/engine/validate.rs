//! Checks of memory that is to be volatile.

use super::state::{Engine, can_offer};
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::vma::Vma;
use crate::verbs::check_private_anonymous;
use crate::verbs::volatile::error::VERB;

impl Engine {
    /// Checks that a range which has no mark yet can be volatile.
    pub(crate) fn validate(&mut self, range: PageRange) -> Result<()> {
        let vmas = self.check(range)?;
        if !can_offer() {
            return Ok(());
        }
        self.open_to_ask()?;
        let starts = vmas.iter().map(|vma| vma.range.start());
        let is_busy = |at: usize| {
            let registration = self.uffd.as_ref().and_then(|uffd| uffd.registration(at));
            registration == Some(true) && !self.offered.contains(at)
        };
        match starts.into_iter().any(is_busy) {
            true => Err(Error::Busy { range }),
            false => Ok(()),
        }
    }

    /// Checks that the range is private anonymous memory, not locked, readable and
    /// writable except for guards of the engine's. Returns its mappings.
    pub(super) fn check(&self, range: PageRange) -> Result<Vec<Vma>> {
        let vmas = check_private_anonymous(VERB, range)?;
        let is_guarded = |vma: &Vma| self.guarded.contains_all(vma.range);
        for vma in &vmas {
            let missing = match (vma.readable, vma.writable) {
                (true, true) => continue,
                (true, false) => "write",
                (false, _) if is_guarded(vma) => continue,
                (false, _) => "read",
            };
            return Err(Error::NoAccess {
                verb: VERB,
                range,
                part: vma.range,
                missing,
            });
        }
        Ok(vmas)
    }
}
