//! The words and functions that the entry points of a C library's malloc and free need, if they
//! are written in assembly.

use std::sync::atomic::{AtomicU32, AtomicUsize};

pub use tikv_jemalloc_sys::{free, malloc};

use crate::cache;
pub use crate::table::Span;

/// The words that every call reads. Nothing that is written often lies in the same cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Words {
    /// Most of the heap's addresses.
    pub span: Span,
    /// As [`small_limit`](crate::small_limit), for those who do not look at who calls; 0 while
    /// somebody must.
    pub limit: AtomicUsize,
    /// A block is looked at when it is freed if its address has none of these bits.
    pub mask: AtomicU32,
}

pub static WORDS: Words = Words {
    span: Span::before_start(),
    limit: AtomicUsize::new(0),
    mask: AtomicU32::new(cache::CLOSED),
};
