//! The operations on memory: each is done, its answer is compared with what may be
//! answered, and the model learns what has become of the pages.

mod release;
mod volatile;

use fastrand::Rng;
use tenure::{Access, CancelToken, Error, LockMode, LockModes, PopulateOptions, Strategy};

use super::{
    board::{Board, Count},
    model::{Wrong, pages_in},
    peek,
    slot::{Body, Slot},
    step::Populate,
};

/// What operations need.
pub struct Tools<'a> {
    pub board: &'a Board,
    pub stamps: Rng,
    /// RLIMIT_MEMLOCK does not hold.
    pub may_lock_anything: bool,
}

type Part = (usize, usize);

/// Whether the slot is still there.
#[derive(PartialEq, Eq)]
pub enum After {
    Kept,
    Gone,
}

/// Returns the name of an error, as it is counted.
pub fn name(error: &Error) -> &'static str {
    match error {
        Error::Locked { .. } => "locked",
        Error::WrongKind { .. } => "wrong_kind",
        Error::LockLimit { .. } => "lock_limit",
        Error::ProcessLockLimit { .. } => "process_lock_limit",
        Error::NoMemory { .. } => "no_memory",
        Error::NoBacking { .. } => "no_backing",
        Error::NoAccess { .. } => "no_access",
        Error::Cancelled { .. } => "cancelled",
        Error::Purged { .. } => "purged",
        Error::Volatile { .. } => "volatile",
        Error::Unsupported { .. } => "unsupported",
        Error::ArenaFull { .. } => "arena_full",
        Error::NoRoom { .. } => "no_room",
        Error::OutOfBounds { .. } => "out_of_bounds",
        _ => "other",
    }
}

impl Tools<'_> {
    /// Returns what was answered; nothing for an error that may be.
    pub fn expect<T>(&self, answer: Result<T, Error>, may_be: &[&str]) -> Result<Option<T>, Wrong> {
        match answer {
            Ok(value) => Ok(Some(value)),
            Err(error) if may_be.contains(&name(&error)) => {
                self.board.refused(name(&error));
                Ok(None)
            }
            Err(error) => {
                let expected = match may_be {
                    [] => "success".to_owned(),
                    names => format!("success, or {}", names.join(", ")),
                };
                Err(Wrong::new("an error that may not be", expected, error))
            }
        }
    }

    /// The same where there has to be an error of this name, if `refused` says one.
    fn expect_or<T>(
        &self,
        answer: Result<T, Error>,
        refused: Option<&str>,
    ) -> Result<Option<T>, Wrong> {
        let Some(refused) = refused else {
            return self.expect(answer, &[]);
        };
        match self.expect(answer, &[refused])? {
            None => Ok(None),
            Some(_) => Err(Wrong::new("no error", refused, "success")),
        }
    }

    pub fn populate(&mut self, slot: &mut Slot, part: Part, how: Populate) -> Result<(), Wrong> {
        let range = slot.part(part.0, part.1);
        let token = CancelToken::new();
        let mut options = PopulateOptions::new(how.access)
            .strategy(how.strategy)
            .threads(how.threads)
            .cancel(&token);
        if how.chunk_pages > 0 {
            options = options.chunk_bytes(how.chunk_pages * tenure::page_size());
        }
        if how.cancel {
            options = options.progress(move |_| token.cancel());
        }
        let bounds = range.start() - slot.range().start()..range.end() - slot.range().start();
        let answer = match &slot.body {
            // SAFETY: the range is this thread's, and stays mapped until it has been
            // waited for.
            _ if how.in_background => unsafe { range.populate_in_background(&options) }
                .and_then(|arriving| arriving.wait()),
            Body::Mapping(mapping) => mapping.populate_with(bounds, &options),
            // SAFETY: as above; nobody counts on a page of it being absent.
            _ => unsafe { range.populate_with(&options) },
        };
        let mut may_be = vec!["no_memory"];
        if how.cancel {
            may_be.push("cancelled");
        }
        if slot.has(part, |page| page.volatile) {
            // Pages that are lost cannot be brought in.
            may_be.extend(["no_backing", "no_access", "other"]);
        }
        if how.strategy == Strategy::ReadThenWrite && how.access == Access::Read {
            may_be.push("wrong_kind");
        }
        if how.strategy == Strategy::AllocateThenPopulate {
            may_be.extend(["wrong_kind", "unsupported"]);
        }
        if how.access == Access::Write {
            slot.known(part).iter_mut().for_each(|page| page.own = true);
        }
        if self.expect(answer, &may_be)?.is_none() {
            return Ok(());
        }
        slot.check(part, self.board)?;
        if how.access == Access::Write {
            let ordinary = slot.known(part).iter_mut().filter(|page| !page.volatile);
            ordinary.for_each(|page| page.lazy = false);
        }
        Ok(())
    }

    pub fn lock(&self, slot: &mut Slot, part: Part, mode: LockMode) -> Result<(), Wrong> {
        // SAFETY: the range is this thread's.
        let answer = unsafe { slot.part(part.0, part.1).lock(mode) };
        let mut may_be = Vec::new();
        if !self.may_lock_anything {
            may_be.push("lock_limit");
        }
        if slot.has(part, |page| page.volatile) {
            may_be.extend(["no_backing", "no_access", "other"]);
        }
        let is_locked = self.expect(answer, &may_be)?.is_some();
        for page in slot.known(part) {
            page.own |= mode == LockMode::Now;
            page.lock = if is_locked { Some(mode) } else { page.lock };
        }
        Ok(())
    }

    pub fn unlock(&self, slot: &mut Slot, part: Part, modes: LockModes) -> Result<(), Wrong> {
        // SAFETY: the range is this thread's.
        self.expect(unsafe { slot.part(part.0, part.1).unlock(modes) }, &[])?;
        let names = |lock| match lock {
            LockMode::Now => modes == LockModes::ALL || modes == LockModes::NOW,
            LockMode::OnFault => modes == LockModes::ALL || modes == LockModes::ON_FAULT,
        };
        for page in slot.known(part) {
            page.lock = page.lock.filter(|&lock| !names(lock));
        }
        Ok(())
    }

    /// Why contents of these pages cannot be given up, if they cannot.
    fn refusal(slot: &Slot, part: Part, is_right_kind: bool) -> Option<&'static str> {
        match is_right_kind {
            false => Some("wrong_kind"),
            true => slot
                .has(part, |page| page.lock.is_some())
                .then_some("locked"),
        }
    }

    pub fn page_out(&self, slot: &Slot, part: Part) {
        peek::page_out(slot.part(part.0, part.1));
        self.board.add(Count::PageOuts, 1);
    }

    pub fn residency(&self, slot: &mut Slot, part: Part) -> Result<(), Wrong> {
        let range = slot.part(part.0, part.1);
        let residency = self.expect(range.residency(), &[])?;
        if let Some(wrong) = residency.filter(|residency| {
            residency.resident_bytes > range.len() || residency.mapped_bytes != range.len()
        }) {
            let (expected, found) = (format!("that of {range}"), format!("{wrong:?}"));
            return Err(Wrong::new("the residency", expected, found));
        }
        let is_anonymous = slot.kind.is_private_anonymous() || slot.kind.is_buffer();
        for hole in self.expect(range.holes(), &[])?.into_iter().flatten() {
            let first = pages_in(hole.start() - slot.range().start());
            for index in (first..first + hole.pages()).filter(|_| is_anonymous) {
                let page = &mut slot.pages[index];
                if page.stamp == 0 || page.lazy {
                    continue;
                }
                if !page.volatile {
                    let at = Some(slot.part(index, 1).start());
                    let wrong = Wrong::new("a page in use", "memory", "a hole");
                    return Err(Wrong { page: at, ..wrong });
                }
                page.gone = true;
            }
        }
        Ok(())
    }
}

/// Whether RLIMIT_MEMLOCK does not hold for this process.
pub fn may_lock_anything() -> bool {
    use rustix::{
        process::{Resource, getrlimit},
        thread::{CapabilitySet, capabilities},
    };
    let is_privileged =
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    is_privileged || getrlimit(Resource::Memlock).current.is_none()
}
