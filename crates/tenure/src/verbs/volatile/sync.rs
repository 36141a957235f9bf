//! The atomics of what is model-checked. The model of `crates/tenure-model` has
//! others in this place.

pub(super) use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
