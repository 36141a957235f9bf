//! The atomics of the model-checked files. `crates/tenure-model` has loom's in this
//! place.

pub(super) use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
