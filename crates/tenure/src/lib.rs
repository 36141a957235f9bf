//! Control over the life of memory on stock Linux kernels: populate it, lock it, let
//! the kernel reclaim it, and release it without waiting.
//!
//! tenure wraps the kernel's memory calls (`madvise(2)`, `mlock2(2)`, `mremap(2)`,
//! `userfaultfd(2)` and others) as five *verbs* over one noun, an address range of whole
//! pages. It checks a range before it changes it, splits large operations so that other
//! threads' `mmap` does not wait, and works around what kernel versions and containers
//! lack.
//!
//! | verb | meaning | safe form | kernel calls |
//! | --- | --- | --- | --- |
//! | [populate] | faults a range in now, for reading or for writing | [`Mapping::populate`] | `MADV_POPULATE_READ`, `MADV_POPULATE_WRITE` |
//! | [lock] | keeps pages resident, from now or from their first use on | [`Mapping::lock`] | `mlock`, `mlock2` |
//! | [lazy_free] | contents are no longer needed; the kernel reclaims the pages when it needs memory | [`Mapping::lazy_free`], [`Mapping::free`] | `MADV_FREE` |
//! | [volatile] | contents are wanted, but the kernel may purge them, and the program learns which pages it purged | [`VolatileBuffer`] | `userfaultfd`, `MADV_FREE` |
//! | [release] | the range goes away, or its contents do, and the caller does not wait | [`Mapping::munmap`], [`Mapping::discard`] | `mremap`, `munmap` |
//!
//! The kernel *reclaims* a page when it needs its memory for something else. The contents
//! of a lazily free page are then gone without notice; those of a volatile page are
//! *purged*, which the program is told. A volatile range is *offered* to the kernel when it
//! has been volatile for 100 ms, or at once under memory pressure; before that the kernel
//! does not know of it. The file ARCHITECTURE.md has a glossary.
//!
//! Each verb has a safe form on [`Mapping`] (or [`VolatileBuffer`]), which owns its memory,
//! and an `unsafe` form on [`PageRange`], which names any addresses of the process.
//! Bounds given to the safe forms are byte offsets. Verbs that keep contents round them
//! outward to whole pages; verbs that destroy contents require whole pages.
//!
//! Every verb checks the mappings of its range first. If the range is not aligned, has
//! a hole (a part that is not mapped) or is the wrong kind of memory, the call returns an [`Error`] that says what to
//! do, and has changed nothing. (Only [`PageRange::munmap`] accepts holes and every kind
//! of memory, as `munmap(2)` does.)
//!
//! # Ways to give memory up
//!
//! These calls differ in what the contents and the addresses are afterwards, and in who
//! frees the pages:
//!
//! | call | contents afterwards | addresses afterwards | cost for the caller | who frees the pages, and when | memory |
//! | --- | --- | --- | --- | --- | --- |
//! | [`lazy_free`](Mapping::lazy_free), [`free`](Mapping::free) with [`Lazy`] | old bytes or zeros, without notice, until written | mapped | a pass over the page tables; no page is freed | the kernel, when it needs memory | private anonymous |
//! | [`free`](Mapping::free) with [`Eager`] | zeros | mapped | frees every page | the caller, before the call returns | private anonymous |
//! | [`free`](Mapping::free) with [`Adaptive`] | as `Lazy` | mapped | as `Lazy`, or as `Eager` under [`pressure`] | the kernel, when it needs memory or pressure is severe; or the caller | private anonymous |
//! | [`discard`](Mapping::discard) | zeros; a private file mapping reads as the file again | mapped | microseconds where the range has 4 MiB and more of one mapping; the rest, and files, are freed at once | worker threads, at once after the call | private anonymous, private file |
//! | [`punch`](Mapping::punch) | zeros, in every process and in the file | mapped | frees every page or block | the caller, before the call returns | shared, shared file |
//! | [`munmap`](Mapping::munmap), dropping the [`Mapping`] | none | unmapped | microseconds for anonymous memory, 4 MiB and more of one mapping; otherwise frees every page | worker threads, at once after the call | all |
//! | [`munmap_sync`](Mapping::munmap_sync) | none | unmapped | frees every page | the caller, before the call returns | all |
//! | [`mark_volatile`](VolatileBuffer::mark_volatile) | kept until purged; then an access is SIGBUS, and [`mark_nonvolatile`](VolatileBuffer::mark_nonvolatile) tells which pages are zeros | mapped | 25–36 ns (a [`PageRange`], whose mark is under a lock: 0.12–0.2 µs); unmarking takes a pass over the pages once they have been offered to the kernel | the kernel, when it needs memory, or tenure under severe pressure | private anonymous |
//! | [`purge`](VolatileBuffer::purge) | purged now, as if the kernel had purged them | mapped, still volatile | frees every page | the caller, before the call returns | volatile ranges |
//!
//! The nanoseconds are those of `tenure bench volatile` on a virtual machine with 2 CPUs
//! (`docs/RESULTS.md`). [`drain`] waits until the worker threads have freed all pending
//! memory.
//!
//! [`Lazy`]: lazy_free::FreePolicy::Lazy
//! [`Eager`]: lazy_free::FreePolicy::Eager
//! [`Adaptive`]: lazy_free::FreePolicy::Adaptive
//!
//! # Types built on the verbs, and observation
//!
//! Some types use the verbs for a common purpose: [`VolatileCache`] keeps as many values
//! as memory allows, [`SharedCache`] does so for several processes, on the memory of a
//! [`SharedArena`], [`SecretBuffer`] keeps keys and passwords, and [`LockedFile`] keeps the
//! used pages of a large file resident, within a budget. [`VolatileArena`] makes many
//! small [`VolatileBuffer`]s.
//!
//! [`Headroom`] tells how much more memory the process may take, [`headroom::admit`] counts
//! memory that is about to be taken, [`pressure`] tells how short
//! memory is, [`Residency`] what of a range or a process is in memory and how much of that
//! is only lazily free, and [`stats()`] what tenure has done. [`teardown`] lets a parent's
//! `wait` return before the memory of this process is freed.
//!
//! # Threads, forks and signals
//!
//! Every verb may be called from several threads at once.
//!
//! tenure installs no signal handlers, and its threads block all signals. Threads start when they
//! are needed, and end when they are idle: `tenure-free` frees released memory,
//! `tenure-offer` offers volatile memory to the kernel, `tenure-files` keeps the files that
//! volatile memory needs open, `tenure-pool` fills and shrinks the page [`pool`], `tenure-pressure`
//! watches pressure, `tenure-populate` faults pages in, `tenure-limits` reads the memory limits
//! where no descriptor is left, and `tenure-evictor` keeps a [`LockedFile`] within its budget, or
//! purges shared memory under pressure. [`teardown::enable`] starts a process,
//! `tenure-teardown`, and the heap of the crate tenure-heap a thread, `tenure-decay`. Where `main`
//! has called pthread_exit(3), `tenure-offer` ends the process after the program's last thread.
//!
//! After `fork` the child's volatile ranges are protected anew; the child has no locks,
//! no pending frees, no page pool, and no subscriptions to pressure. Fork handlers
//! (`pthread_atfork(3)`) may call every verb; one in the child that was registered before
//! tenure was loaded makes volatile memory nonvolatile before it reads it. A child made by a bare `clone`
//! system call runs no fork handlers, so its volatile ranges are not protected. Tear-down
//! is not inherited: a child enables it for itself.
//!
//! # Kernel features
//!
//! tenure is for Linux only. [`Features::get`] tells what the running kernel and the
//! container support. Verbs fall back to older calls where the meaning stays the same,
//! and return [`Error::Unsupported`] where it would not.
//!
//! # Cargo features
//!
//! There are none.

#![warn(missing_docs)]

#[cfg(not(target_os = "linux"))]
compile_error!("tenure uses system calls that only Linux has");

/// Runs the examples of the README as doctests.
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

pub use background::pool;
pub use ground::error::{Error, MemoryKind, Refused, Result};
pub use ground::headroom_limit::HeadroomLimit;
pub use ground::mapping::{HugePages, Mapping, MappingBuilder, MemfdPages};
pub use ground::range::PageRange;
#[doc(hidden)]
pub use ground::sys::address_limits::may_map;
pub use ground::sys::cgroup::MemoryCgroup;
#[doc(hidden)]
pub use ground::sys::exclusive::may_be_shared;
pub use ground::sys::features::Features;
#[doc(hidden)]
pub use ground::sys::fork::HeapLock;
pub use ground::sys::{Errno, page_size};
pub use observation::headroom::Headroom;
pub use observation::residency::Residency;
#[doc(hidden)]
pub use observation::stats::sqlite as sqlite_stats;
pub use observation::stats::{Count, HeapGroup, Stats, stats};
#[doc(hidden)]
pub use observation::stats::{heap as heap_stats, stats_as_published};
pub use observation::{headroom, pressure};
pub use prepare::prepare;
pub use ready::{CacheOptions, CacheStats, LockedFile, Pinned, SecretBuffer, VolatileCache};
pub use ready::{
    SharedArena, SharedBuffer, SharedCache, SharedFile, SharedPin, SharedReader, SharedStats,
    SharedValue,
};
pub use verbs::{MmapRequest, files, lazy_free, lock, populate, release, teardown, volatile};

pub use lock::LockMode;
pub use populate::Access;
pub use release::drain;
pub use volatile::{Outcome, VolatileArena, VolatileBuffer};
