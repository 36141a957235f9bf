//! The engine: what the kernel has been offered, and what it has purged.
//!
//! **Offer.** The engine asks the kernel again what is mapped in the range, maps the zero
//! page where a page is absent, registers the range with the process's userfaultfd in
//! SIGBUS mode, and calls MADV_FREE. From then on an absent page is a purged page. If the
//! range cannot be offered (it was locked or replaced by other code) its pages stay
//! resident; [`stats`](crate::stats()) counts them.
//!
//! **Revoke.** PAGEMAP_SCAN finds the absent pages, which the engine records as purged
//! and fills with zeros. MADV_POPULATE_WRITE takes the others back; it stops with EFAULT
//! at a page that the kernel has reclaimed meanwhile, so the engine repeats both until a
//! pass meets no absent page. A page that was found purged stays recorded until it is
//! reported, even if the call then fails.
//!
//! **Arenas** are registered once, as a whole. The pages of their buffers are present at
//! all times (zero pages at first), so that an absent page is a purged page there, too.
//!
//! **Without userfaultfd** or MADV_POPULATE_WRITE nothing is offered. Purging then
//! installs guard regions, or PROT_NONE before Linux 6.13.
//!
//! **Lost protection.** The program can close the descriptor, replace a mapping, or fork.
//! The descriptor's inode tells whether it is still the engine's. UFFDIO_CONTINUE, which
//! never succeeds on private anonymous memory, answers ENOENT where nothing is
//! registered. A range that has lost its protection is reported as purged whole. After
//! fork the child registers its copy before it can touch a page; a range that it cannot
//! register becomes inaccessible.
//!
//! All of this is guarded by the ENGINE lock. Nothing here knows of marks, objects or
//! words: callers pass ranges that are volatile.

mod arenas;
mod fork;
mod free_extents;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod offer;
mod page_set;
mod places;
mod purge;
mod revoke;
mod state;
mod validate;

pub(crate) use state::{Engine, can_offer};
