//! The atomics of the model-checked file. `crates/tenure-model` has loom's in this place.

pub(super) use std::sync::atomic::{AtomicUsize, Ordering};
