//! An allocator for large blocks.

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
mod start;
mod stats;
mod sys;

pub use allocate::{allocate, allocate_zeroed, deallocate, owns, usable_size};
pub use large::Large;
pub use options::HeapOptions;
pub use reallocate::reallocate;
pub use start::{start, threshold_bytes};
pub use stats::{HeapStats, stats};
