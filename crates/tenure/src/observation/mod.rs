//! Observation layer: headroom, memory pressure, residency and statistics.

pub mod headroom;
pub mod pressure;
pub(crate) mod residency;
pub(crate) mod stats;
