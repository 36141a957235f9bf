//! The operations on memory: each calls a verb, compares the answer with those that are
//! allowed, and updates the models of the pages.

mod large;
mod recycle;
mod release;
mod volatile;

use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use tenure::lock::LockFlags;
use tenure::populate::{CancelToken, PopulateOptions, Strategy};
use tenure::{Access, Error, LockMode, page_size};

use super::board::Board;
use super::model::{Checked, mismatch};
use super::peek;
use super::shortage::Begin;
use super::slot::{Body, Part, Slot};
use super::step::{Count, Populate};

pub use large::{Scale, unoffered_bytes};

macro_rules! errors {
    ($($variant:ident = $name:literal,)+) => {
        [$(($name, |error| matches!(error, Error::$variant { .. })),)+ ("other", |_| true)]
    };
}

/// An error's name in the report, and whether an error is this one.
type ErrorName = (&'static str, fn(&Error) -> bool);

pub const ERRORS: [ErrorName; 16] = errors! {
    Locked = "locked",
    WrongKind = "wrong_kind",
    LockLimit = "lock_limit",
    ProcessLockLimit = "process_lock_limit",
    NoMemory = "no_memory",
    NoBacking = "no_backing",
    NoAccess = "no_access",
    Cancelled = "cancelled",
    Purged = "purged",
    Volatile = "volatile",
    Unsupported = "unsupported",
    ArenaFull = "arena_full",
    MappingLimit = "mapping_limit",
    OutOfBounds = "out_of_bounds",
    NotAdmitted = "not_admitted",
};

/// The state that a worker's operations use.
pub struct Tools<'a> {
    pub board: &'a Board,
    pub patterns: Rng,
    /// RLIMIT_MEMLOCK does not bind this process.
    pub may_lock_anything: bool,
    /// When the operation began.
    begin: Begin,
}

impl<'a> Tools<'a> {
    pub fn new(board: &'a Board, seed: u64) -> Self {
        Self {
            board,
            patterns: Rng::with_seed(seed),
            may_lock_anything: may_lock_anything(),
            begin: Begin::now(),
        }
    }

    /// Begins an operation, which only shortages from now on explain.
    pub fn begin(&mut self) {
        self.begin = Begin::now();
    }

    /// Whether no descriptor was left at some time since the operation began. In a child
    /// that was forked in it: whether tenure may have been unable to protect volatile memory.
    pub fn has_lacked_descriptors(&self) -> bool {
        self.begin.has_lacked_descriptors()
    }

    /// Returns the value of an answer, or `None` for one of the allowed errors, and for one
    /// that a shortage explains.
    pub fn expect<T>(&self, answer: Result<T, Error>, allowed: &[&str]) -> Checked<Option<T>> {
        match answer {
            Err(error) if self.begin.explains_no_memory(&error) => {
                self.board.add(Count::NoMemory, 1);
                Ok(None)
            }
            answer => self.expect_release(answer, allowed),
        }
    }

    /// The same for a call that takes no memory, so that RLIMIT_DATA does not explain an
    /// error.
    pub fn expect_release<T>(
        &self,
        answer: Result<T, Error>,
        allowed: &[&str],
    ) -> Checked<Option<T>> {
        let error = match answer {
            Ok(value) => return Ok(Some(value)),
            Err(error) if self.begin.explains_no_descriptor(&error) => {
                self.board.add(Count::NoDescriptor, 1);
                return Ok(None);
            }
            Err(error) => error,
        };
        let index = ERRORS.iter().position(|(_, is)| is(&error));
        let index = index.unwrap_or(ERRORS.len() - 1);
        if allowed.contains(&ERRORS[index].0) {
            self.board.expected_errors[index].fetch_add(1, Relaxed);
            return Ok(None);
        }
        let expected = ["success"].iter().chain(allowed).copied();
        let expected = expected.collect::<Vec<_>>().join(" or ");
        mismatch("an unexpected error", expected, error)
    }

    /// Repeats a release that finds no descriptor until there are some again.
    fn release(&self, mut call: impl FnMut() -> Result<(), Error>) -> Checked {
        while self.expect_release(call(), &[])?.is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Returns the value of an answer of a release, or `None` for the required error, if one
    /// is named.
    fn expect_refusal<T>(
        &self,
        answer: Result<T, Error>,
        required: Option<&str>,
    ) -> Checked<Option<T>> {
        let Some(required) = required else {
            return self.expect_release(answer, &[]);
        };
        match self.expect_release(answer, &[required])? {
            None => Ok(None),
            Some(_) => mismatch("no error", required, "success"),
        }
    }

    /// Returns this error where RLIMIT_MEMLOCK binds the process. Without a descriptor tenure
    /// cannot read how much is locked, and the kernel's error stays as it is.
    pub fn if_lock_limited(&self, error: &'static str) -> Vec<&'static str> {
        match self.may_lock_anything {
            true => Vec::new(),
            false if self.has_lacked_descriptors() => vec![error, "other"],
            false => vec![error],
        }
    }

    pub fn populate(&mut self, slot: &mut Slot, part: Part, how: Populate) -> Checked {
        let range = slot.part(part);
        let token = CancelToken::new();
        let mut options = PopulateOptions::new(how.access)
            .strategy(how.strategy)
            .threads(how.threads)
            .cancel(&token);
        if how.chunk_pages > 0 {
            options = options.chunk_bytes(how.chunk_pages * page_size());
        }
        if how.cancel {
            options = options.progress(move |_| token.cancel());
        }
        let bounds = part.0 * page_size()..(part.0 + part.1) * page_size();
        let answer = match &slot.body {
            // SAFETY: the range is this thread's, and stays mapped until `wait` returns.
            _ if how.in_background => unsafe { range.populate_in_background(&options) }
                .and_then(|arriving| arriving.wait()),
            Body::Mapping(mapping) => mapping.populate_with(bounds, &options),
            // SAFETY: the range is this thread's, and nothing relies on absent pages.
            _ => unsafe { range.populate_with(&options) },
        };
        let mut allowed = vec!["no_memory"];
        if how.cancel {
            allowed.push("cancelled");
        }
        if slot.any(part, |page| page.volatile) {
            // Purged pages cannot be populated.
            allowed.extend(["no_backing", "no_access", "other"]);
        }
        if how.strategy == Strategy::ReadThenWrite && how.access == Access::Read {
            allowed.push("wrong_kind");
        }
        if how.strategy == Strategy::AllocateThenPopulate {
            allowed.extend(["wrong_kind", "unsupported"]);
        }
        let is_write = how.access == Access::Write;
        for page in slot.pages_of(part) {
            page.backed |= is_write;
        }
        if self.expect(answer, &allowed)?.is_none() {
            return Ok(());
        }
        slot.check(part, self.board)?;
        for page in slot.pages_of(part).iter_mut().filter(|page| !page.volatile) {
            page.lazily_free &= !is_write;
        }
        Ok(())
    }

    pub fn lock(&self, slot: &mut Slot, part: Part, mode: LockMode) -> Checked {
        // SAFETY: the range is this thread's.
        let answer = unsafe { slot.part(part).lock(mode) };
        let mut allowed = self.if_lock_limited("lock_limit");
        if slot.any(part, |page| page.volatile) {
            allowed.extend(["no_backing", "no_access", "other"]);
        }
        let is_locked = self.expect(answer, &allowed)?.is_some();
        for page in slot.pages_of(part) {
            page.backed |= mode == LockMode::Now;
            page.lock = if is_locked { Some(mode) } else { page.lock };
        }
        Ok(())
    }

    pub fn unlock(&self, slot: &mut Slot, part: Part, flags: LockFlags) -> Checked {
        // SAFETY: the range is this thread's.
        self.expect(unsafe { slot.part(part).unlock(flags) }, &[])?;
        let is_cleared = |lock: LockMode| match lock {
            LockMode::Now => flags == LockFlags::ALL || flags == LockFlags::NOW,
            LockMode::OnFault => flags == LockFlags::ALL || flags == LockFlags::ON_FAULT,
        };
        for page in slot.pages_of(part) {
            page.lock = page.lock.filter(|&lock| !is_cleared(lock));
        }
        Ok(())
    }

    /// Returns the error that a verb which can lose contents must return.
    fn refusal(slot: &Slot, part: Part, is_right_kind: bool) -> Option<&'static str> {
        let is_locked = slot.any(part, |page| page.lock.is_some());
        match is_right_kind {
            false => Some("wrong_kind"),
            true => is_locked.then_some("locked"),
        }
    }

    pub fn page_out(&self, slot: &Slot, part: Part) {
        peek::page_out(slot.part(part));
        self.board.add(Count::PageOuts, 1);
    }

    pub fn residency(&self, slot: &mut Slot, part: Part) -> Checked {
        let range = slot.part(part);
        if let Some(residency) = self.expect(range.residency(), &[])?
            && (residency.resident_bytes > range.len()
                || residency.mapped_bytes + residency.reserved_bytes != range.len())
        {
            let expected = format!("the residency of {range}");
            return mismatch("the residency", expected, format!("{residency:?}"));
        }
        let holes = self.expect(range.holes(), &[])?.unwrap_or_default();
        if slot.kind.is_file() {
            return Ok(());
        }
        for hole in holes {
            let first = (hole.start() - slot.range().start()) / page_size();
            for index in first..first + hole.pages() {
                let page = &mut slot.pages[index];
                let is_in_use = page.pattern != 0 && !page.lazily_free;
                page.purged |= is_in_use && page.volatile;
                if is_in_use && !page.volatile {
                    return mismatch(&slot.page_text(index), "memory", "a hole");
                }
            }
        }
        Ok(())
    }
}

fn may_lock_anything() -> bool {
    use rustix::process::{Resource, getrlimit};
    use rustix::thread::{CapabilitySet, capabilities};
    let is_privileged =
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    is_privileged || getrlimit(Resource::Memlock).current.is_none()
}
