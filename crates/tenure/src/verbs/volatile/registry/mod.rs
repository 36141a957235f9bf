//! The registry of volatile memory: the marks on plain ranges, the objects with a mapping
//! of their own, and the lock that guards both, the arenas, and the engine below them.
//!
//! Within the offer delay, marking and unmarking change only what is recorded here: an
//! object's [word](super::word::Word) by compare-and-swap, without a lock, or a plain range's mark under
//! the ENGINE lock. A word is Busy while the ENGINE lock holder changes what the kernel
//! knows of its object: a thread that unmarks a Busy object waits for the lock.
//!
//! `crates/tenure-model` includes `word` and `park_state` with loom's atomics and runs
//! them through all interleavings. For that they name what they import by `super`.

mod candidates;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod lock;
#[cfg(test)]
pub(crate) mod many_mappings;
mod marks;
mod objects;
mod offer;
mod park_state;
mod purge;
mod revoke;
mod state;

pub(crate) use candidates::Candidate;
pub(crate) use lock::{
    ENGINE, OFFER_THREAD, forget, forget_contents, lock_validated, register_fork_handlers,
    take_orphaned,
};
pub(crate) use objects::Object;
pub(crate) use purge::{contents_valid, misses_pages, purge, purge_if_partial};
pub(crate) use revoke::{revoke_object, revoke_range};
pub(crate) use state::Registry;

use super::sync;
