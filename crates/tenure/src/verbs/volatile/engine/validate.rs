//! Checks of memory that is to be volatile.

use super::state::{Engine, can_offer};
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::vma::{self, Vma};
use crate::verbs::check_private_anonymous;
use crate::verbs::volatile::error::VERB;

/// How many mappings are checked, offered, revoked or purged under one ENGINE lock: some
/// system calls for each, which are less than a millisecond.
pub(crate) const MAX_MAPPINGS: usize = 64;

/// Returns the first part of the range that has [`MAX_MAPPINGS`] at most.
pub(crate) fn first_mappings(range: PageRange) -> PageRange {
    vma::first_part(range, MAX_MAPPINGS).0
}

impl Engine {
    /// Checks that mappings of private anonymous memory in the range, which has no mark yet,
    /// can be volatile.
    pub(crate) fn validate(&mut self, range: PageRange, vmas: &[Vma]) -> Result<()> {
        self.check_access(range, vmas)?;
        if !can_offer() {
            return Ok(());
        }
        self.open_to_ask()?;
        let mut starts = vmas.iter().map(|vma| vma.range.start());
        let is_busy = |at: usize| {
            let registration = self.uffd.as_ref().and_then(|uffd| uffd.registration(at));
            registration == Some(true) && !self.offered.contains(at)
        };
        match starts.any(is_busy) {
            true => Err(Error::Busy { range }),
            false => Ok(()),
        }
    }

    /// Checks that the range is private anonymous memory, not locked, and accessible. Returns
    /// its mappings.
    pub(super) fn check(&self, range: PageRange) -> Result<Vec<Vma>> {
        let vmas = check_private_anonymous(VERB, range)?;
        self.check_access(range, &vmas)?;
        Ok(vmas)
    }

    /// Checks that the mappings are readable and writable except for guards of the engine's.
    fn check_access(&self, range: PageRange, vmas: &[Vma]) -> Result<()> {
        for vma in vmas.iter().filter(|vma| self.lacks_access(vma).is_some()) {
            // It may have been read before another thread removed the guard.
            for part in vma::cover(vma.range)? {
                if let Some(missing) = self.lacks_access(&part) {
                    return Err(Error::NoAccess {
                        verb: VERB,
                        range,
                        part: part.range,
                        missing,
                    });
                }
            }
        }
        Ok(())
    }

    fn lacks_access(&self, vma: &Vma) -> Option<&'static str> {
        match (vma.readable, vma.writable) {
            (true, true) => None,
            (true, false) => Some("write"),
            (false, _) if self.guarded.contains_all(vma.range) => None,
            (false, _) => Some("read"),
        }
    }
}
