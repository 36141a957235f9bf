//! An allocator for large blocks: from 256 KiB on by default.
//!
//! General allocators either keep the memory of large blocks, so that the program stays
//! as large as it ever was, or return it with each `free`, and pay for every page again
//! with the next `malloc`. This heap keeps freed blocks for reuse for a while, and then
//! returns their memory to the kernel.
//!
//! ```
//! use std::alloc::System;
//! use tenure_heap::Large;
//!
//! #[global_allocator]
//! static ALLOCATOR: Large<System> = Large(System);
//! # fn main() {}
//! ```
//!
//! In Rust, [`Large`] serves large requests from the heap and all others from another
//! allocator. Beneath it are functions with the meaning of `malloc(3)` and its relatives:
//! [`allocate()`], [`allocate_zeroed`], [`reallocate()`], [`deallocate`], [`usable_size`];
//! [`owns`] tells the heap's blocks from others by their address. The heap answers a
//! request that it does not serve with null, and the caller asks another allocator: it
//! *fails open*.
//!
//! # The decay of freed blocks
//!
//! The states have jemalloc's names; the glossary in ARCHITECTURE.md has the other terms.
//!
//! | state | for | memory | reuse costs |
//! | --- | --- | --- | --- |
//! | dirty | [`dirty_decay`](HeapOptions::dirty_decay), 500 ms | stays | no system call, no page fault |
//! | muzzy | [`muzzy_decay`](HeapOptions::muzzy_decay), 5 s | the kernel may reclaim it (MADV_FREE) | page faults where the kernel has reclaimed it |
//! | retained | ever after | none (MADV_DONTNEED); the addresses stay | page faults |
//!
//! Under memory [pressure](tenure::pressure) all free blocks are returned at once. Dirty
//! blocks never take more than an eighth of the [headroom](tenure::Headroom) of the
//! machine and the cgroup. When headroom is low, a thread that takes new memory returns
//! dirty blocks first: without swap the kernel could only kill the process.
//!
//! The decay thread (`tenure-decay`, all signals blocked) does this. It starts when 4 MiB
//! are dirty, and parks while there is nothing to do. If no thread can be started, few
//! blocks stay dirty.
//!
//! # Block sizes
//!
//! There are eight size classes for each doubling, so a reused block wastes at most an
//! eighth of its size. Below 2 MiB the block that was freed last, which is in the CPU's
//! cache, also serves smaller requests; the memory left behind all such blocks
//! ([`HeapStats::slack_bytes`]) is at most 1 MiB for each CPU (and at least 4 MiB), or a
//! sixteenth of the live bytes. From 2 MiB on blocks have huge pages, except for a last
//! one that would be mostly empty, and for `calloc` blocks that are not written. The heap
//! reserves its addresses once, 44 TiB of them; they count as virtual size (`VIRT`,
//! `VSZ`), and cost no memory.
//!
//! A growing block grows in place, or its page tables are moved to where there are addresses
//! for four times its size; from 1 MiB on nothing is copied. `calloc` clears dirty blocks
//! up to 2 MiB, and takes new pages for larger ones.
//!
//! # Threads, forks and signals
//!
//! All functions may be called from any thread at any time. Dirty blocks lie in one shard
//! for each CPU; there is no thread-local storage. A fork takes no lock: the child finds
//! its free blocks by their recorded states, and starts a decay thread when it needs one.
//! Blocks in flight in other threads of the parent stay allocated in the child.
//!
//! # How it works
//!
//! Each size class has a range of addresses, divided into *places* for a block each, so
//! that an address gives the class by a shift and the place by a division: blocks have no
//! headers, and [`owns`] is a comparison. The metadata of a range's places lies at its
//! start, away from the blocks.
//!
//! Freed blocks go to the shard of the current CPU (`sched_getcpu`) and are reused newest
//! first; threads that end leave nothing behind. The block that was freed last serves
//! smaller requests as well: with separate dirty blocks for each class and requests of
//! varying size, none was in the CPU's cache, and glibc made 1.4 times the records of the
//! heap. A thread that finds a shard locked takes another, so a signal handler never
//! waits for the code that it interrupted.
//!
//! Allocating and freeing call none of tenure's verbs, and do not allocate; only the
//! decay thread does. It reads the headroom ten times a second. In between, each thread
//! subtracts the new memory that it takes, and returns dirty blocks where the headroom
//! becomes low.
//!
//! After a fork the child resets the locks, drops the lists, and finds free places by
//! their states, which carry the number of the process's generation.
//!
//! # Limits
//!
//! - The heap is off, and [`threshold_bytes`] is `usize::MAX`, if addresses are limited
//!   (`RLIMIT_AS`), count as memory (`vm.overcommit_memory=2`), or if fewer than 1 TiB are
//!   free.
//! - `mlockall` without `CAP_IPC_LOCK` compares all reserved addresses with
//!   `RLIMIT_MEMLOCK`, and fails unless that is unlimited. Locked blocks are copied when
//!   they grow, and are not made muzzy.
//! - A program that applies `madvise`, `mprotect` or `mlock` to the memory of a block must
//!   undo that before it frees the block, as with any allocator that reuses memory.

#![warn(missing_docs)]

mod addresses;
mod allocate;
mod class;
mod classes;
mod decay;
mod decay_thread;
mod fork;
mod huge;
mod large;
mod limits;
mod list;
mod lock;
mod misuse;
mod options;
mod reallocate;
mod shard;
mod slack;
mod slot;
mod space;
mod start;
mod stats;
mod sync;
mod sys;
mod vma_splits;

pub use allocate::{allocate, allocate_zeroed, deallocate, owns, usable_size};
pub use large::Large;
pub use options::HeapOptions;
pub use reallocate::reallocate;
pub use start::{start, threshold_bytes};
pub use stats::{HeapStats, stats};
