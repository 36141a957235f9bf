//! What the verbs and the background look at before and while they act.

pub(crate) mod residency;
pub(crate) mod room;
