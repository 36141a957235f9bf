//! `libtenure_preload.so`: tenure under programs that nobody recompiles.
//!
//! Named in LD_PRELOAD, the library stands between a program and its C library. The
//! environment variables of [`tenure_options`], which `tenure run` sets, say what it does
//! there; without any it does nothing. (Terms: the glossary in ARCHITECTURE.md.)
//!
//! - `allocate`: malloc and its relatives. Tenure's heap serves them, and the real
//!   allocator (`real`) those below its threshold or while it is off.
//! - `c_library`: where the code of the C library is.
//! - `entry`: the short way of malloc and free.
//! - `fork`: the order of fork handlers.
//! - `map`: mmap, munmap, mremap and madvise, with the options in effect.
//! - `objects`: the loaded objects and what they define.
//! - `private_heap`: memory for tenure itself, and for requests that arrive while the
//!   real allocator is being resolved.
//! - `program_jemalloc`: keeps the options of a jemalloc of the program's from that of the heap.
//! - `reentrancy`: calls of tenure's verbs from inside a program that does not expect
//!   them.
//! - `sqlite`: has SQLite use the page cache of `libtenure_sqlite.so`.
//! - `summary`: the line that is printed when the process ends.
//! - `tuning`: malloc_trim, mallopt, mallinfo and their relatives.
//!
//! # The real functions
//!
//! The first call resolves the real allocator's functions with dlsym: the C library's, or
//! those of an allocator that is loaded between it and this library. dlsym may allocate
//! itself; the private heap, which reserves 64 MiB of addresses and makes 256 KiB of them
//! usable at a time, serves those requests. The real mmap, munmap, mremap and madvise are
//! resolved with them, so that a library that is loaded behind this one sees the calls that
//! tenure does not serve. A call that arrives meanwhile is a system call.
//!
//! # Failing open
//!
//! The library fails open: a request that the heap does not serve, a range that tenure
//! refuses or that has more than 1024 mappings, and every call before the library is ready
//! go to the real function. Before it is ready it allocates nothing.
//!
//! # Start-up
//!
//! The library starts after the constructors of other libraries, whose blocks are the
//! real allocator's. In set-user-ID programs (`AT_SECURE`) it does nothing.

// Unit tests call only a few of the exported functions.
#![cfg_attr(test, allow(dead_code))]

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the entry points of mmap and its relatives exist for x86-64 and aarch64 only");

mod allocate;
mod allocators;
mod c_library;
mod entry;
mod fork;
mod line;
mod map;
mod objects;
mod private_heap;
mod program_jemalloc;
mod real;
mod reentrancy;
mod sqlite;
mod start;
mod summary;
mod sys;
mod tuning;
