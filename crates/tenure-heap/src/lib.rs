//! An allocator for large blocks: from 256 KiB on by default.
//!
//! General allocators either keep the memory of large blocks, and the program stays as
//! large as it ever was, or give it back with each `free`, and pay for every page again
//! with the next `malloc`. This one keeps blocks warm while they are in use, and gives
//! back what nobody has asked for again.
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
//! allocator. Beneath it are functions with the meaning of `malloc(3)` and its kin:
//! [`allocate()`], [`allocate_zeroed`], [`reallocate()`], [`deallocate`], [`usable_size`];
//! [`owns`] tells the heap's blocks from others by their address. Whatever the heap
//! does not serve it answers with null, and the caller goes elsewhere: it *fails open*.
//!
//! # What becomes of a block that is freed
//!
//! | | for | memory | when it is used again |
//! | --- | --- | --- | --- |
//! | warm | half a second | kept as it is | no system call, no page fault |
//! | lazily free | five seconds | the kernel takes it if it needs any | no page fault where it has not |
//! | given back | ever after | none; addresses stay | page faults |
//!
//! Under memory [pressure](tenure::pressure) all of it is given back at once. Warm
//! blocks are never more than an eighth of the memory that there is room for, machine
//! or cgroup, and when room is short whoever takes new memory gives warm blocks back
//! first: without swap the kernel could only kill.
//!
//! A thread (`tenure-heap`, all signals blocked) sees to that. It starts when 4 MiB are
//! warm, and sleeps while there is nothing to do. Where no thread is to be had, little
//! is kept.
//!
//! # How large blocks are
//!
//! There are eight classes for each doubling of the size, so that a block that is used
//! again has an eighth of memory more than it needs, at most. Below 2 MiB the block that
//! was freed last, which is in the CPU's cache, also serves smaller requests; what is
//! left behind them all ([`HeapStats::spare_bytes`]) is no more than a MiB for each CPU
//! (4 MiB at least), or a sixteenth of what is live. From 2 MiB on blocks get huge pages,
//! but for a last one that would be mostly empty, and for what `calloc` has not written.
//! Addresses are reserved once, 44 TiB of them; they show as virtual size (`VIRT`,
//! `VSZ`), and cost nothing.
//!
//! Growing blocks grow where they are, or have their page tables moved to a place with
//! room for four times as much; nothing is copied from 1 MiB on. `calloc` clears what
//! is warm, up to 2 MiB, and takes new pages for larger blocks.
//!
//! # Threads, forks and signals
//!
//! All functions may be called from any thread at any time. Warm blocks lie in lists by
//! CPU. There is no thread-local storage. A fork waits for nobody: the child finds what
//! is free by the states of the places, and starts a keeper of its own when it needs
//! one. What other threads of the parent had in hand stays allocated there.
//!
//! # Limits
//!
//! - The heap is off, and [`threshold_bytes`] is `usize::MAX`, where addresses are
//!   limited (`RLIMIT_AS`), count as memory (`vm.overcommit_memory=2`), or where fewer
//!   than 1 TiB are left.
//! - `mlockall` without `CAP_IPC_LOCK` compares all reserved addresses with
//!   `RLIMIT_MEMLOCK`, and fails unless that is unlimited. What is locked is copied
//!   when it grows, and is not lazily free.
//! - What a program does to the memory of a block with `madvise`, `mprotect` or `mlock`
//!   it should undo before it frees it, as with any allocator that uses memory again.

#![warn(missing_docs)]

mod aging;
mod allocate;
mod blunder;
mod class;
mod classes;
mod fork;
mod huge;
mod keeper;
mod large;
mod limits;
mod list;
mod lock;
mod options;
mod reallocate;
mod seams;
mod shard;
mod slot;
mod space;
mod spare;
mod start;
mod stats;
mod sys;

pub use allocate::{allocate, allocate_zeroed, deallocate, owns, usable_size};
pub use large::Large;
pub use options::HeapOptions;
pub use reallocate::reallocate;
pub use start::{start, threshold_bytes};
pub use stats::{HeapStats, stats};
