//! The C interface of tenure: converts and nothing else.
//!
//! The doc comments of what is public here are written for C programs: `cargo
//! xtask generate` makes `include/tenure.h` and the pages of section 3 from them.
//! Its files are named as the verbs are.
//!
//! A function answers 0, or a positive result, or `-errno`; `errno` itself stays
//! what it was. A panic is a defect of tenure and does not leave it: the answer is
//! `-ENOTRECOVERABLE`.

#![allow(
    non_camel_case_types,
    reason = "the types have the names that C programs know"
)]

mod answer;
mod lazy_free;
mod load;
mod lock;
mod mmap;
mod populate;
mod release;
mod stats;
mod volatile;

pub use lazy_free::*;
pub use lock::*;
pub use mmap::*;
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
    /// How many bytes.
    pub len: usize,
}
