//! The ENGINE lock, and the fork handlers without which nothing may become volatile.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use super::park_state::ParkState;
use super::state::Registry;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::fork::{self, ForkGuard, ForkMutex};
use crate::ground::sys::{Errno, vma};
use crate::observation::stats;
use crate::verbs::check_private_anonymous;
use crate::verbs::volatile::engine::MAX_MAPPINGS;
use crate::verbs::volatile::error::VERB;

/// Guards all volatile memory of the process, except for the words of objects.
pub(crate) static ENGINE: EngineLock = EngineLock(ForkMutex::new(Registry::new(), start_in_child));

/// Whether the offer thread runs, sleeps or is absent. A child begins without one.
pub(crate) static OFFER_THREAD: ParkState = ParkState::absent(AtomicU8::new(0));

/// Whether this is a child that inherited volatile memory. Its offer thread cannot be
/// started in the fork handler.
static IS_ORPHANED: AtomicBool = AtomicBool::new(false);

/// A mutex that a forking thread holds across `fork`.
pub(crate) struct EngineLock(ForkMutex<Registry>);

impl EngineLock {
    pub(crate) fn lock(&'static self) -> ForkGuard<Registry> {
        self.0.lock()
    }

    /// Lets the threads that wait for the lock have it: a thread that works in chunks would
    /// take it again before a waiting one is awake. The caller does not hold it.
    pub(crate) fn give_way(&'static self) {
        self.0.give_way();
    }

    /// Locks the registry for one of many pieces of work, after the threads that wait.
    pub(crate) fn lock_in_turn(&'static self) -> ForkGuard<Registry> {
        self.give_way();
        self.lock()
    }

    /// Unlocks the registry between two pieces of work, and locks it again after the threads
    /// that wait.
    pub(crate) fn relock_in_turn(
        &'static self,
        registry: ForkGuard<Registry>,
    ) -> ForkGuard<Registry> {
        drop(registry);
        self.lock_in_turn()
    }

    /// Locks the registry for a thread that makes memory volatile, which a child has to
    /// protect anew: fails if the fork handlers cannot be registered. All that is in the
    /// registry or the engine came in after this, so that nothing below checks again.
    pub(crate) fn lock_to_insert(&'static self) -> Result<ForkGuard<Registry>> {
        register_fork_handlers().map_err(|errno| Error::System {
            call: "pthread_atfork",
            errno,
        })?;
        Ok(self.lock())
    }
}

/// Checks that a range which is not all validated can be volatile, and returns the lock to
/// mark it under. Very many mappings are read without the lock, and checked in parts between
/// which other threads get it: the caller keeps such a range mapped meanwhile.
pub(crate) fn lock_validated(range: PageRange) -> Result<ForkGuard<Registry>> {
    let mut registry = ENGINE.lock_to_insert()?;
    if vma::first_part(range, MAX_MAPPINGS).0 == range {
        let vmas = check_private_anonymous(VERB, range)?;
        registry.engine.validate(range, &vmas)?;
        return Ok(registry);
    }
    drop(registry);
    let vmas = check_private_anonymous(VERB, range)?;
    registry = ENGINE.lock();
    for part in vmas.chunks(MAX_MAPPINGS) {
        registry.engine.validate(range, part)?;
        registry = ENGINE.relock_in_turn(registry);
    }
    Ok(registry)
}

/// Ends the volatility of a range that is about to be unmapped, and forgets the arenas in it.
pub(crate) fn forget(range: PageRange) {
    ENGINE.lock().arenas.remove_within(range);
    forget_in_chunks(range);
}

/// Ends the volatility of a range that stays mapped and whose contents go away.
///
/// # Errors
///
/// [`Error::MappingLimit`], with nothing done, when that would split a registration and too
/// few mappings are left.
pub(crate) fn forget_contents(range: PageRange) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let mut registry = ENGINE.lock();
    registry.engine.check_split(range)?;
    for part in registry.engine.unregister_cut_spans(range)? {
        registry.forget_marks(part);
    }
    drop(registry);
    forget_in_chunks(range);
    Ok(())
}

fn forget_in_chunks(range: PageRange) {
    let mut rest = range;
    if rest.is_empty() {
        return;
    }
    let mut registry = ENGINE.lock_in_turn();
    loop {
        let part = registry.first_part(rest);
        if part == rest {
            break;
        }
        // The spans of the part are unregistered below, where no chunk splits one. Without
        // marks, unmarking it in a child asks the engine.
        registry.forget_records(part);
        rest = PageRange::between(part.end(), rest.end());
        registry = ENGINE.relock_in_turn(registry);
    }
    rest = range;
    loop {
        rest = registry.forget_chunk(rest);
        if rest.is_empty() {
            return;
        }
        registry = ENGINE.relock_in_turn(registry);
    }
}

/// Returns whether this is a forked child with volatile memory and without an offer
/// thread, at the first call.
#[inline]
pub(crate) fn take_orphaned() -> bool {
    IS_ORPHANED.load(Ordering::Relaxed) && IS_ORPHANED.swap(false, Ordering::Relaxed)
}

/// Has every later fork protect the child's copy of volatile memory.
pub(crate) fn register_fork_handlers() -> Result<(), Errno> {
    static ENTRY: fork::Entry = fork::Entry::new(&ENGINE.0);
    stats::before_reading(&(flush_counts as fn()));
    fork::register(&ENTRY)
}

fn flush_counts() {
    ENGINE.lock().flush_counts();
}

/// Makes system calls only: neither allocates nor frees.
fn start_in_child(registry: &mut Registry) {
    OFFER_THREAD.set_absent();
    let is_orphaned = registry.start_in_child();
    IS_ORPHANED.store(is_orphaned, Ordering::Relaxed);
}
