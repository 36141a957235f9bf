//! Control over the life of memory on stock Linux kernels.
//!
//! Five verbs over one noun, an address range of whole pages:
//!
//! | verb | what it does | method |
//! | --- | --- | --- |
//! | populate | faults a range in now, for reading or for writing | [`Mapping::populate`] |
//! | lock | keeps pages in memory, at once or from the first fault on | [`Mapping::lock`] |
//! | lazy free | contents are no longer needed; the kernel takes the pages when it must | [`Mapping::lazy_free`] |
//! | volatile | contents are wanted, but the kernel may take them, and then says so | [`VolatileBuffer`] |
//! | release | the range goes away, or its contents do, at once for the caller | [`Mapping::munmap`], [`Mapping::discard`] |
//!
//! Each has a safe form on [`Mapping`], which owns its memory, and an `unsafe`
//! form on [`PageRange`], which names any addresses of the process.
//!
//! Beside the verbs, [`teardown`] lets a parent's `wait` return before the memory
//! of this process is freed.
//!
//! A verb looks at the mappings before it changes anything: a range that is
//! not aligned, has a hole or is the wrong kind of memory is an [`Error`] that
//! says what to do, and nothing has been done.
//!
//! Ready-made things stand on the verbs: [`SecretBuffer`] keeps secrets,
//! [`VolatileCache`] as many values as there is memory for.
//!
//! # Threads, forks and signals
//!
//! Every verb may be called from several threads at once. No signal handler is
//! installed. The worker thread that frees memory (`tenure-free`) starts when
//! there is work, blocks all signals, and ends when there is none. After `fork`
//! the child has its volatile ranges protected anew, no locks, and nothing
//! pending; a child made by a bare `clone` has not. Tear-down, where enabled,
//! makes a process, and no child inherits it. A program that forks while other
//! threads may be at their first call of a verb calls [`prepare()`] beforehand.
//!
//! # Features
//!
//! Linux only. [`Features::get`] tells what the running kernel can do.

#![warn(missing_docs)]

#[cfg(not(target_os = "linux"))]
compile_error!("tenure is built on Linux's own memory calls");

/// The README's example runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

mod background;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod ground;
mod observation;
mod prepare;
mod ready;
mod verbs;

pub use background::freeing::ReleaseLimits;
pub use ground::error::{Error, MemoryKind, Refused, Result};
pub use ground::mapping::{HugePages, Mapping, MappingBuilder, MemfdPages};
pub use ground::range::PageRange;
pub use ground::room_bound::RoomBound;
pub use ground::sys::cgroup::MemoryCgroup;
pub use ground::sys::features::Features;
pub use ground::sys::{Errno, page_size};
pub use observation::pressure;
pub use observation::residency::Residency;
pub use observation::room::Room;
pub use observation::stats::{Count, Stats, stats};
pub use prepare::prepare;
pub use ready::{CacheStats, LockedFile, Pinned, SecretBuffer, VolatileCache};
pub use verbs::teardown;
pub use verbs::{
    Access, BackgroundPopulate, CancelToken, FreePolicy, LazilyFreed, LockAll, LockMode, LockModes,
    MmapRequest, Outcome, PopulateOptions, Priority, Progress, Strategy, VolatileArena,
    VolatileBuffer, drain, lock_all, purge_all, set_hand_over_delay, unlock_all,
};
