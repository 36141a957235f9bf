//! The engine: what the kernel has been offered, and what it has purged.
//!
//! **Offer.** The engine searches the page tables of the range for spans of populated pages:
//! what was never touched cannot be lost. For each span it asks the kernel again what is
//! mapped there, maps the zero page in its gaps, which are shorter than 2 MiB, registers it
//! with the process's userfaultfd in SIGBUS mode, and calls MADV_FREE. From then on an
//! absent page of the span is a purged page. If a span cannot be offered (it was locked or
//! replaced by other code) its pages stay resident; [`stats`](crate::stats()) counts them.
//!
//! **Revoke.** PAGEMAP_SCAN finds the absent pages, which the engine records as purged
//! and fills with zeros. MADV_POPULATE_WRITE takes the others back; it stops with EFAULT
//! at a page that the kernel has reclaimed meanwhile, so the engine repeats both until a
//! pass meets no absent page. A page that was found purged stays recorded until it is
//! reported, even if the call then fails. When all of the range is populated, its
//! registrations end.
//!
//! **Chunks.** One call works on 16 MiB at most, about a millisecond, and its caller
//! releases ENGINE before the next one. The record is true between two chunks: a
//! child that is forked there protects its copy, and another thread may mark, unmark, purge
//! or unmap the range. `repopulated` lists what an unmark has populated and not unregistered
//! yet; whoever offers or purges such a page removes it there, and the unmark, which ends
//! when all of the range is in that list, populates it again.
//!
//! **Mappings.** A registration can split its mapping in three. All of them together take a
//! quarter of vm.max_map_count at most; from half of that on, gaps of up to 16 MiB become
//! part of a span. An offer that would need more is refused.
//!
//! **Without userfaultfd** or MADV_POPULATE_WRITE nothing is offered. Purging then
//! installs guard regions, or PROT_NONE before Linux 6.13.
//!
//! **Lost protection.** The program can close the descriptor, replace a mapping, or fork.
//! The descriptor's inode tells whether it is still the engine's. If it is not, the engine
//! uses that of the thread in `ground/sys/private_files`, which no program closes; where
//! the thread cannot be started, the protection has ended. UFFDIO_CONTINUE, which
//! never succeeds on private anonymous memory, answers ENOENT where nothing is
//! registered. A range that has lost its protection is reported as purged whole. After
//! fork the child registers its copy before it can touch a page; a range that it cannot
//! register becomes inaccessible.
//!
//! All of this is guarded by the ENGINE lock. Nothing here knows of marks, objects or
//! words: callers pass ranges that are volatile.

mod arena_calls;
mod fork;
mod offer;
mod page_set;
mod purge;
mod revoke;
mod state;
mod validate;

pub(crate) use offer::{CHUNK_BYTES, SEARCH_BYTES, left_out_of};
pub(crate) use revoke::Revoked;
pub(crate) use state::{Engine, can_offer};
pub(crate) use validate::{MAX_MAPPINGS, first_mappings};
