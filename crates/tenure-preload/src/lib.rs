//! `libtenure_preload.so`: tenure under programs that nobody recompiles.
//!
//! Named in LD_PRELOAD, it stands between a program and its C library. What it
//! does there the variables of [`tenure_options`] say, which `tenure run` sets;
//! without any it does nothing.
//!
//! - `allocate`: malloc and its kin. Large requests go to tenure's heap, the
//!   others to the next allocator in line (`next`).
//! - `map`: mmap, munmap, mremap and madvise, as the options ask.
//! - `summary`: what was done, told when the process ends.
//!
//! It fails open: until it is ready, and whenever there is a doubt, the real
//! function is called. Before it is ready it allocates nothing.

// Of the functions that programs call, tests call few.
#![cfg_attr(test, allow(dead_code))]

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("who calls mmap and its kin is found out on x86-64 and aarch64 only");

mod allocate;
mod allocators;
mod aside;
mod line;
mod map;
mod next;
mod quiet;
mod start;
mod summary;
mod sys;
