//! The operations on memory: each is done, its answer is compared with what may be
//! answered, and the model learns what has become of the pages.

use std::mem;

use fastrand::Rng;
use tenure::{
    Access, CancelToken, Error, FreePolicy, LockMode, LockModes, PageRange, PopulateOptions,
    Priority, Strategy,
};

use super::{
    board::{Board, Count},
    model::{Wrong, pages_in},
    peek,
    plan::{End, Kind, Populate, kept},
    slot::{Body, Slot},
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

    pub fn free(
        &mut self,
        slot: &mut Slot,
        part: Part,
        policy: FreePolicy,
    ) -> Result<After, Wrong> {
        let refused = Self::refusal(slot, part, slot.kind.is_private_anonymous());
        let is_whole = part == (0, slot.pages.len());
        if is_whole && refused.is_none() && matches!(slot.body, Body::Mapping(_)) {
            return self.free_whole(slot, policy);
        }
        // SAFETY: what the range holds is known to be undefined from here on, and is
        // not borrowed.
        let answer = unsafe { slot.part(part.0, part.1).free(policy) };
        if self.expect_or(answer, refused)?.is_some() {
            Self::freed(slot, part, policy);
        }
        Ok(After::Kept)
    }

    fn freed(slot: &mut Slot, part: Part, policy: FreePolicy) {
        match policy {
            FreePolicy::Eager => slot.emptied(part),
            _ => slot.known(part).iter_mut().for_each(|page| page.freed()),
        }
    }

    /// A mapping as a whole, which is taken back at once.
    fn free_whole(&mut self, slot: &mut Slot, policy: FreePolicy) -> Result<After, Wrong> {
        let range = slot.range();
        let Body::Mapping(mapping) = mem::replace(&mut slot.body, Body::Range(range)) else {
            unreachable!("looked at before");
        };
        let given_up = mapping.free(policy).map_err(Error::from);
        let Some(given_up) = self.expect(given_up, &[])? else {
            return Ok(After::Gone);
        };
        let all = (0, slot.pages.len());
        Self::freed(slot, all, policy);
        match given_up.take_back() {
            Ok(mapping) => slot.body = Body::Mapping(mapping),
            Err(refused) => {
                self.expect::<()>(Err(refused.error), &["no_memory"])?;
                drop(refused.value);
                return Ok(After::Gone);
            }
        }
        slot.check(all, self.board)?;
        for page in &mut slot.pages {
            (page.lazy, page.own) = (false, true);
        }
        Ok(After::Kept)
    }

    pub fn lazy_free(&self, slot: &mut Slot, part: Part) -> Result<(), Wrong> {
        let refused = Self::refusal(slot, part, slot.kind.is_private_anonymous());
        // SAFETY: as for `free`.
        let answer = unsafe { slot.part(part.0, part.1).lazy_free() };
        if self.expect_or(answer, refused)?.is_some() {
            Self::freed(slot, part, FreePolicy::Lazy);
        }
        Ok(())
    }

    pub fn mark(
        &self,
        slot: &mut Slot,
        part: Part,
        priority: Priority,
        now: bool,
    ) -> Result<(), Wrong> {
        let range = slot.part(part.0, part.1);
        if let Body::Buffer(buffer) = &mut slot.body {
            buffer.mark_volatile_with(priority);
            slot.pages.iter_mut().for_each(|page| page.volatile = true);
            return Ok(());
        }
        let answer = match now {
            // SAFETY: what is volatile is only touched through the kernel, and the
            // range only unmapped through tenure.
            true => unsafe { range.mark_volatile_now(priority) },
            // SAFETY: as above.
            false => unsafe { range.mark_volatile_with(priority) },
        };
        let refused = Self::refusal(slot, part, slot.kind.is_private_anonymous());
        // What is volatile, or was before, is not looked at again.
        let marked = match refused {
            Some("locked") => self.expect(answer, &["locked"])?,
            refused => self.expect_or(answer, refused)?,
        };
        if marked.is_some() {
            slot.known(part)
                .iter_mut()
                .for_each(|page| page.volatile = true);
        }
        Ok(())
    }

    pub fn unmark(&self, slot: &mut Slot, part: Part) -> Result<(), Wrong> {
        let whole = (0, slot.pages.len());
        let (part, answer) = match &mut slot.body {
            Body::Buffer(buffer) => (whole, buffer.mark_nonvolatile()),
            // SAFETY: the range is this thread's.
            _ => (part, unsafe {
                slot.part(part.0, part.1).mark_nonvolatile()
            }),
        };
        let Some(outcome) = self.expect(answer, &[])? else {
            return Ok(());
        };
        let lost = slot.unmarked(part, &outcome, self.board)?;
        if mem::take(&mut slot.is_not_whole) && lost == 0 {
            return Err(Wrong::new(
                "a buffer that was not whole",
                "a loss",
                "intact",
            ));
        }
        Ok(())
    }

    pub fn purge(&self, slot: &mut Slot, part: Part) -> Result<(), Wrong> {
        let whole = (0, slot.pages.len());
        let (part, answer) = match &mut slot.body {
            Body::Buffer(buffer) => (whole, buffer.purge()),
            // SAFETY: as above.
            _ => (part, unsafe { slot.part(part.0, part.1).purge() }),
        };
        let is_locked = slot.has(part, |page| page.volatile && page.lock.is_some());
        let may_be: &[&str] = if is_locked { &["locked", "other"] } else { &[] };
        // Of an error some may be done.
        if self.expect(answer, may_be)?.is_some() {
            slot.known(part).iter_mut().for_each(|page| page.purged());
        }
        Ok(())
    }

    pub fn discard(&self, slot: &mut Slot, part: Part) -> Result<(), Wrong> {
        let is_private = !slot.kind.is_shared();
        let refused = Self::refusal(slot, part, is_private);
        // SAFETY: the contents are given up, and nothing borrows them.
        let answer = unsafe { slot.part(part.0, part.1).discard() };
        if self.expect_or(answer, refused)?.is_some() {
            slot.emptied(part);
        }
        slot.check(part, self.board)
    }

    pub fn punch(&self, slot: &mut Slot, part: Part) -> Result<(), Wrong> {
        let refused = Self::refusal(slot, part, slot.kind.is_shared());
        // SAFETY: as for `discard`; no child uses it while its parent goes on.
        let answer = unsafe { slot.part(part.0, part.1).punch() };
        let may_be_refused = slot.kind == Kind::File && refused.is_none();
        let punched = match may_be_refused {
            // Some file systems have no holes.
            true => self.expect(answer, &["unsupported"])?,
            false => self.expect_or(answer, refused)?,
        };
        if punched.is_some() {
            slot.emptied(part);
        }
        slot.check(part, self.board)
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

    /// Unmaps pages; of what is left the longer piece is kept.
    pub fn cut(&self, slot: &mut Slot, part: Part) -> Result<(), Wrong> {
        let count = slot.pages.len();
        let (first, kept) = kept(count, part.0, part.1);
        if kept == count {
            return Ok(());
        }
        let middle = slot.part(part.0, part.1);
        let rest: Vec<PageRange> = [(0, part.0), (part.0 + part.1, count - part.0 - part.1)]
            .into_iter()
            .filter(|&piece| piece != (first, kept) && piece.1 > 0)
            .map(|(first, count)| slot.part(first, count))
            .collect();
        slot.cut((first, kept));
        // SAFETY: nothing borrows it, and it belongs to no mapping any more.
        self.expect(unsafe { middle.munmap() }, &[])?;
        slot.check((0, kept), self.board)?;
        for piece in rest {
            // SAFETY: as above.
            self.expect(unsafe { piece.munmap() }, &[])?;
        }
        slot.check((0, kept), self.board)
    }

    pub fn end(&self, slot: Slot, end: End) -> Result<(), Wrong> {
        let answer = match slot.body {
            Body::Mapping(mapping) => match end {
                End::Munmap => mapping.munmap().map_err(Error::from),
                End::Now => mapping.release_now().map_err(Error::from),
                End::Drop => {
                    drop(mapping);
                    Ok(())
                }
            },
            // SAFETY: nothing borrows it, and it belongs to no mapping.
            Body::Range(range) => unsafe { range.munmap() },
            Body::Buffer(buffer) => {
                drop(buffer);
                Ok(())
            }
        };
        self.expect(answer, &[]).map(drop)
    }

    pub fn read_volatile(&self, slot: &mut Slot, (first, count): Part) -> Result<(), Wrong> {
        let Body::Buffer(buffer) = &slot.body else {
            return Ok(());
        };
        let count = count.min(64);
        let mut bytes = vec![0; count * tenure::page_size()];
        let answer = buffer.read_volatile_into(first * tenure::page_size(), &mut bytes);
        let may_be: &[&str] = match buffer.is_volatile() {
            true if slot.pages.iter().any(|page| page.own) => &["purged"],
            _ => &[],
        };
        if self.expect(answer, may_be)?.is_none() {
            return Ok(());
        }
        for (index, page) in (first..).zip(bytes.chunks_exact(tenure::page_size())) {
            let at = slot.part(index, 1).start();
            let looked = slot.pages[index].look(super::model::Seen::Bytes(page));
            looked.map_err(|wrong| Wrong {
                page: Some(at),
                ..wrong
            })?;
        }
        self.board.add(Count::PagesChecked, count as u64);
        Ok(())
    }

    pub fn is_whole(&self, slot: &mut Slot) -> Result<(), Wrong> {
        let Body::Buffer(buffer) = &slot.body else {
            return Ok(());
        };
        let is_volatile = buffer.is_volatile();
        let Some(is_whole) = self.expect(buffer.is_whole(), &[])? else {
            return Ok(());
        };
        let known_gone = slot.pages.iter().any(|page| page.gone);
        if is_whole && (known_gone || slot.is_not_whole) || !is_whole && !is_volatile {
            return Err(Wrong::new("is_whole", !is_whole, is_whole));
        }
        slot.is_not_whole |= !is_whole;
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
