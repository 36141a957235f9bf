//! The C interface of tenure: converts and nothing else.
//!
//! The doc comments of public items are written for C programs: `cargo xtask generate`
//! makes `include/tenure.h` and the man pages of section 3 from them. A `{NAME}` in them
//! stands for a constant of the core crate, whose value the generator fills in. Each file
//! has the name of its verb.
//!
//! A function returns 0, or a positive result, or `-errno`; `errno` itself keeps its
//! value. The error number is [`tenure::Error::errno`]: the kernel's own, where the kernel
//! refused. A panic is a defect of tenure and does not cross the border: the call returns
//! `-ENOTRECOVERABLE`.
//!
//! Rust's collections abort the process when an allocation fails, where a C program expects
//! `-ENOMEM`. Each call that allocates therefore checks first that the allocator has memory
//! left (`answer`). An allocation that fails nevertheless, later in the call or in one of
//! tenure's threads, still aborts.
//!
//! A new function needs its source here, a line in `tenure.map`, an example in
//! `examples/pages` and a reference in `man/tenure.7`; `cargo xtask generate --check`
//! compares them. The tests compare constants and structures from both sides, and run every
//! example.
//!
//! `cc` links the shared library from the static one (see the Makefile): rustc passes a
//! version script of its own to the linker, which accepts no second one. The SONAME ends in
//! 0 until version 1.0, and symbols have the version `TENURE_0.1`. The library is never
//! unloaded, because it contains the code of its threads and fork handlers. It prepares
//! itself when it is loaded (`prepare`), before the program has threads: fork handlers that
//! one thread registers while another forks are too late for that child.

#![allow(
    non_camel_case_types,
    reason = "the types have the names that C programs know"
)]

mod answer;
mod cache;
mod lazy_free;
mod lock;
mod mmap;
mod pool;
mod populate;
mod prepare;
mod release;
mod stats;
mod volatile;

pub use cache::*;
pub use lazy_free::*;
pub use lock::*;
pub use mmap::*;
pub use pool::*;
pub use populate::*;
pub use release::*;
pub use stats::*;
pub use volatile::*;

use std::ffi::c_void;

/// A range of addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct tenure_range {
    /// The first byte.
    pub addr: *mut c_void,
    /// The length in bytes.
    pub len: usize,
}
