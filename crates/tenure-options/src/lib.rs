//! The options of `tenure run` and of the library that it preloads, in one table, from
//! which the command line, the environment and the documentation are made.
//!
//! Nothing here allocates: the preload reads its options before it has a heap.

#![no_std]

mod options;
mod size;
mod table;

pub use options::{HEAP_THRESHOLD_BYTES, MIN_HEAP_THRESHOLD_BYTES, Options, ValueError};
pub use size::{SizeError, parse_size};
pub use table::{Kind, OptionName, OptionRow, TABLE};
