//! What the verbs and the background look at before and while they act.

pub mod pressure;
pub(crate) mod residency;
pub(crate) mod room;
pub(crate) mod stats;
