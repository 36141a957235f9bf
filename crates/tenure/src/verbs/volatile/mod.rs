//! volatile: the contents are wanted, but the kernel may purge them. Using a purged page
//! is SIGBUS, and unmarking reports which pages were purged. Where userfaultfd is unavailable
//! it is SIGSEGV, and before Linux 6.13 each purged range is then a mapping of its own, of which
//! a process may have `vm.max_map_count`.
//!
//! Two forms have the same meaning. A [`VolatileBuffer`] owns its memory and is volatile as
//! a whole or not at all: marking it is one compare-and-swap. Any
//! [`PageRange`](crate::PageRange) can be marked as well, which takes a lock of the
//! process. Below, the word of a buffer and its range together are an *object*.
//!
//! # How it works
//!
//! The word of an object, or the mark of a range in the registry, says volatile or not;
//! marking and unmarking change that and nothing else. The engine below them records what
//! the kernel has been offered. Between the two stands the offer thread: it offers what
//! has been volatile for longer than the
//! [offer delay](set_offer_delay), and purges when memory is short.
//!
//! Pages that another process has, too, since a fork are not offered before that process has
//! ended or has written them: Linux could discard them there as well.
//!
//! A range travels down through these layers, each of which uses only those below it:
//!
//! 1. the forms that programs call: `range`, `buffer`, `purge_all`;
//! 2. `offer_thread`: when to offer, and what to purge under memory pressure;
//! 3. `arenas`: buffers that share a mapping, with their words in a table;
//! 4. `registry`: marks, objects with a mapping of their own, and the ENGINE lock;
//! 5. `engine`: what the kernel has been offered (offer, revoke, purge);
//! 6. `ground/sys`: userfaultfd, PAGEMAP_SCAN, madvise.

mod arenas;
mod buffer;
mod candidates;
mod counts;
mod engine;
mod error;
mod offer_thread;
mod options;
mod outcome;
mod priority;
mod purge_all;
mod range;
mod registry;
mod sync;
mod word;

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing {
    pub(crate) use super::arenas::fuzzing::free_extents;
    pub(crate) use super::registry::fuzzing::{marks, objects};
}

pub use arenas::VolatileArena;
pub use buffer::VolatileBuffer;
pub(crate) use buffer::{NewlyPinned, Pins};
#[doc(hidden)]
pub use offer_thread::DEFAULT_DELAY;
pub use offer_thread::set_offer_delay;
pub use options::VolatileOptions;
pub use outcome::Outcome;
pub use priority::Priority;
pub use purge_all::purge_all;

#[doc(hidden)]
pub use offer_thread::offer_if_short;
pub(crate) use offer_thread::{is_offered_at_once, max_reading_age, sixteenth_of_limit};
pub(crate) use registry::register_fork_handlers;
pub(super) use registry::{forget, forget_contents};
pub(crate) use word::Unpinned;
