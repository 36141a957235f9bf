//! The options of `tenure run` and of the library that it preloads, in one table, from
//! which the command line, the environment and the documentation are made.
//!
//! Nothing here allocates: the preload reads its options before it has a heap.

#![no_std]

mod duration;
mod options;
mod size;
mod table;

pub use duration::{DurationError, parse_duration};
pub use options::{HEAP_THRESHOLD_BYTES, OFF, Options, ValueError};
pub use size::{SizeError, parse_size};
pub use table::{Kind, OptionName, OptionRow, TABLE};

/// The variable by which the library knows the program that `tenure run` becomes: its value
/// is 1 there, and the library makes it 0 for the programs that this one starts. They do
/// not report options that are left out: scripts read what programs write to standard error.
pub const FIRST_PROGRAM: &str = "TENURE_FIRST_PROGRAM";
